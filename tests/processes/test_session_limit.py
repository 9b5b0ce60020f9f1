"""`limits.sessions_max` with several workers: all of them together have no more sessions, and each keeps its own."""

from __future__ import annotations

from pathlib import Path

from broker.wire.packets import Disconnect
from broker.wire.reasons import Reason
from tests.support.raw_client import RawClient, wait_until
from tests.support.workers import Workers


def visit(port: int, name: str) -> tuple[Reason, bool]:
    """Connect for a session that is kept, and leave. Returns the reason, and whether there was a session."""
    with RawClient(port) as client:
        answer = client.connect(name, keep=True)
        if answer.reason == Reason.SUCCESS:
            client.send(Disconnect(Reason.SUCCESS))
        assert client.read() is None
        return Reason(answer.reason), answer.session_present


def test_all_workers_together_have_as_many_sessions_as_the_limit_wherever_they_live(tmp_path: Path) -> None:
    with Workers(tmp_path, SHOAL_LIMITS__SESSIONS_MAX="4") as broker:
        kept = [*broker.names(0, 3), broker.names(1)[0]]
        assert [visit(broker.port, name) for name in kept] == [(Reason.SUCCESS, False)] * 4
        for home in range(3):
            assert visit(broker.port, broker.names(home, 10)[-1]) == (Reason.QUOTA_EXCEEDED, False), home
        assert [visit(broker.port, name) for name in kept] == [(Reason.SUCCESS, True)] * 4
        # A killed worker's sessions are there when it is back, so nobody has their places meanwhile.
        broker.kill_worker(0)
        assert visit(broker.port, broker.names(2)[0]) == (Reason.QUOTA_EXCEEDED, False)
        assert visit(broker.port, kept[0]) == (Reason.SUCCESS, True)
        # One that ends makes room, wherever the next one lives.
        with RawClient(broker.port) as client:
            assert client.connect(kept[0]).reason == Reason.SUCCESS
            client.send(Disconnect(Reason.SUCCESS))
            assert client.read() is None
        wait_until(lambda: visit(broker.port, broker.names(2)[0]) == (Reason.SUCCESS, False), "its place is not free")


def test_a_start_counts_the_sessions_that_it_finds(tmp_path: Path) -> None:
    for _ in range(2):
        with Workers(tmp_path, SHOAL_LIMITS__SESSIONS_MAX="3") as broker:
            names = [broker.names(home)[0] for home in range(3)]
            assert {visit(broker.port, name)[0] for name in names} == {Reason.SUCCESS}
            for home in range(3):
                assert visit(broker.port, broker.names(home, 10)[-1]) == (Reason.QUOTA_EXCEEDED, False), home
