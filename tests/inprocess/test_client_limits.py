"""Limits of some clients: by user name, by group, by listener."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio

from broker.auth.outcome import Accepted, Outcome
from broker.auth.principal import Principal
from broker.config.limit import Limit
from broker.config.listener import Listener
from broker.config.loader import Config, ConfigError, Limits, Mqtt, load
from broker.control.client_limits import LimitRules
from broker.reactor.shared_counts import SLOTS, UserPlaces, clear
from broker.wire.packets import Connect, Disconnect, Publish, Subscribe, subscription
from broker.wire.reasons import CloseReason, Reason
from broker.worker.worker import Worker, open_broker
from tests.support.embedded import CONFIG, Device, until

TIMEOUT_S = 60
opened: list[Device] = []  # whose sockets are closed at a broker's end
USUAL = Limits(subscriptions_per_client_max=4)


class ByName:
    """Lets in everybody; what stands behind a dot in the user name is the group."""

    def authenticate(self, connect: Connect, exchange: Any) -> Outcome:
        name = connect.user_name
        return Accepted(name, groups=() if name is None else (name.partition(".")[2],))


@asynccontextmanager
async def serving(*limits: Limit, **more: Any) -> AsyncIterator[Worker]:
    seams = {"folder": more.pop("folder")} if "folder" in more else {}
    config = msgspec.structs.replace(CONFIG, limits=USUAL, limit=limits, **more)
    with trio.fail_after(TIMEOUT_S):
        async with open_broker(config, authenticator=ByName(), **seams) as broker:
            yield broker
            for client in opened:
                await client.client.cut()
            opened.clear()


async def came(
    broker: Worker, name: bytes, user: str | None = None, listener: int = 0, version: int = 5, **more: Any
) -> tuple[Device, int]:
    """Return a client, and what its CONNECT was answered."""
    client, answer = await answered(broker, Connect(version, name, user_name=user, **more), listener)
    return client, int(answer.reason)


async def answered(broker: Worker, connect: Connect, listener: int = 0) -> tuple[Device, Any]:
    """Return a client, and its CONNACK."""
    client = Device(await trio.open_tcp_stream("127.0.0.1", broker.addresses[listener].port), connect.version)
    opened.append(client)
    await client.send(connect)
    return client, await client.receive()


async def codes(client: Device, count: int) -> list[int]:
    await client.send(Subscribe(1, tuple(subscription(b"t/%d" % number, 1) for number in range(count))))
    return [int(code) for code in (await client.receive()).reasons]


FULL = Reason.QUOTA_EXCEEDED


async def test_subscriptions_are_limited_by_user_and_group_and_listener() -> None:
    listeners = (Listener(address="tcp://127.0.0.1:0", subscriptions_per_client_max=3),)
    async with serving(
        Limit(users=("ann",), subscriptions_per_client_max=2),
        Limit(groups=("ops",), subscriptions_per_client_max=6),
        Limit(anonymous=True, subscriptions_per_client_max=1),
        listener=listeners,
    ) as broker:
        for user, listener, allowed in (
            ("ann", 0, 2), ("ann", 1, 2), ("bob.ops", 0, 6), ("bob.ops", 1, 6), ("zoe", 0, 4), ("zoe", 1, 3),
            (None, 1, 1),
        ):  # fmt: skip
            client, _ = await came(broker, b"c", user, listener)
            assert await codes(client, 7) == [1] * allowed + [FULL] * (7 - allowed), (user, listener)


async def test_the_connections_of_a_user_are_counted() -> None:
    async with serving(
        Limit(users=("ann", "bob"), connections_per_user_max=2), Limit(connections_per_user_max=3)
    ) as broker:
        assert (await came(broker, b"1", "ann"))[1] == 0
        second, reason = await came(broker, b"2", "ann")
        assert reason == 0
        _, answer = await answered(broker, Connect(5, b"3", user_name="ann"))
        assert answer.reason == FULL
        assert answer.properties == {"reason_string": "the user has as many connections as it may"}
        assert (await came(broker, b"3", "ann", version=4))[1] == 3  # server unavailable
        await until(lambda: broker.controller.refused[CloseReason.CONNECTIONS_PER_USER_MAX] == 2)
        # It takes over a connection of its own; others have places of theirs.
        assert (await came(broker, b"1", "ann"))[1] == 0
        assert (await came(broker, b"3", "bob"))[1] == 0
        assert [(await came(broker, b"z%d" % number, "zoe"))[1] for number in range(4)] == [0, 0, 0, FULL]
        assert [(await came(broker, b"n%d" % number))[1] for number in range(5)] == [0] * 5
        # Who takes over the connection of another user needs a place.
        assert (await came(broker, b"z0", "ann"))[1] == FULL
        await second.send(Disconnect(Reason.SUCCESS))
        assert await second.receive() is None
        assert (await came(broker, b"z0", "ann"))[1] == 0
        assert (await came(broker, b"z3", "zoe"))[1] == 0


async def test_a_rate_of_some_clients_holds_for_them_alone() -> None:
    async with serving(Limit(users=("ann",), messages_per_second_max=10)) as broker:
        slow, _ = await came(broker, b"slow", "ann")
        fast, _ = await came(broker, b"fast", "bob")
        for client in (slow, fast):
            for number in range(1, 31):
                await client.send(Publish(b"t", b"x", 1, packet_identifier=number))
        for number in range(1, 31):
            assert (await fast.receive()).packet_identifier == number
        await until(lambda: broker.metrics().throttled)
        pauses = {
            connection.session.client_identifier: connection.paused_by
            for connection in broker.reactor.connections_snapshot()
        }
        assert pauses[b"fast"] == []
        for number in range(1, 31):
            assert (await slow.receive()).packet_identifier == number


async def test_the_rate_of_a_listener_holds_for_its_clients() -> None:
    listener = Listener(address="tcp://127.0.0.1:0", bytes_per_second_max=1000, connects_per_second_max=1)
    async with serving(listener=(listener,)) as broker:
        slow, _ = await came(broker, b"slow", listener=1)
        await slow.send(Publish(b"t", b"x" * 1500, 1, packet_identifier=1))
        await until(lambda: broker.metrics().throttled)
        assert (await came(broker, b"2", listener=1))[1] == 0
        assert (await came(broker, b"3", listener=1))[1] == Reason.CONNECTION_RATE_EXCEEDED
        assert (await came(broker, b"3"))[1] == 0


async def test_a_queue_is_limited_also_after_a_restart(tmp_path: Path) -> None:
    limits = Limit(users=("ann",), queue_messages_max=2)
    kept: dict[str, Any] = {"clean_start": False, "properties": {"session_expiry_interval": 1000}}
    mqtt = Mqtt(queue_messages_max=4)

    async def publish(broker: Worker, count: int) -> int:
        async with broker.client("publisher") as publisher:
            for _ in range(count):
                await publisher.publish("t", b"x", qos=1)
        return broker.metrics().queued_messages

    async with serving(limits, mqtt=mqtt, folder=tmp_path) as broker:
        for name, user in ((b"a", "ann"), (b"b", "bob")):
            client, _ = await came(broker, name, user, **kept)
            await client.send(Subscribe(1, (subscription(b"t", 1),)))
            await client.receive()
            await client.send(Disconnect(Reason.SUCCESS))
            assert await client.receive() is None
        assert await publish(broker, 1) == 2
    async with serving(limits, mqtt=mqtt, folder=tmp_path) as broker:
        assert await publish(broker, 5) == 2 + 4
        client, _ = await came(broker, b"a", "ann", **kept)
        assert [type(await client.receive()) for _ in range(2)] == [Publish] * 2


def rules_of(**more: Any) -> LimitRules:
    return LimitRules(Config(**more))


def test_the_first_table_that_fits_holds_and_then_the_listener() -> None:
    listener = Listener(address="tcp://127.0.0.1:1", messages_per_second_max=7, queue_bytes_max=5000)
    rules = rules_of(
        listen=("tcp://127.0.0.1:0",), listener=(listener,),
        limit=(
            Limit(users=("ann",), messages_per_second_max=9), Limit(messages_per_second_max=1, queue_messages_max=3),
        ),
        mqtt=Mqtt(queue_messages_max=11),
    )  # fmt: skip

    def told(user: str | None, listener: int) -> tuple[Any, ...]:
        found = rules.of(Principal(user, b"c", None, listener))
        assert found is rules.of(Principal(user, b"d", None, listener))
        assert found.rates is not None
        return found.rates.messages_per_second_max, found.session.queue_messages_max, found.session.queue_bytes_max

    assert told("ann", 0) == (9, 11, 16_777_216)
    assert told("ann", 1) == (9, 11, 5000)
    assert told("bob", 1) == (1, 3, 5000)
    assert told(None, 77) == (1, 3, 16_777_216)  # of a log, by a listener that there was
    assert rules_of().are_all_usual
    assert rules_of().of(None).rates is None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[[limit]]\nusers = ['a']\n", 'limit 1: found "a table without a limit", expected one or more limits'),
        (
            "[[limit]]\nqueue_bytes_max = 1\n[[limit]]\nusers = ['a']\nqueue_bytes_max = 1\n",
            "expected it to be the last",
        ),
        ("[[limit]]\nuser = 'a'\n", "limit 1.user: found an unknown setting"),
        ("[[limit]]\nconnections_per_user_max = -1\n", "limit 1.connections_per_user_max: found -1"),
        ("limit = 3\n", "expected tables: [[limit]]"),
    ],
)
def test_what_is_wrong_in_a_table_is_said(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "shoal.toml").write_text(text)
    with pytest.raises(ConfigError) as caught:
        load(tmp_path / "shoal.toml", {}, {})
    assert said in str(caught.value)


def test_workers_count_users_together(tmp_path: Path) -> None:
    one, two = (UserPlaces(tmp_path, number, 2) for number in range(2))
    place = one.take(7, 2)
    assert place >= 0
    assert two.take(7, 2) == place
    assert one.take(7, 2) == -1
    # Another user in the same slot has the next one.
    other = two.take(7 + SLOTS, 1)
    assert other == place + 1
    assert one.take(7 + SLOTS, 1) == -1
    one.give(place)
    assert two.take(7, 2) == place
    # What a killed worker had is given back.
    clear(tmp_path, 1)
    assert [one.take(7, 2), one.take(7, 2), one.take(7, 2)] == [place, place, -1]
    assert one.take(0, 1) >= 0
    # Who finds no slot near by is counted otherwise.
    assert [one.take(5 + number * SLOTS, 1) for number in range(1, 300)][-1] == -2
