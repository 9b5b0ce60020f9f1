"""What a worker counts, driven without sockets and in virtual time wherever that is enough."""

import gc
import inspect
import itertools
import math
import re
import socket
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import msgspec
import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from broker.config.loader import Config, Limits, Mqtt, Shutdown
from broker.control.controller import OTHER_PROTOCOLS
from broker.telemetry.metrics import Durations, Metrics, collect, flat, merged
from broker.wire.packets import Ack, Connect, Disconnect, Pingreq, Publish, Subscribe, Unsubscribe, encode, subscription
from broker.wire.properties import PacketType
from broker.wire.reasons import CloseReason, Reason
from broker.worker.worker import CONNECTIONS_BEYOND, Worker, open_broker
from router.sessions.ledger import DROP_REASONS
from tests.support.conversation import MemoryBroker
from tests.support.doubles import QuickAuthenticator


def in_memory(function: Callable[[MemoryBroker], Any], config: Config | None = None) -> None:
    async def run() -> None:
        async with trio.open_nursery() as nursery:
            await function(MemoryBroker(config or Config(), nursery, None, None, QuickAuthenticator()))
            nursery.cancel_scope.cancel()

    trio.run(run)


def metrics_of(broker: MemoryBroker) -> Metrics:
    return collect(broker.hub, broker.controller)


async def client(broker: MemoryBroker, name: bytes, *, version: int = 5, clean: bool = True, **properties: Any) -> Any:
    """Return the connection of a client that is connected and has read its CONNACK."""
    connection = broker.hub.connect()
    connection.feed_bytes(encode(Connect(version, name, clean, properties=properties), version))
    await broker.settle()
    assert connection.is_open
    connection.take_output()
    return connection


async def feed(broker: MemoryBroker, connection: Any, *packets: Any, version: int = 5) -> bytes:
    for packet in packets:
        connection.feed_bytes(encode(packet, version))
    await broker.settle()
    output: bytes = connection.take_output()
    return output


def test_the_docstring_names_every_counter_once() -> None:
    for kind in (Metrics, Durations):
        named = re.findall(r"^    (\w+): \S", inspect.getdoc(kind).partition("Attributes:")[2], re.MULTILINE)
        assert named == [field.name for field in msgspec.structs.fields(kind)]


def test_packets_are_counted_by_type_and_messages_by_qos() -> None:
    async def run(broker: MemoryBroker) -> None:
        subscriber = await client(broker, b"s")
        publisher = await client(broker, b"p")
        await feed(broker, subscriber, Subscribe(1, (subscription(b"t", 2),)), Unsubscribe(2, (b"u",)))
        await feed(
            broker,
            publisher,
            Pingreq(),
            Publish(b"t", b"four"),
            Publish(b"t", b"x", 1, False, False, 1),
            Publish(b"t", b"yy", 2, False, False, 2),
            Ack(PacketType.PUBREL, 2),
        )
        await feed(broker, subscriber, Ack(PacketType.PUBACK, 1), Ack(PacketType.PUBREC, 2), Ack(PacketType.PUBCOMP, 2))
        await feed(broker, publisher, Disconnect())
        metrics = metrics_of(broker)
        received = {name: count for name, count in metrics.packets_in.items() if count}
        assert received == {
            "connect": 2,
            "publish": 3,
            "puback": 1,
            "pubrec": 1,
            "pubrel": 1,
            "pubcomp": 1,
            "subscribe": 1,
            "unsubscribe": 1,
            "pingreq": 1,
            "disconnect": 1,
        }
        sent = {name: count for name, count in metrics.packets_out.items() if count}
        assert sent == {
            "connack": 2,
            "publish": 3,
            "puback": 1,
            "pubrec": 1,
            "pubrel": 1,
            "pubcomp": 1,
            "suback": 1,
            "unsuback": 1,
            "pingresp": 1,
        }
        assert metrics.messages_in_by_qos == metrics.messages_out_by_qos == (1, 1, 1)
        assert metrics.messages_in == metrics.messages_out == 3
        assert metrics.payload_bytes_in == metrics.payload_bytes_out == 7
        assert metrics.ends == {"client_disconnect": 1}
        assert metrics.refused == {}

    in_memory(run)


def test_what_is_kept_is_counted_and_counted_down() -> None:
    async def run(broker: MemoryBroker) -> None:
        # Each session ends in another way: read to its end, expired, ended by a clean start.
        for name in (b"a", b"b", b"c"):
            connection = await client(broker, name, clean=False, session_expiry_interval=10, receive_maximum=2)
            await feed(broker, connection, Subscribe(1, (subscription(b"t", 2), subscription(b"$share/g/u", 1))))
        publisher = await client(broker, b"p")
        await feed(
            broker,
            publisher,
            Publish(b"kept", b"12345", 0, True),
            *(Publish(b"t", b"x" * 9, qos, False, False, number + 1) for number, qos in enumerate((1, 2, 1, 2, 1))),
        )
        metrics = metrics_of(broker)
        assert (metrics.sessions, metrics.sessions_connected, metrics.sessions_connected_max) == (4, 4, 4)
        assert (metrics.subscriptions, metrics.shared_subscriptions) == (6, 3)
        assert (metrics.retained_messages, metrics.retained_bytes) == (1, 9)
        assert (metrics.inflight_messages, metrics.queued_messages, metrics.queued_bytes) == (6, 9, 90)

        for name in (b"b", b"c"):
            broker.router.sessions[name].connection.feed_bytes(encode(Disconnect(), 5))
        a = broker.router.sessions[b"a"].connection
        await feed(broker, a, Ack(PacketType.PUBACK, 1), Ack(PacketType.PUBREC, 2, Reason.QUOTA_EXCEEDED))
        await feed(broker, a, Ack(PacketType.PUBACK, 3), Ack(PacketType.PUBREC, 4), Ack(PacketType.PUBCOMP, 4))
        metrics = metrics_of(broker)
        assert (metrics.sessions, metrics.sessions_connected, metrics.sessions_connected_max) == (4, 2, 4)
        assert (metrics.inflight_messages, metrics.queued_messages, metrics.queued_bytes) == (5, 6, 60)

        await feed(broker, a, Ack(PacketType.PUBACK, 5))
        await client(broker, b"c")
        await broker.wait(11_000)
        metrics = metrics_of(broker)
        assert (metrics.sessions, metrics.sessions_expired) == (3, 1)
        assert (metrics.subscriptions, metrics.shared_subscriptions) == (2, 1)
        assert (metrics.inflight_messages, metrics.queued_messages, metrics.queued_bytes) == (0, 0, 0)
        assert metrics.dropped == {"refused": 1, "session_ended": 6}

    in_memory(run)


def test_a_connection_knows_why_its_messages_were_dropped() -> None:
    async def run(broker: MemoryBroker) -> None:
        small = await client(broker, b"small", maximum_packet_size=100, receive_maximum=1)
        await feed(broker, small, Subscribe(1, (subscription(b"t", 1),)))
        publisher = await client(broker, b"p")
        await feed(
            broker,
            publisher,
            Publish(b"t", b"x" * 200),
            Publish(b"t", b"x" * 200, 1, False, False, 1),
            Publish(b"secret/1", b"x", 1, False, False, 2),
            *(Publish(b"t", b"x", 1, False, False, number) for number in range(3, 7)),
        )
        await feed(broker, small, Ack(PacketType.PUBACK, 1, Reason.QUOTA_EXCEEDED))
        assert small.dropped() == {"queue_full": 1, "too_large": 2, "refused": 1}
        assert small.counters()["messages_dropped"] == 4
        assert small.counters()["dropped_too_large"] == 2
        assert publisher.dropped() == {"not_authorized": 1}

        flood = Publish(b"t", b"x" * 80)
        stuck = await client(broker, b"stuck")
        await feed(broker, stuck, Subscribe(1, (subscription(b"t", 0),)))
        while not stuck.dropped():
            publisher.feed_bytes(encode(flood, 5) * 10)
            broker.hub.run_turn(broker.now_ms)
            small.take_output()
        assert stuck.dropped().keys() == {"output_full"}

        dropped = metrics_of(broker).dropped
        by_connection = [connection.dropped() for connection in (small, publisher, stuck)]
        assert dropped == {
            reason: count for reason in DROP_REASONS if (count := sum(each.get(reason, 0) for each in by_connection))
        }

    in_memory(run, Config(mqtt=Mqtt(queue_messages_max=2), limits=Limits(output_buffer_bytes_max=4096)))


def test_ends_and_refusals_are_counted_by_reason() -> None:
    async def run(broker: MemoryBroker) -> None:
        for data in (
            encode(Connect(5, b"banned"), 5),
            encode(Connect(4, b"x", user_name="refuse"), 4),
            b"\xf0\0",
            b"\x10\2\0\0",
            encode(Connect(4, b"ok"), 4) + b"\xf0\0",
        ):
            broker.hub.connect().feed_bytes(data)
            await broker.settle()
        broker.hub.connect()
        await broker.wait(6000)
        metrics = metrics_of(broker)
        assert metrics.ends == {
            "banned": 1,
            "bad_user_name_or_password": 1,
            "protocol_error": 2,
            "malformed_packet": 1,
            "connect_timeout": 1,
        }
        assert metrics.refused == metrics.ends | {"protocol_error": 1}
        assert metrics.connections == 6

    in_memory(run, Config(limits=Limits(connect_timeout_s=5)))


async def test_turns_their_phases_and_their_lags_are_measured() -> None:
    async with open_broker(Config(listen=("tcp://127.0.0.1:0",), shutdown=Shutdown(drain_s=0.1))) as worker:
        assert worker.acceptor is not None
        stream = await trio.open_tcp_stream("127.0.0.1", worker.acceptor.addresses[0].port)
        async with stream:
            await stream.send_all(encode(Connect(5, b"c"), 5) + encode(Subscribe(1, (subscription(b"t", 0),)), 5))
            got = 0
            for sent in range(1, 301):
                await stream.send_all(encode(Publish(b"t", b"x" * 1000), 5))
                while got < sent * 1000:
                    got += len(await stream.receive_some())
        metrics = worker.metrics()
        assert metrics.turns.count == worker.reactor.turns >= 100
        assert sum(metrics.turns.buckets) == metrics.turns.count
        assert list(metrics.turns.buckets) == worker.reactor.turn_histogram()
        assert metrics.turn_lags.count >= 100
        assert min(metrics.receive_us, metrics.route_us, metrics.control_us, metrics.flush_us) > 0
        phases_us = (
            metrics.receive_us
            + metrics.route_us
            + metrics.control_us
            + metrics.flush_us
            + metrics.pump_us
            + metrics.guest_us
        )
        # Every nanosecond of a turn is some phase's; each turn is rounded down to microseconds.
        assert metrics.turns.total_us <= phases_us <= metrics.turns.total_us + metrics.turns.count + 10
        assert metrics.bytes_in > 300_000
        assert metrics.bytes_out > 300_000
        assert 0 < metrics.resident_bytes <= metrics.resident_bytes_max
    closed = worker.metrics()
    assert closed.resident_bytes == 0 < closed.resident_bytes_max


def test_the_first_turn_is_late_for_nobody() -> None:
    worker = Worker(Config(listen=("tcp://127.0.0.1:0",)))
    worker.listen()
    assert worker.acceptor is not None
    with socket.create_connection(("127.0.0.1", worker.acceptor.addresses[0].port)):
        worker.reactor.turn_once(True)
        lags = worker.metrics().turn_lags
    worker.close()
    assert (lags.count, lags.max_us) == (1, 0)


async def test_pauses_of_accepting_are_counted_by_reason() -> None:
    config = Config(listen=("tcp://127.0.0.1:0",), limits=Limits(connections_max=1), shutdown=Shutdown(drain_s=0.1))
    async with open_broker(config) as worker:
        assert worker.acceptor is not None
        where = ("127.0.0.1", worker.acceptor.addresses[0].port)
        with ExitStack() as clients, trio.fail_after(30):
            for _ in range(1 + CONNECTIONS_BEYOND + 1):
                clients.enter_context(socket.create_connection(where))
            while not worker.acceptor.pauses:
                await trio.lowlevel.checkpoint()
            assert worker.metrics().accept_pauses == {"connections_max": 1}


def test_counters_have_plain_names_in_a_log_line() -> None:
    async def run(broker: MemoryBroker) -> None:
        publisher = await client(broker, b"p")
        await feed(broker, publisher, Publish(b"secret/1", b"x", 1, False, False, 1))
        counters = flat(metrics_of(broker))
        assert all(isinstance(count, int) for count in counters.values())
        assert counters["dropped_not_authorized"] == 1
        assert counters["messages_in_qos1"] == counters["messages_in"] == 1
        assert counters["packets_in_connect"] == 1
        assert "dropped_expired" not in counters
        assert counters["turns_p99_us"] == 0

    in_memory(run)


@given(st.lists(st.integers(0, 1 << 22), min_size=1), st.sampled_from([0.5, 0.9, 0.99, 1.0]))
def test_a_percentile_is_at_most_twice_the_exact_one(durations_us: list[int], share: float) -> None:
    buckets = [0] * 24
    for duration_us in durations_us:
        buckets[max(duration_us, 1).bit_length() - 1] += 1
    counted = Durations(len(durations_us), sum(durations_us), max(durations_us), tuple(buckets))
    exact = sorted(durations_us)[max(math.ceil(share * len(durations_us)), 1) - 1]
    assert exact <= counted.percentile_us(share) <= max(2 * exact, 2)


def test_there_is_no_percentile_of_nothing() -> None:
    assert Durations().percentile_us(0.99) == 0
    assert Durations(0, 0, 0, (0,) * 24).percentile_us(0.99) == 0


def test_output_is_counted_as_long_as_it_holds_a_buffer() -> None:
    async def run(broker: MemoryBroker) -> None:
        connection = await client(broker, b"c")
        gc.collect()  # what other tests left in this process
        before = metrics_of(broker).output_buffer_bytes
        connection.write_packet(b"\xd0\0" * 3000)
        assert before + 6000 <= metrics_of(broker).output_buffer_bytes <= before + 64_000
        connection.take_output()
        assert metrics_of(broker).output_buffer_bytes == before

    in_memory(run)


@pytest.mark.parametrize("packet", [b"\xc0\0\xc0\0", b"\xc0\0" * 3])
def test_several_packets_in_one_piece_are_counted_each(packet: bytes) -> None:
    async def run(broker: MemoryBroker) -> None:
        connection = await client(broker, b"c")
        connection.write_packet(b"\xd0\0\x20\x80\x01" + b"x" * 128 + b"\xd0\0")
        connection.feed_bytes(packet)
        metrics = metrics_of(broker)
        assert metrics.packets_in["pingreq"] == len(packet) // 2
        assert metrics.packets_out["pingresp"] == 2 + len(packet) // 2
        assert metrics.packets_out["connack"] == 2

    in_memory(run)


@pytest.mark.parametrize("other", [CloseReason.TLS_ON_PLAIN_PORT, CloseReason.HTTP_ON_PLAIN_PORT])
def test_words_of_another_protocol_are_no_packets(other: CloseReason) -> None:
    hello = b"\x16\x03\x01\x02\0" if other == CloseReason.TLS_ON_PLAIN_PORT else b"GET / HTTP/1.1\r\n"

    async def run(broker: MemoryBroker) -> None:
        connection = broker.hub.connect()
        connection.feed_bytes(hello)
        await broker.settle()
        assert connection.take_output() == OTHER_PROTOCOLS[other]
        metrics = metrics_of(broker)
        assert metrics.ends == {other: 1}
        assert not any(metrics.packets_out.values())

    in_memory(run)


def test_a_connection_counts_every_byte_that_goes_out() -> None:
    async def run(broker: MemoryBroker) -> None:
        connection = broker.hub.connect()
        sent = 0
        for packet in (
            Connect(5, b"c"),
            Subscribe(1, (subscription(b"t", 1),)),
            Pingreq(),
            Publish(b"t", b"x", 1, False, False, 1),
            Publish(b"t", b"y"),
        ):
            sent += len(await feed(broker, connection, packet))
            assert connection.counters()["bytes_out"] == sent > 0

    in_memory(run)


def test_the_counters_of_several_workers_are_added_up_and_what_all_of_them_say_is_not() -> None:
    parts = []
    for shift in (1, 10):
        numbers = itertools.count(shift)
        fields: dict[str, Any] = {}
        for name, of_type in Metrics.__annotations__.items():
            if of_type == "int":
                fields[name] = next(numbers)
            elif of_type == "Durations":
                fields[name] = Durations(shift, 5 * shift, 7 * shift, (shift,) * shift)
            elif of_type.startswith("tuple"):
                fields[name] = (shift, 0, 1)
            else:
                fields[name] = {"both": shift, str(shift): 1}
        parts.append(Metrics(**fields))
    one, other = parts
    total = merged(parts)
    assert merged([one]) == one
    assert total.turns == Durations(11, 55, 70, (11, *[10] * 9))
    assert total.messages_in_by_qos == (11, 0, 2)
    assert total.dropped == {"both": 11, "1": 1, "10": 1}
    assert total.certificate_days == {"both": 1, "1": 1, "10": 1}
    as_one = {
        "uptime_ms",
        "reloads",
        "reloads_failed",
        "storage_replay_age_ms",
        "storage_trouble",
        "storage_full",
        "retained_messages",
        "retained_bytes",
    }
    for name in Metrics.__struct_fields__:
        values = getattr(one, name), getattr(other, name)
        if isinstance(values[0], int):
            assert getattr(total, name) == (max(values) if name in as_one else sum(values)), name
    decoded = msgspec.msgpack.decode(msgspec.msgpack.encode(total), type=Metrics)
    assert decoded == total
