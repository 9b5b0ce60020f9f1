"""Which workers have heard of which subscriptions: what is published on these must come to the subscriber."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tests.simulator.clients import Subscriber
    from tests.simulator.retained import Reader
    from tests.simulator.worker import Worker


class Heard:
    """A SUBACK waits until every worker that answers has installed the filter; the others hear of it later.

    Until then such a worker may have the filter from before and let go of it, or have it at another QoS.
    """

    def __init__(self) -> None:
        # Subscriber -> number of a worker that may not have heard of it -> process and version of its own worker's
        # interest that the other one has to know.
        self._unsure: dict[str, dict[int, tuple[int, int]]] = {}

    def subscribed(self, client: Subscriber | Reader, home: Worker) -> None:
        """SUBACK came."""
        self._unsure[client.identifier] = {
            number: home.interest for number, step in home.silent_steps.items() if step >= client.asked_step
        }

    def lacked_by(self, client: Subscriber | Reader) -> set[int]:
        """Return the numbers of the workers that may not have heard of a subscription."""
        return set(self._unsure[client.identifier])

    def has(self, here: Worker, home: Worker, client: Subscriber | Reader) -> bool:
        """Return whether a worker has heard of a subscription on another one."""
        unsure = self._unsure[client.identifier]
        if here.interest_of(home) < unsure.get(here.number, (0, 0)):
            return False
        unsure.pop(here.number, None)
        return True

    def forgot(self, here: Worker, subscribers: Iterable[tuple[Subscriber | Reader, Worker]]) -> None:
        """A worker has lost what it had recorded; subscribers, each with its own worker."""
        for client, home in subscribers:
            if client.identifier in self._unsure:
                self._unsure[client.identifier][here.number] = home.interest

    def all_over(self) -> None:
        """All workers begin anew, and none lets clients in before it has heard of all subscriptions."""
        self._unsure = {identifier: {} for identifier in self._unsure}
