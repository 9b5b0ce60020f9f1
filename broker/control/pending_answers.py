"""SUBACK and UNSUBACK that wait: for the record of what they answer, then for the other workers. One queue for all."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from broker.reactor.connection import Connection
    from router.router import Router


class WaitsFor(StrEnum):
    """What an answer waits for."""

    RECORD = "record"  # the log has what the packet changed, and has not synced it
    PEERS = "peers"  # not every live peer knows the interest yet, or `mesh.interest_timeout_s` is not over
    NOTHING = "nothing"  # it has left


class PendingAnswer:
    """One answer that waits. Its client's later packets wait behind it: the connection stays parked."""

    __slots__ = ("_answer", "_answers", "_is_parked", "_tells_peers", "connection", "packet", "since_ms", "waits_for")

    def __init__(
        self,
        answers: PendingAnswers,
        connection: Connection,
        packet: str,
        answer: Callable[[], None],
        tells_peers: bool,
    ) -> None:
        self.connection = connection
        self.packet = packet  # its name in lower case
        self.since_ms: int = answers.router.ledger.now_ms
        self.waits_for = WaitsFor.RECORD
        self._answers = answers
        self._answer = answer
        self._tells_peers = tells_peers
        self._is_parked = False

    def wait_for_record(self) -> None:
        """Leave when what this turn has recorded is durable, and then the peers know."""
        self._is_parked = True
        self._answers.router.effects.call(self._on_durable)

    def wait_for_peers(self) -> bool:
        """Leave when the peers know what is wanted here. Returns whether they know already, and it has left."""
        self.waits_for = WaitsFor.PEERS
        self._answers.mesh.when_installed(self._leave)
        self._is_parked = self.waits_for != WaitsFor.NOTHING
        return not self._is_parked

    def _on_durable(self) -> None:
        if self._tells_peers:
            self.waits_for = WaitsFor.PEERS
            self._answers.mesh.when_installed(self._leave)
        else:
            self._leave()

    def _leave(self) -> None:
        self.waits_for = WaitsFor.NOTHING
        self._answers.remove(self)
        self._answer()
        if self._is_parked:
            self.connection.unpark()


class PendingAnswers:
    """The answers of a worker that wait, by connection, the oldest first: a client has one control packet at a time."""

    def __init__(self, router: Router) -> None:
        self.router = router
        self.mesh: Any = None  # since join_mesh(), where there are other workers
        self._waiting: dict[Connection, PendingAnswer] = {}

    def join_mesh(self, mesh: Any) -> None:
        """From now on a SUBACK waits for the peers, too."""
        self.mesh = mesh

    def __iter__(self) -> Iterator[PendingAnswer]:
        return iter(self._waiting.values())

    def of(self, connection: Connection) -> PendingAnswer | None:
        """Return the answer of a connection that waits, or None."""
        return self._waiting.get(connection)

    def suback(self, connection: Connection, answer: Callable[[], None]) -> bool:
        """Let a SUBACK leave when the log and the other workers know what is wanted: what is published there arrives.

        Returns whether it has left, and the connection may be parsed on at once.
        """
        return self._answer(connection, "suback", answer, self.mesh is not None)

    def unsuback(self, connection: Connection, answer: Callable[[], None]) -> bool:
        """Let an UNSUBACK leave when the log has what it answers; the peers need not know. Returns as suback() does."""
        return self._answer(connection, "unsuback", answer, False)

    def _answer(self, connection: Connection, packet: str, answer: Callable[[], None], tells_peers: bool) -> bool:
        is_recorded = self.router.recording and connection.session.durable
        if not is_recorded and not tells_peers:
            answer()
            return True
        assert connection not in self._waiting, packet
        pending = self._waiting[connection] = PendingAnswer(self, connection, packet, answer, tells_peers)
        if is_recorded:
            pending.wait_for_record()
            return False
        return pending.wait_for_peers()

    def remove(self, pending: PendingAnswer) -> None:
        """One leaves."""
        del self._waiting[pending.connection]
