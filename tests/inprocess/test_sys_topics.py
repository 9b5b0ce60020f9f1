"""The topics under $SYS: in memory and in virtual time, then with real clients and beside a real mosquitto."""

import math
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import trio

from broker.config.loader import Config, Mqtt, Shutdown
from broker.telemetry import sys_topics
from broker.telemetry.metrics import collect
from broker.telemetry.sys_topics import FAMILIES, LOADS, PREFIX, SPANS_MIN, TOPICS, LoadAverages, SysTopics, values_of
from broker.version import VERSION
from broker.wire.packets import Connect, Disconnect, Publish, Subscribe, Will, decode, encode, next_frame, subscription
from broker.worker.worker import open_broker
from tests.support.conversation import MemoryBroker
from tests.support.doubles import FakeLog, QuickAuthenticator
from tests.support.process import BrokerProcess

ROOT = Path(__file__).resolve().parents[2]
INTERVAL_S = 10
# What mosquitto 2.0.11 was seen to publish; mosquitto itself is asked again where it is installed.
MOSQUITTO = {
    "bytes/received",
    "bytes/sent",
    "clients/active",
    "clients/connected",
    "clients/disconnected",
    "clients/expired",
    "clients/inactive",
    "clients/maximum",
    "clients/total",
    "heap/current",
    "heap/maximum",
    "messages/received",
    "messages/sent",
    "messages/stored",
    "publish/bytes/received",
    "publish/bytes/sent",
    "publish/messages/dropped",
    "publish/messages/received",
    "publish/messages/sent",
    "retained messages/count",
    "shared_subscriptions/count",
    "store/messages/bytes",
    "store/messages/count",
    "subscriptions/count",
    "uptime",
    "version",
} | {
    f"load/{name}/{span}min"
    for span in (1, 5, 15)
    for name in (
        "bytes/received",
        "bytes/sent",
        "connections",
        "messages/received",
        "messages/sent",
        "publish/dropped",
        "publish/received",
        "publish/sent",
        "sockets",
    )
}


class World:
    """A broker in memory with $SYS, whose intervals pass when they are told to."""

    def __init__(self, broker: MemoryBroker) -> None:
        self.broker = broker
        self.measured = 0
        self.topics = SysTopics(broker.router, self._measure, INTERVAL_S)

    def _measure(self) -> Any:
        self.measured += 1
        return collect(self.broker.hub, self.broker.controller)

    async def client(self, name: bytes, *filters: bytes, options: dict[str, Any] | None = None, **fields: Any) -> Any:
        """Return a connected client's connection; what comes after its SUBACK is still to be taken."""
        properties = fields.pop("properties", {})
        connection = self.broker.hub.connect()
        connection.feed_bytes(encode(Connect(5, name, properties=properties, **fields), 5))
        await self.broker.settle()
        connection.take_output()
        if filters:
            wanted = tuple(subscription(topic_filter, 2, **(options or {})) for topic_filter in filters)
            connection.feed_bytes(encode(Subscribe(1, wanted), 5))
            await self.broker.settle()
        return connection

    async def interval(self) -> None:
        """Let an interval pass and its values be told."""
        await self.broker.wait(INTERVAL_S * 1000)
        self.topics.tick()
        while self.topics.tell():
            pass
        await self.broker.settle()


def published(connection: Any) -> list[Publish]:
    """The PUBLISH packets that a connection was sent since it was last asked."""
    buffer = bytearray(connection.take_output())
    found = []
    while (frame := next_frame(buffer)) is not None:
        packet = decode(*frame, 5)
        if isinstance(packet, Publish):
            found.append(packet)
    assert not buffer
    return found


def told(connection: Any) -> dict[str, str]:
    """Topic names behind $SYS/broker/ and payloads of what a connection was sent, each at most once."""
    packets = published(connection)
    topics = {packet.topic.decode().removeprefix(PREFIX): packet.payload.decode() for packet in packets}
    assert len(topics) == len(packets)
    return topics


def in_world(function: Callable[[World], Any], log: FakeLog | None = None) -> None:
    async def run() -> None:
        async with trio.open_nursery() as nursery:
            # No aliases: a topic name stands in every packet.
            broker = MemoryBroker(Config(), nursery, log, None, QuickAuthenticator())
            await function(World(broker))
            nursery.cancel_scope.cancel()

    trio.run(run)


# Values ---------------------------------------------------------------------------------------------------------------


def test_every_name_that_mosquitto_publishes_is_there() -> None:
    async def run(world: World) -> None:
        found = told(await world.client(b"c", b"$SYS/#"))
        assert MOSQUITTO - found.keys() == set()
        assert found["version"] == f"shoal version {VERSION}"
        assert found["uptime"] == "0 seconds"
        assert found["load/messages/received/1min"] == "0.00"

    in_world(run)


def test_a_new_subscriber_gets_the_current_values_as_retained_and_then_what_changed() -> None:
    # Proves: [MQTT3-3.3.1-8]
    async def run(world: World) -> None:
        first = await world.client(b"first", b"$SYS/#")
        packets = published(first)
        assert packets
        assert all(packet.retain and packet.qos == 0 for packet in packets)

        await world.interval()
        packets = published(first)
        changes = {packet.topic.decode().removeprefix(PREFIX): packet.payload.decode() for packet in packets}
        assert not any(packet.retain for packet in packets)
        assert changes["uptime"] == "10 seconds"
        assert changes["subscriptions/count"] == "1"
        assert "clients/connected" not in changes
        assert "version" not in changes
        assert "clients/expired" not in changes

        # The next one gets what the first was told, all of it, at once.
        second = told(await world.client(b"second", b"$SYS/broker/+", b"$SYS/broker/clients/connected"))
        assert second == {"uptime": "10 seconds", "version": f"shoal version {VERSION}", "clients/connected": "1"}
        assert published(first) == []
        await world.interval()
        assert told(first)["clients/connected"] == "2"

    in_world(run)


def test_a_subscriber_after_a_time_without_any_gets_new_values() -> None:
    async def run(world: World) -> None:
        first = await world.client(b"first", b"$SYS/broker/uptime")
        assert told(first) == {"uptime": "0 seconds"}
        first.feed_bytes(encode(Disconnect(), 5))
        await world.broker.wait(123_000)
        assert told(await world.client(b"second", b"$SYS/broker/uptime")) == {"uptime": "123 seconds"}

    in_world(run)


def test_retain_handling_and_retain_as_published_count_here_too() -> None:
    # Proves: [MQTT-3.3.1-10] [MQTT-3.3.1-11] [MQTT-3.3.1-13]
    async def run(world: World) -> None:
        without = await world.client(b"a", b"$SYS/#", options={"retain_handling": 2})
        assert published(without) == []
        as_published = await world.client(b"b", b"$SYS/broker/uptime", options={"retain_as_published": True})
        published(as_published)
        await world.interval()
        assert [packet.retain for packet in published(as_published)] == [True]
        assert told(without)["uptime"] == "10 seconds"

    in_world(run)


@pytest.mark.parametrize("topic_filter", [b"#", b"+/#", b"+/broker/uptime", b"+/+/uptime"])
def test_a_filter_that_begins_with_a_wildcard_gets_nothing_of_it(topic_filter: bytes) -> None:
    # Proves: [MQTT-4.7.2-1]
    async def run(world: World) -> None:
        everything = await world.client(b"a", topic_filter)
        explorer = await world.client(b"b", b"#", b"$SYS/#")
        assert "uptime" in told(explorer)
        await world.interval()
        assert told(explorer)["uptime"] == "10 seconds"
        assert published(everything) == []

    in_world(run)


def test_nothing_is_computed_while_nobody_subscribes_but_the_load_averages() -> None:
    async def run(world: World) -> None:
        publisher = await world.client(b"p")
        for _ in range(60):
            publisher.feed_bytes(encode(Publish(b"t", b"x"), 5))
        await world.interval()
        assert world.topics.match(b"$SYS/#") == []
        found = told(await world.client(b"s", b"$SYS/broker/load/publish/received/+"))
        # 60 messages in 10 s are 360 a minute.
        assert found == {
            f"load/publish/received/{span}min": f"{360 * (1 - math.exp(-10 / 60 / span)):.2f}" for span in SPANS_MIN
        }

    in_world(run)


def test_a_load_average_approaches_the_rate_and_fades() -> None:
    async def run(world: World) -> None:
        loads = LoadAverages()
        publisher = await world.client(b"p")
        for _ in range(360):
            for _ in range(10):
                publisher.feed_bytes(encode(Publish(b"t", b"x"), 5))
            world.broker.now_ms += 10_000
            world.broker.hub.run_turn(world.broker.now_ms)
            loads.take(collect(world.broker.hub, world.broker.controller))
        rates = [loads.per_minute[f"load/publish/received/{span}min"] for span in SPANS_MIN]
        assert rates == pytest.approx([60, 60, 60], rel=0.02)
        loads.take(collect(world.broker.hub, world.broker.controller))  # the same moment again
        assert rates == [loads.per_minute[f"load/publish/received/{span}min"] for span in SPANS_MIN]
        world.broker.hub.run_turn(world.broker.now_ms + 60_000)
        loads.take(collect(world.broker.hub, world.broker.controller))
        faded = [loads.per_minute[f"load/publish/received/{span}min"] for span in SPANS_MIN]
        assert faded == pytest.approx([60 / math.e, 60 * math.exp(-1 / 5), 60 * math.exp(-1 / 15)], rel=0.02)

    in_world(run)


def test_reasons_appear_with_their_first_case() -> None:
    async def run(world: World) -> None:
        watcher = await world.client(b"w", b"$SYS/broker/shoal/#")
        assert "shoal/dropped/not_authorized" not in told(watcher)
        publisher = await world.client(b"p")
        publisher.feed_bytes(encode(Publish(b"$SYS/broker/uptime", b"0"), 5) + b"\xf0\0")
        await world.interval()
        found = told(watcher)
        assert found["shoal/dropped/not_authorized"] == found["shoal/ends/protocol_error"] == "1"

    in_world(run)


# What it is not -------------------------------------------------------------------------------------------------------


def test_it_is_neither_retained_nor_queued_nor_logged_nor_dropped() -> None:
    async def run(world: World) -> None:
        watcher = await world.client(b"w", b"$SYS/#")
        away = await world.client(
            b"away", b"$SYS/#", b"$share/g/$SYS/#", clean_start=False, properties={"session_expiry_interval": 1000}
        )
        away.feed_bytes(encode(Disconnect(), 5))
        await world.broker.settle()
        published(watcher)
        log = world.broker.log
        assert log is not None
        records = len(log.records)
        await world.interval()
        assert told(watcher)["clients/disconnected"] == "1"
        metrics = collect(world.broker.hub, world.broker.controller)
        assert (metrics.retained_messages, metrics.queued_messages, metrics.dropped) == (0, 0, {})
        assert len(log.records) == records
        back = await world.client(b"away", clean_start=False, properties={"session_expiry_interval": 1000})
        assert published(back) == []

    in_world(run, FakeLog())


def test_a_shared_subscription_divides_it_among_those_connected() -> None:
    async def run(world: World) -> None:
        members = [await world.client(name, b"$share/g/$SYS/broker/#") for name in (b"a", b"b")]
        assert [published(member) for member in members] == [[], []]
        await world.interval()
        topics = [told(member) for member in members]
        assert not topics[0].keys() & topics[1].keys()
        assert (topics[0] | topics[1]).keys() >= MOSQUITTO

    in_world(run)


def test_a_client_s_will_and_retained_message_do_not_reach_it() -> None:
    async def run(world: World) -> None:
        will = Will(b"$SYS/broker/version", b"will", 1, True)
        publisher = await world.client(b"p", will=will)
        publisher.feed_bytes(encode(Publish(b"$SYS/broker/version", b"retained", 1, True, False, 1), 5))
        await world.broker.settle()
        publisher.feed_bytes(b"\xf0\0")
        await world.broker.settle()
        assert world.broker.router.ledger.dropped() == {"not_authorized": 2}
        assert publisher.dropped() == {"not_authorized": 1}
        assert told(await world.client(b"s", b"$SYS/broker/version")) == {"version": f"shoal version {VERSION}"}
        assert world.broker.router.retained.count == 0

    in_world(run)


def test_many_subscribers_are_told_in_slices() -> None:
    async def run(world: World) -> None:
        watchers = [await world.client(b"w%d" % number, b"$SYS/#") for number in range(100)]
        for watcher in watchers:
            published(watcher)
        await world.broker.wait(INTERVAL_S * 1000)
        world.topics.tick()
        # A subscriber who comes between two slices gets every value once.
        assert world.topics.tell()
        assert 1000 <= sum(len(published(watcher)) for watcher in watchers) < 1100
        late = await world.client(b"late", b"$SYS/broker/clients/#", b"$SYS/broker/uptime")
        assert told(late).keys() >= {"uptime", "clients/total"}
        while world.topics.tell():
            pass
        await world.broker.settle()
        topics = [told(watcher).keys() for watcher in watchers]
        assert all(each == topics[0] for each in topics)

    in_world(run)


def test_measuring_does_not_look_at_sessions_one_by_one() -> None:
    # Of all that measuring calls, Python's and C's, nothing is called more often because there are more sessions.
    async def run(world: World) -> None:
        calls: list[int] = []
        for number in range(300):
            await world.client(b"c%d" % number)
            if number in (1, 299):
                events = 0

                def count(frame: Any, event: str, argument: Any) -> None:
                    nonlocal events
                    events += 1

                sys.setprofile(count)
                try:
                    list(values_of(collect(world.broker.hub, world.broker.controller), world.topics.loads.per_minute))
                finally:
                    sys.setprofile(None)
                calls.append(events)
        assert calls[0] == calls[1] > 100

    in_world(run)


# The page -------------------------------------------------------------------------------------------------------------


def test_the_page_lists_what_the_code_publishes() -> None:
    assert (ROOT / "docs" / "sys-topics.md").read_text(encoding="utf-8") == sys_topics.page(), (
        "python -m broker.telemetry.sys_topics > docs/sys-topics.md"
    )


def test_every_published_topic_is_on_the_page() -> None:
    async def run(world: World) -> None:
        watcher = await world.client(b"w", b"$SYS/#")
        await world.interval()
        listed = {topic.name for topic in TOPICS} | {f"load/{name}/{span}min" for name in LOADS for span in SPANS_MIN}
        families = tuple(f"{family.name}/" for family in FAMILIES)
        buffer = published(watcher)
        assert buffer
        for packet in buffer:
            name = packet.topic.decode().removeprefix(PREFIX)
            assert name in listed or (
                name.startswith(families)
                and name.count("/") == 1 + max(family.count("/") - 1 for family in families if name.startswith(family))
            ), name

    in_world(run)


# Real programs --------------------------------------------------------------------------------------------------------


def listed_by_mosquitto_sub(port: int, *options: str, seconds: int = 3) -> list[tuple[str, str, bool]]:
    """(topic, payload, RETAIN) of all that mosquitto_sub receives in so many seconds."""
    result = subprocess.run(
        ["mosquitto_sub", "-p", str(port), "-F", "%r %t\t%p", "-W", str(seconds), *options],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    lines = [line.split("\t", 1) for line in result.stdout.splitlines()]
    return [(flag_and_topic[2:], payload, flag_and_topic[0] == "1") for flag_and_topic, payload in lines]


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path, environment={"SHOAL_MQTT__SYS_INTERVAL_S": "0.5"}) as running:
        yield running


@pytest.mark.skipif(shutil.which("mosquitto_sub") is None, reason="mosquitto_sub is not installed")
def test_a_client_that_subscribes_everything_and_sys_is_served_both(broker: BrokerProcess) -> None:
    with socket.create_connection(("127.0.0.1", broker.port)) as publisher:
        publisher.sendall(encode(Connect(4, b"p"), 4) + encode(Publish(b"mine/kept", b"1", 0, True), 4))
        assert publisher.recv(100)
        received = listed_by_mosquitto_sub(broker.port, "-t", "#", "-t", "$SYS/#")
    assert ("mine/kept", "1", True) in received
    kept = [topic.removeprefix(PREFIX) for topic, _, retain in received if retain and topic.startswith("$SYS/")]
    assert len(kept) == len(set(kept))
    assert MOSQUITTO - set(kept) == set()
    changed = [(topic, payload) for topic, payload, retain in received if not retain]
    assert {f"{PREFIX}uptime", f"{PREFIX}messages/sent", f"{PREFIX}shoal/guest_lag/count"} <= {
        topic for topic, _ in changed
    }
    assert (f"{PREFIX}clients/connected", "2", True) in received
    # A value is told again only when it is another one.
    for topic in {topic for topic, _ in changed}:
        payloads = [payload for name, payload in changed if name == topic]
        assert all(before != after for before, after in pairwise(payloads)), topic


@pytest.mark.skipif(
    shutil.which("mosquitto_sub") is None or shutil.which("mosquitto") is None, reason="mosquitto is not installed"
)
def test_the_mosquitto_of_this_machine_publishes_no_name_that_we_lack(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    settings = tmp_path / "mosquitto.conf"
    settings.write_text(f"listener {port} 127.0.0.1\nallow_anonymous true\nsys_interval 1\n")
    program = shutil.which("mosquitto")
    assert program is not None
    with subprocess.Popen([program, "-c", str(settings)], stderr=subprocess.DEVNULL) as process:
        try:
            names: set[str] = set()
            for _ in range(20):
                names = {topic for topic, _, _ in listed_by_mosquitto_sub(port, "-t", "$SYS/#", seconds=2)}
                if names:
                    break
        finally:
            process.terminate()
    ours = {topic.name for topic in TOPICS} | {f"load/{name}/{span}min" for name in LOADS for span in SPANS_MIN}
    assert {re.sub(r"^\$SYS/broker/", "", name) for name in names} - ours == set()
    assert names


async def test_an_interval_of_0_leaves_it_out() -> None:
    config = Config(listen=("tcp://127.0.0.1:0",), mqtt=Mqtt(sys_interval_s=0), shutdown=Shutdown(drain_s=0.1))
    async with open_broker(config) as worker:
        assert worker.sys_topics is None
        session, _ = worker.router.open_session(b"c", True, 0)
        assert worker.router.subscribe(session, b"$SYS/#", 0) == []
        worker.router.detach_session(session, False)
