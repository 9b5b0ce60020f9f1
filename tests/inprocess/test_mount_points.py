"""Clients of listeners with mount points: each sees its part of the tree as the whole, an operator sees them all."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio

from broker.auth.principal import Principal
from broker.config.listener import Listener
from broker.config.loader import Config, Limits, Shutdown
from broker.config.schema import Archive
from broker.wire.packets import (
    Ack,
    Connack,
    Connect,
    Disconnect,
    Publish,
    Suback,
    Subscribe,
    Unsuback,
    Unsubscribe,
    Will,
    subscription,
)
from broker.wire.properties import PacketType
from broker.wire.reasons import Reason
from broker.worker.worker import Worker, open_broker
from tests.support.certificates import certificates
from tests.support.conversation import open_over
from tests.support.embedded import TIMEOUT_S, Device

ONE, TWO, WHOLE = range(3)  # listeners
MOUNT_POINTS = ("one/", "two/", "")
KEPT = {"session_expiry_interval": 3600}
Run = Callable[[Worker], Awaitable[None]]


def settings(mount_points: tuple[str, ...] = MOUNT_POINTS, scheme: str = "tcp", **more: Any) -> Config:
    address = f"{scheme}://127.0.0.1:0"
    listener = certificates().listener(address) if scheme in ("tls", "wss") else Listener(address=address)
    return Config(
        listen=(),
        shutdown=Shutdown(drain_s=0.1),
        **more,
        listener=tuple(msgspec.structs.replace(listener, mount_point=mount_point) for mount_point in mount_points),
    )


def serve(run: Run, config: Config | None = None, folder: Path | None = None, **seams: Any) -> None:
    async def main() -> None:
        with trio.fail_after(TIMEOUT_S):
            async with open_broker(config or settings(), folder=folder, **seams) as broker:
                await run(broker)

    trio.run(main)


class Client(Device):
    """A network client that remembers its CONNACK."""

    connack: Connack

    async def subscribe(self, *topic_filters: bytes, qos: int = 0) -> list[Publish]:  # type: ignore[override]
        """Subscribe; returns what comes before the answer."""
        await self.send(Subscribe(1, tuple(subscription(one, qos) for one in topic_filters)))
        return await self.until(Suback)

    async def until(self, kind: type) -> list[Publish]:
        """Return the messages that come before a packet of a kind."""
        messages = []
        while isinstance(packet := await self.receive(), Publish):
            messages.append(packet)
        assert isinstance(packet, kind), packet
        return messages


@asynccontextmanager
async def client(broker: Worker, listener: int, name: bytes, version: int = 5, **connect: Any) -> AsyncIterator[Client]:
    address = broker.addresses[listener]
    end = await open_over(address.scheme, address.port, name)
    device = Client(end.stream, version, end.transform)  # type: ignore[arg-type]
    async with end.stream:
        await device.send(Connect(version, name, **connect))
        device.connack = await device.receive()
        yield device


async def answered(device: Client) -> list[Publish]:
    """Return the messages that come before the answer to something sent now."""
    await device.send(Unsubscribe(77, (b"nobody/asked",)))
    return await device.until(Unsuback)


def told(messages: list[Publish]) -> list[tuple[bytes, bytes]]:
    return [(message.topic, message.payload) for message in messages]


@pytest.mark.parametrize("scheme", ["tcp", "tls", "ws"])
@pytest.mark.parametrize("version", [3, 4, 5])
def test_two_never_see_one_another_and_the_whole_tree_sees_both(scheme: str, version: int) -> None:
    async def run(broker: Worker) -> None:
        async with (
            client(broker, ONE, b"1", version) as one,
            client(broker, TWO, b"2", version) as two,
            client(broker, WHOLE, b"w", version) as whole,
            client(broker, ONE, b"from1", version) as from_one,
            client(broker, TWO, b"from2", version) as from_two,
            client(broker, WHOLE, b"from", version) as from_whole,
        ):
            for device in (one, two, whole):
                await device.subscribe(b"#", b"+/+", b"+/#", b"/#", b"$own/#", b"$one/#", b"$SYS/#", b"$share/g/#")
                seen = await answered(device)
                assert device is whole or seen == []  # values of $SYS
            await from_one.publish(b"a/x", b"of one", 1)
            await from_two.publish(b"a/x", b"of two", 1)
            await from_one.publish(b"$own/x", b"own of one", 1)
            await from_two.publish(b"two/a", b"deeper", 2)
            for name in (b"a", b"one", b"one/", b"one/$own/x", b"two", b"$two", b"$SYSTEM/x"):
                await from_whole.publish(name, b"of nobody", 1)
            await from_whole.publish(b"one/b", b"to one", 1)
            seen_by_one, seen_by_two = told(await answered(one)), told(await answered(two))
            assert set(seen_by_one) == {(b"a/x", b"of one"), (b"$own/x", b"own of one"), (b"b", b"to one")}
            assert set(seen_by_two) == {(b"a/x", b"of two"), (b"two/a", b"deeper")}
            assert {
                (b"one/a/x", b"of one"),
                (b"two/a/x", b"of two"),
                (b"$one/own/x", b"own of one"),
                (b"two/two/a", b"deeper"),
            } <= set(told(await answered(whole)))

    serve(run, settings(scheme=scheme))


def names_seen(messages: list[Publish]) -> set[bytes]:
    return {message.topic for message in messages}


def test_nothing_of_another_part_comes_by_any_way() -> None:
    """Each way that a message has to a client: live, retained, will, shared, queued; and $SYS."""

    async def run(broker: Worker) -> None:
        async with client(broker, TWO, b"2") as two, client(broker, WHOLE, b"w") as whole:
            await two.publish(b"kept", b"two's", 1, retain=True)
            await whole.publish(b"one/kept", b"one's", 1, retain=True)
            await whole.publish(b"one", b"nobody's", 1, retain=True)
            await whole.publish(b"one/", b"nobody's", 1, retain=True)
            async with client(broker, ONE, b"away", clean_start=False, properties=KEPT) as away:
                assert await away.subscribe(b"#", qos=1) == []
                (kept,) = await answered(away)
                assert (kept.topic, kept.payload) == (b"kept", b"one's")
                await away.send(Ack(PacketType.PUBACK, kept.packet_identifier))
            async with client(broker, ONE, b"1") as one:
                await one.subscribe(b"#", b"$SYS/#", b"$SYS/broker/uptime", b"+", b"$share/g/#")
                assert names_seen(await answered(one)) == {b"kept"}
            async with client(broker, TWO, b"w2", will=Will(b"gone", b"two's", 1, True)) as leaving:
                await leaving.client.cut()
            async with client(
                broker, ONE, b"w1", will=Will(b"gone", b"one's", 1, False, {"response_topic": "answers"})
            ) as leaving:
                await leaving.client.cut()
            await whole.publish(b"two/x", b"two's", 1)
            async with client(broker, ONE, b"away", clean_start=False, properties=KEPT) as away:
                assert away.connack.session_present
                (will,) = await answered(away)
                assert (will.topic, will.payload) == (b"gone", b"one's")
                assert will.properties == {"response_topic": "answers"}
        assert broker.router.ledger.dropped()["outside_mount"] > 0

    serve(run)


def test_requests_and_answers_stay_in_their_part() -> None:
    async def run(broker: Worker) -> None:
        async with (
            client(broker, ONE, b"asks") as asks,
            client(broker, ONE, b"answers") as answers,
            client(broker, TWO, b"2") as two,
            client(broker, WHOLE, b"w") as whole,
        ):
            await answers.subscribe(b"requests")
            await asks.subscribe(b"replies/#")
            await whole.subscribe(b"one/requests")
            await two.subscribe(b"#")
            await asks.send(Publish(b"requests", b"?", properties={"response_topic": "replies/1"}))
            request = await answers.receive()
            assert request.properties["response_topic"] == "replies/1"
            operator = await whole.receive()
            assert (operator.topic, operator.properties["response_topic"]) == (b"one/requests", "one/replies/1")
            await answers.send(Publish(request.properties["response_topic"].encode(), b"!"))
            await whole.send(Publish(operator.properties["response_topic"].encode(), b"too"))
            assert {(await asks.receive()).payload for _ in range(2)} == {b"!", b"too"}
            # Who asks from elsewhere gets no answer from here, and nobody here learns where that is.
            await whole.send(Publish(b"one/requests", b"?", properties={"response_topic": "two/secret"}))
            assert "response_topic" not in (await answers.receive()).properties
            assert await answered(two) == []

    serve(run)


def test_topic_aliases_stand_for_what_the_client_says_and_sees() -> None:
    async def run(broker: Worker) -> None:
        async with (
            client(broker, ONE, b"from") as sender,
            client(broker, ONE, b"to", properties={"topic_alias_maximum": 2}) as receiver,
            client(broker, WHOLE, b"w", properties={"topic_alias_maximum": 2}) as whole,
        ):
            await receiver.subscribe(b"a/#")
            await whole.subscribe(b"#")
            await sender.send(Publish(b"a/x", b"1", properties={"topic_alias": 1}))
            await sender.send(Publish(b"", b"2", properties={"topic_alias": 1}))
            found = [await receiver.receive() for _ in range(2)]
            assert [(one.topic, one.properties["topic_alias"]) for one in found] == [(b"a/x", 1), (b"", 1)]
            found = [await whole.receive() for _ in range(2)]
            assert [(one.topic, one.properties["topic_alias"]) for one in found] == [(b"one/a/x", 1), (b"", 1)]

    serve(run)


def test_a_share_name_is_shared_within_a_part() -> None:
    async def run(broker: Worker) -> None:
        async with (
            client(broker, ONE, b"1") as one,
            client(broker, TWO, b"2") as two,
            client(broker, WHOLE, b"w") as whole,
        ):
            await one.subscribe(b"$share/g/jobs/#")
            await two.subscribe(b"$share/g/jobs/#")
            for number in range(4):
                await whole.publish(b"one/jobs/x", b"%d" % number)
            assert told(await answered(whole)) == []
            assert told(await answered(one)) == [(b"jobs/x", b"%d" % number) for number in range(4)]
            assert await answered(two) == []
            await one.send(Unsubscribe(5, (b"$share/g/jobs/#", b"$share/g/one/jobs/#")))
            assert [int(reason) for reason in (await one.receive()).reasons] == [0, 0x11]

    serve(run)


def test_what_is_replayed_is_of_the_part(tmp_path: Path) -> None:
    async def run(broker: Worker) -> None:
        async with (
            client(broker, ONE, b"1") as one,
            client(broker, ONE, b"from1") as from_one,
            client(broker, TWO, b"2") as two,
        ):
            await from_one.publish(b"log/a", b"one's", 1)
            await two.publish(b"log/a", b"two's", 1)
            found = await one.subscribe(b"$replay/-1h/#", b"$replay/-1h/log/+", b"$replay/-1h/one/#")
            found += [await one.receive() for _ in range(2 - len(found))]
            assert told(found) == [(b"log/a", b"one's")] * 2
            await two.publish(b"log/b", b"two's", 1)
            await from_one.publish(b"log/b", b"one's", 1)
            found = [await one.receive() for _ in range(2)]
            assert told(found) == [(b"log/b", b"one's")] * 2
            await one.send(Unsubscribe(5, (b"$replay/-1h/#", b"$replay/-1h/log/+", b"$replay/-1h/one/log/+")))
            assert [int(reason) for reason in (await one.receive()).reasons] == [0, 0, 0x11]
            await one.send(Subscribe(6, (subscription(b"$replay/-1h/$share/g/x", 0),)))
            assert (await one.receive()).reasons == (Reason.TOPIC_FILTER_INVALID,)

    serve(run, settings(archive=Archive(topic_filters=("#",))), tmp_path)


class Asked:
    """An ACL that says yes and notes what it was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, bytes]] = []

    def may_publish(self, principal: Principal, topic_name: bytes, qos: int, retain: bool) -> bool:
        self.asked.append(("publish", topic_name))
        return True

    def may_subscribe(self, principal: Principal, topic_filter: bytes, qos: int) -> bool:
        self.asked.append(("subscribe", topic_filter))
        return True


def test_the_acl_is_asked_about_the_names_of_the_broker() -> None:
    acl = Asked()

    async def run(broker: Worker) -> None:
        async with client(broker, ONE, b"1", will=Will(b"gone", b"", 0, False)) as one:
            await one.subscribe(b"a/+")
            await one.subscribe(b"$share/g/b")
            await one.publish(b"c", b"", 1)
            await one.publish(b"$own", b"", 1)
            await one.send(Disconnect(Reason.DISCONNECT_WITH_WILL_MESSAGE))
            assert await one.receive() is None
        assert acl.asked == [
            ("subscribe", b"one/a/+"),
            ("subscribe", b"one/b"),
            ("publish", b"one/c"),
            ("publish", b"$one/own"),
            ("publish", b"one/gone"),
        ]

    serve(run, acl=acl)


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize(
    ("before", "after", "stays"),
    [
        ("one/", "one/", True),
        ("one/", "two/", False),
        ("one/", "", False),
        ("", "one/", False),
        ("", "", True),
        ("one/", "one/deeper/", False),
    ],
)
def test_a_session_is_of_one_mount_point(tmp_path: Path, before: str, after: str, stays: bool, restarts: bool) -> None:
    """Who comes back by another listener, or finds another mount point at its own, begins anew."""

    async def leave(broker: Worker) -> None:
        async with client(broker, 0, b"c", clean_start=False, properties=KEPT) as device:
            await device.subscribe(b"deeper/#", qos=1)
        async with client(broker, 2, b"w") as whole:
            await whole.publish(before.encode() + b"deeper/x", b"waits", 1)

    async def come_back(broker: Worker) -> None:
        async with client(broker, 1, b"c", clean_start=False, properties=KEPT) as device:
            assert device.connack.session_present == stays
            assert told(await answered(device)) == ([(b"deeper/x", b"waits")] if stays else [])
            async with client(broker, 2, b"w") as whole:
                await whole.publish(before.encode() + b"deeper/x", b"live", 1)
            assert told(await answered(device)) == ([(b"deeper/x", b"live")] if stays else [])

    async def both(broker: Worker) -> None:
        await leave(broker)
        await come_back(broker)

    config = settings((before, after, ""))
    if restarts:
        serve(leave, config, tmp_path)
        serve(come_back, config, tmp_path)
    else:
        serve(both, config, tmp_path)


def test_names_that_are_too_long_under_the_mount_point_are_refused_as_too_long() -> None:
    async def run(broker: Worker) -> None:
        fits = b"x" * 96
        async with client(broker, ONE, b"1") as one:
            await one.publish(fits, b"", 1)
            await one.send(Subscribe(3, (subscription(fits, 0), subscription(fits + b"x", 0))))
            assert (await one.receive()).reasons == (0, Reason.TOPIC_FILTER_INVALID)
            await one.send(Publish(fits + b"x", b""))
            assert (await one.receive()).reason == Reason.TOPIC_NAME_INVALID
        async with client(broker, ONE, b"2", will=Will(fits + b"x", b"", 0, False)) as two:
            assert two.connack.reason == Reason.TOPIC_NAME_INVALID
        async with client(broker, ONE, b"3") as three:
            await three.send(Publish(b"x" * 65_535, b""))
            assert (await three.receive()).reason == Reason.TOPIC_NAME_INVALID

    serve(run, settings(limits=Limits(topic_bytes_max=100)))
