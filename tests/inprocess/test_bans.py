"""Bans and delays after failed logins, in a broker of this process."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio

from broker.auth import login_guard
from broker.auth.login_delays import FREE_OF_NETWORK, FREE_OF_USER
from broker.auth.outcome import Refused
from broker.auth.password_hash import new_hash
from broker.config.authenticator import PasswordFileTable
from broker.config.loader import Limits
from broker.control.inprocess_client import RefusedError
from broker.wire.packets import Connack, Connect, Disconnect, Publish, Subscribe, subscription
from broker.wire.reasons import ConnectReturn, Reason
from broker.worker.worker import Worker, open_broker
from tests.inprocess.test_admin import Asked, asking
from tests.support.embedded import CONFIG, Device, device

SECRET = b"correct horse battery staple"
TIMEOUT_S = 60
OUT = {3: ConnectReturn.NOT_AUTHORIZED, 4: ConnectReturn.NOT_AUTHORIZED, 5: Reason.BANNED}


async def answer(broker: Worker, version: int = 5, name: bytes = b"c", **more: Any) -> int:
    """Return what a client's CONNECT is answered."""
    stream = await trio.open_tcp_stream("127.0.0.1", broker.addresses[0].port)
    async with stream:
        client = Device(stream, version)
        await client.send(Connect(version, name, **more))
        connack = await client.receive()
        assert isinstance(connack, Connack)
        return int(connack.reason)


async def ban(asked: Asked, kind: str, name: str, **more: Any) -> dict[str, Any]:
    return await asked.get("/bans", "POST", json.dumps({"kind": kind, "name": name, **more}).encode())


async def banned(asked: Asked) -> list[tuple[str, str, str]]:
    return [(row["kind"], row["name"], row["reason"]) for row in await asked.rows("/bans")]


@asking
async def test_clients_are_refused_by_name_user_and_address(asked: Asked) -> None:
    broker = asked.broker
    await ban(asked, "client", "bad/+", reason="noise")
    await ban(asked, "user", "mallory")
    for version in (3, 4, 5):
        assert await answer(broker, version, b"bad/+") == OUT[version]
        assert await answer(broker, version, b"c", user_name="mallory") == OUT[version]
        assert await answer(broker, version, b"mallory") == Reason.SUCCESS
    row = await ban(asked, "address", "127.1.2.3/8", for_s=100)
    assert (row["name"], 99 < row["ends_in_s"] <= 100) == ("127.0.0.0/8", True)
    assert await answer(broker) == Reason.BANNED
    assert await banned(asked) == [
        ("address", "127.0.0.0/8", ""),
        ("client", "bad/+", "noise"),
        ("user", "mallory", ""),
    ]
    await asked.get("/bans?kind=address&name=127.0.0.0/8", "DELETE")
    assert await answer(broker) == Reason.SUCCESS
    await asked.get("/bans", "DELETE", b'{"kind":"client","name":"bad/+"}')
    assert await answer(broker, name=b"bad/+") == Reason.SUCCESS
    assert await banned(asked) == [("user", "mallory", "")]


@asking
async def test_a_ban_ends_connections_of_its_clients_and_of_no_others(asked: Asked) -> None:
    broker = asked.broker
    async with (
        device(broker, b"a", user_name="ann") as ann,
        device(broker, b"b", user_name="bob") as bob,
        device(broker, b"old", 4, user_name="ann") as old,
    ):
        await ban(asked, "user", "ann")
        assert (await ann.receive()).reason == Reason.ADMINISTRATIVE_ACTION
        assert await ann.receive() is await old.receive() is None
        await ban(asked, "client", "x")
        await bob.publish(b"t", b"", 1)
        await ban(asked, "address", "127.0.0.1")
        goodbye = await bob.receive()
        assert isinstance(goodbye, Disconnect)
        assert await bob.receive() is None


@pytest.mark.parametrize(
    "body",
    [
        {"kind": "city", "name": "x"},
        {"kind": "address", "name": "10.0.0.0/99"},
        {"kind": "client", "name": ""},
        {"kind": "client", "name": "x" * 10_001},
        {"kind": "client", "name": "x", "for_s": 0},
        {"kind": "client", "name": "x", "reason": "x" * 1001},
        {"name": "x"},
        {"kind": "client", "name": "x", "until": 1},
    ],
)
def test_a_ban_that_makes_no_sense_is_refused_and_changes_nothing(tmp_path: Path, body: dict[str, Any]) -> None:
    async def run(asked: Asked) -> None:
        assert (await asked.refused("/bans", "POST", json.dumps(body).encode()))[0] == 400
        assert await banned(asked) == []
        assert await asked.refused("/bans?kind=client&name=x", "DELETE") == (404, "unknown_ban")

    asking(run)(tmp_path)


def test_bans_stand_after_a_restart_and_go_at_their_time(tmp_path: Path) -> None:
    async def main() -> None:
        with trio.fail_after(TIMEOUT_S):
            async with open_broker(CONFIG, folder=tmp_path) as broker:
                asked = Asked(broker, tmp_path)
                await ban(asked, "client", "a", reason="r")
                await ban(asked, "client", "b")
                await ban(asked, "client", "late", for_s=1)
                await asked.get("/bans?kind=client&name=b", "DELETE")
            await trio.sleep(1.2)  # the end of a ban is a time, and nothing tells of it
            async with open_broker(CONFIG, folder=tmp_path) as broker:
                asked = Asked(broker, tmp_path)
                assert await banned(asked) == [("client", "a", "r")]
                assert await answer(broker, name=b"a") == Reason.BANNED
                assert await answer(broker, name=b"late") == Reason.SUCCESS

    trio.run(main)


@asking
async def test_what_workers_keep_for_one_another_is_no_clients_business(asked: Asked) -> None:
    broker = asked.broker
    await ban(asked, "client", "x", reason="secret")
    async with device(broker) as client:
        for number, topic_filter in enumerate(
            (b"$shoal/#", b"$shoal", b"$shoal/bans/+", b"$share/g/$shoal/#", b"$replay/-1h/$shoal/#"), 1
        ):
            await client.send(Subscribe(number, (subscription(topic_filter, 1),)))
            assert (await client.receive()).reasons == (Reason.NOT_AUTHORIZED,), topic_filter
        for topic_filter in (b"#", b"+/#", b"+/bans/+", b"$SYS/#"):
            await client.send(Subscribe(9, (subscription(topic_filter),)))
            assert (await client.receive()).reasons[0] == 0
        await client.send(Publish(b"$shoal/bans/client%3Ay", b"{}", 1, True, False, 7, {}))
        with pytest.raises(RefusedError):
            await (await broker.connect("inside")).subscribe("$shoal/#")
        while getattr(packet := await client.receive(), "packet_identifier", 0) != 7:
            assert not packet.topic.startswith(b"$shoal"), packet
        assert packet.reason == Reason.NOT_AUTHORIZED
    assert await banned(asked) == [("client", "x", "secret")]
    assert [row["client"] for row in await asked.rows("/clients")] == ["inside"]


def test_the_admission_of_the_program_around_it_is_asked_too() -> None:
    class Door:
        def admit(self, connect: Connect, peer: str | None) -> Refused | None:
            return Refused(Reason.SERVER_BUSY) if connect.client_identifier == b"busy" else None

    async def main() -> None:
        with trio.fail_after(TIMEOUT_S):
            async with open_broker(CONFIG, admission=Door()) as broker:
                assert await answer(broker, name=b"busy") == Reason.SERVER_BUSY
                assert await answer(broker, name=b"c") == Reason.SUCCESS

    trio.run(main)


def test_a_client_that_flaps_has_to_wait() -> None:
    async def main() -> None:
        config = msgspec.structs.replace(CONFIG, limits=Limits(reconnects_per_minute_max=2))
        with trio.fail_after(TIMEOUT_S):
            async with open_broker(config) as broker:
                answers = [await answer(broker, version, b"c") for version in (5, 4, 5, 4)]
                assert answers == [Reason.SUCCESS, 0, Reason.CONNECTION_RATE_EXCEEDED, ConnectReturn.SERVER_UNAVAILABLE]
                assert await answer(broker, name=b"d") == Reason.SUCCESS

    trio.run(main)


# Delays after failed logins ------------------------------------------------------------------------------------------


def guarded(tmp_path: Path, **limits: Any) -> Any:
    users = tmp_path / "users"
    users.write_bytes(b"".join(name + b":" + new_hash(SECRET, "sha512-pbkdf2", 2) + b"\n" for name in (b"ann", b"bob")))
    return msgspec.structs.replace(CONFIG, authenticator=(PasswordFileTable(file=str(users)),), limits=Limits(**limits))


def login(broker: Worker, user: str, password: bytes = SECRET) -> Any:
    return answer(broker, user_name=user, password=password)


def test_one_device_with_a_wrong_password_waits_and_its_neighbours_do_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr(login_guard.time, "monotonic", lambda: now[0])

    async def main() -> None:
        with trio.fail_after(TIMEOUT_S):
            async with open_broker(guarded(tmp_path)) as broker:
                for _ in range(FREE_OF_USER):
                    assert await login(broker, "ann", b"wrong") == Reason.BAD_USER_NAME_OR_PASSWORD
                assert await login(broker, "ann") == Reason.CONNECTION_RATE_EXCEEDED
                assert await login(broker, "bob") == Reason.SUCCESS
                now[0] += 1.0
                assert await login(broker, "ann") == Reason.SUCCESS
                assert await login(broker, "ann", b"wrong") == Reason.BAD_USER_NAME_OR_PASSWORD

    trio.run(main)


def test_from_an_address_that_tries_user_after_user_only_who_was_right_before_comes_in(tmp_path: Path) -> None:
    async def main() -> None:
        with trio.fail_after(TIMEOUT_S):
            async with open_broker(guarded(tmp_path, login_delay_max_s=1000)) as broker:
                assert await login(broker, "ann") == Reason.SUCCESS
                for number in range(FREE_OF_NETWORK):
                    assert await login(broker, f"u{number}", b"x") == Reason.BAD_USER_NAME_OR_PASSWORD
                for number in range(12):  # each failed attempt would make the delay longer
                    await login(broker, f"v{number}", b"x")
                assert await login(broker, "bob") == Reason.CONNECTION_RATE_EXCEEDED
                assert await login(broker, "ann") == Reason.SUCCESS

    trio.run(main)


def test_without_a_delay_nobody_waits(tmp_path: Path) -> None:
    async def main() -> None:
        with trio.fail_after(TIMEOUT_S):
            async with open_broker(guarded(tmp_path, login_delay_max_s=0)) as broker:
                for _ in range(2 * FREE_OF_NETWORK):
                    assert await login(broker, "ann", b"wrong") == Reason.BAD_USER_NAME_OR_PASSWORD
                assert await login(broker, "ann") == Reason.SUCCESS

    trio.run(main)
