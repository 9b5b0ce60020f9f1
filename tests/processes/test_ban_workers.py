"""Bans of a broker with several workers: all of them know, whichever was asked, and whatever becomes of one."""

from __future__ import annotations

import json
from pathlib import Path

from broker.wire.packets import Disconnect
from broker.wire.reasons import Reason
from tests.processes.test_admin import asked, shoal
from tests.support.raw_client import RawClient, wait_until
from tests.support.workers import Workers


def visit(port: int, name: str, user: str | None = None) -> Reason:
    """Return what a CONNECT is answered."""
    with RawClient(port) as client:
        return Reason(client.connect(name, user_name=user).reason)


def listed(broker: Workers) -> list[str]:
    return [json.loads(line)["name"] for line in shoal(broker, "admin", "bans", "--json").splitlines()]


def test_a_ban_is_in_force_on_all_workers_when_the_command_returns(tmp_path: Path) -> None:
    with Workers(tmp_path) as broker:
        names = [broker.names(home)[0] for home in range(3)]
        clients = [RawClient(broker.port) for _ in names]
        for client, name in zip(clients, names, strict=True):
            assert client.connect(name, user_name="ann").reason == Reason.SUCCESS
        assert shoal(broker, "admin", "ban", "--user", "ann", "--for", "1h", "--reason", "noise").startswith(
            "The user ann is banned for 59 min"
        )
        assert {visit(broker.port, name, "ann") for name in names} == {Reason.BANNED}
        assert {visit(broker.port, name, "bob") for name in names} == {Reason.SUCCESS}
        for client in clients:
            packet = client.read()
            assert isinstance(packet, Disconnect)
            assert packet.reason == Reason.ADMINISTRATIVE_ACTION
            client.socket.close()
        assert shoal(broker, "admin", "bans").splitlines()[1].split()[::6] == ["user", "noise"]
        assert shoal(broker, "admin", "unban", "--user", "ann") == "The user ann is banned no more.\n"
        assert {visit(broker.port, name, "ann") for name in names} == {Reason.SUCCESS}
        assert shoal(broker, "admin", "bans") == "Nothing is banned.\n"
        assert asked(broker, "/bans?kind=user&name=ann", "DELETE")[0] == 404


def test_a_worker_that_was_killed_or_stopped_knows_the_bans_of_meanwhile(tmp_path: Path) -> None:
    with Workers(tmp_path) as broker:
        names = [broker.names(home)[0] for home in range(3)]
        shoal(broker, "admin", "ban", "--client", names[2])
        for home in (0, 1, 2):
            broker.kill_worker(home)
            shoal(broker, "admin", "ban", "--client", f"x{home}")  # perhaps while it is away
            wait_until(lambda: asked(broker, "/ready")[0] == 200, "the worker does not come back")
        wait_until(lambda: visit(broker.port, names[2]) == Reason.BANNED, "the ban is forgotten")
        for home in range(3):
            (other,) = broker.names(home, 1)
            assert visit(broker.port, other) == (Reason.BANNED if home == 2 else Reason.SUCCESS)
        assert listed(broker) == sorted([names[2], "x0", "x1", "x2"])
    with Workers(tmp_path) as broker:  # and all of them anew
        assert listed(broker) == sorted([names[2], "x0", "x1", "x2"])
        assert visit(broker.port, names[2]) == Reason.BANNED


def test_a_mistake_is_told_in_a_sentence(tmp_path: Path) -> None:
    with Workers(tmp_path) as broker:
        for arguments, words in (
            (("ban",), "Expected one of --client, --user and --address."),
            (("ban", "--client", "a", "--user", "b"), "Expected one of --client, --user and --address."),
            (("ban", "--client", "a", "--for", "soon"), "'soon': expected a number and one of s, m, h, d"),
            (("ban", "--address", "10.0.0.0/99"), "10.0.0.0/99"),
            (("unban", "--address", "10.0.0.0/8"), "There is no ban of the address '10.0.0.0/8'."),
        ):
            code = 1 if "--address" in arguments else 2  # it is the broker that knows addresses
            said = shoal(broker, "admin", *arguments, exit_code=code)
            assert words in said
            assert "Traceback" not in said
