"""The lines of the log that say which clients lose messages."""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.logs import get

if TYPE_CHECKING:
    from router.sessions.losses import Losses

log = get("connections")


def tell_losses(losses: Losses, now_ms: int) -> None:
    """Write a line for each client that has begun to lose messages, or has lost none for a while.

    Args:
        losses: of the router's ledger.
        now_ms: monotonic.
    """
    begun, over, others = losses.look(now_ms)
    for client, lost in begun:
        log.warning(
            "client_loses_messages",
            client=client.decode("utf-8", "replace"),
            reason=max(lost, key=lost.__getitem__),
            count=sum(lost.values()),
        )
    for client, lost, lasted_ms in over:
        log.info(
            "client_loses_no_more",
            client=client.decode("utf-8", "replace"),
            lost=lost,
            count=sum(lost.values()),
            duration_s=lasted_ms / 1000,
        )
    if others:
        log.warning("more_clients_lose_messages", lost=others, count=sum(others.values()))
