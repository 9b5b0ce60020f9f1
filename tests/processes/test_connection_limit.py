"""`limits.connections_max` is exact: with several workers, and whoever comes at the same moment."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from broker.wire.packets import Connack, Disconnect
from broker.wire.reasons import Reason
from tests.support.process import BrokerProcess
from tests.support.raw_client import RawClient, wait_until
from tests.support.workers import Workers


def let_in(port: int, name: str, user: str | None = None) -> RawClient | None:
    client = RawClient(port)
    reason = client.connect(name, user_name=user).reason
    if reason == Reason.SUCCESS:
        return client
    assert reason == Reason.QUOTA_EXCEEDED
    client.socket.close()
    return None


@pytest.mark.parametrize("limit", [2, 8])
def test_all_workers_together_have_as_many_connections_as_the_limit_wherever_they_live(
    tmp_path: Path, limit: int
) -> None:
    with Workers(tmp_path, SHOAL_LIMITS__CONNECTIONS_MAX=str(limit)) as broker:
        for homes in ((0,), (1, 2), (2, 1, 0)):
            names = [broker.names(homes[number % len(homes)], limit + 1)[number] for number in range(limit + 1)]
            kept = [let_in(broker.port, name) for name in names[:limit]]
            assert None not in kept, homes
            for home in range(3):
                assert let_in(broker.port, broker.names(home, 20)[-1]) is None, (homes, home)
            # Who takes over his own connection takes its place.
            again = let_in(broker.port, names[0])
            assert again is not None
            assert kept[0] is not None
            assert kept[0].read() == Disconnect(Reason.SESSION_TAKEN_OVER)
            kept[0].socket.close()
            kept[0] = again
            # What is given back is there for whoever lives elsewhere.
            again.send(Disconnect(Reason.SUCCESS))
            assert again.read() is None
            again.socket.close()
            kept[0] = let_in(broker.port, broker.names((homes[0] + 1) % 3, 20)[-1])
            assert kept[0] is not None
            for client in kept:
                assert client is not None
                client.send(Disconnect(Reason.SUCCESS))
                assert client.read() is None
                client.socket.close()


def test_a_killed_worker_gives_back_what_it_had_taken(tmp_path: Path) -> None:
    with Workers(tmp_path, SHOAL_LIMITS__CONNECTIONS_MAX="2") as broker:
        clients = [let_in(broker.port, name) for name in broker.names(0, 2)]
        assert let_in(broker.port, broker.names(1)[0]) is None
        broker.kill_worker(0)
        for client in clients:
            assert client is not None
            assert client.read() is None
            client.socket.close()
        found = wait_until(lambda: let_in(broker.port, broker.names(1)[0]), "its places are not free")
        found.socket.close()


@pytest.mark.parametrize("workers", [1, 3])
def test_clients_that_come_at_the_same_moment_are_no_more_than_the_limit(tmp_path: Path, workers: int) -> None:
    names = [f"client-{number}" for number in range(60)]
    settings = {"SHOAL_LIMITS__CONNECTIONS_MAX": "5"}
    with (
        BrokerProcess(tmp_path, "--workers", "1", environment=settings)
        if workers == 1
        else Workers(tmp_path, workers, **settings)
    ) as broker:
        clients = [RawClient(broker.port) for _ in names]
        for client, name in zip(clients, names, strict=True):
            # Each has a session that waits for its record.
            client.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            client.socket.sendall(client.connect_bytes(name, keep=True))
        answers = [client.read() for client in clients]
        reasons = [answer.reason for answer in answers if isinstance(answer, Connack)]
        assert len(reasons) == len(names)
        assert set(reasons) == {Reason.SUCCESS, Reason.QUOTA_EXCEEDED}
        # Two workers that both take the last place may both be told that there is none.
        assert 5 - (workers - 1) <= reasons.count(Reason.SUCCESS) <= 5
        for client in clients:
            client.socket.close()


def test_the_connections_of_a_user_are_counted_over_all_workers(tmp_path: Path) -> None:
    (tmp_path / "shoal.toml").write_text("[[limit]]\nconnections_per_user_max = 2\n")
    broker = Workers(tmp_path)
    broker.options += ("--config", str(tmp_path / "shoal.toml"))
    with broker:
        names = [name for home in range(3) for name in broker.names(home, 2)]
        kept = {name: let_in(broker.port, name, "ann") for name in (names[0], names[2])}
        assert None not in kept.values()
        for name in names[3:]:
            assert let_in(broker.port, name, "ann") is None, name
        # Others have places of their own, and clients without a user name are not counted.
        others = [let_in(broker.port, name, user) for name, user in zip(names[3:], ("bob", "bob", None), strict=True)]
        assert None not in others
        # Who takes over its own connection has its place.
        again = let_in(broker.port, names[0], "ann")
        assert again is not None
        broker.kill_worker(1)
        found = wait_until(lambda: let_in(broker.port, names[5], "ann"), "the place at the killed worker is not free")
        for client in (*kept.values(), *others, again, found):
            assert client is not None
            client.socket.close()
