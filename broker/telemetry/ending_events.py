"""The events of the log about ends in order, of a broker and of its workers."""

from __future__ import annotations

from typing import Final

from broker.telemetry.log_event import Event

ENDING: Final = (
    Event("drain_asked", "warning", "admin", "to, rate", "An operator has the broker end in order."),
    Event("sending_away", "info", "worker", "clients, to", "A worker that is to end tells so many clients to go."),
    Event(
        "worker_replaced",
        "info",
        "supervisor",
        "worker, pid",
        "`shoal admin restart`: this process of a worker is asked to end, and another one takes its place.",
    ),
    Event(
        "restart_failed",
        "error",
        "supervisor",
        "what, workers",
        "The workers that are not among `workers` have their old processes, and go by the settings that they had.",
        "Mend what it says, and restart again.",
    ),
)
