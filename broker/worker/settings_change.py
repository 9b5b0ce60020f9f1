"""A worker's settings change while it runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from broker import logs
from broker.worker.terms import overflow_rules, terms

if TYPE_CHECKING:
    from broker.config.loader import Config
    from broker.control.controller import Controller
    from broker.reactor.epoll import Reactor
    from broker.worker.memory_guard import MemoryGuard
    from router.router import Router


class Changed(Protocol):
    """What goes by settings: broker.worker.worker.Worker."""

    config: Config
    router: Router
    controller: Controller
    reactor: Reactor
    memory_guard: MemoryGuard

    def limit_connections(self) -> None:
        """Take as many connections as the settings have it, or fit into this process."""


def change_settings(worker: Changed, config: Config) -> None:
    """Go by other settings from now on. Called between turns.

    Args:
        config: differs from the worker's in settings of broker.config.live.NOW and NEW only.
    """
    before, mqtt, limits = worker.config, config.mqtt, config.limits
    worker.config = config
    if config.log.level != before.log.level:
        logs.set_level(config.log.level)
    ledger = worker.router.ledger
    ledger.overflow = overflow_rules(config)
    ledger.push_back_ms = round(mqtt.queue_push_back_s * 1000)
    ledger.queue_qos0 = mqtt.queue_qos0
    ledger.inflight_max = mqtt.inflight_max
    ledger.retained_messages_max = limits.retained_messages_max
    ledger.retained_bytes_max = limits.retained_bytes_max
    ledger.peer_bytes_max = config.mesh.owed_bytes_max
    # All sessions that have no limits of their own have this one.
    ledger.session_limits.queue_messages_max = mqtt.queue_messages_max
    ledger.session_limits.queue_bytes_max = mqtt.queue_bytes_max
    worker.reactor.change(terms(config))
    worker.memory_guard.allow_output(limits.output_buffer_bytes_max)
    worker.controller.change(config)
    if limits.connections_max != before.limits.connections_max:
        worker.limit_connections()
