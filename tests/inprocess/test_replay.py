"""$replay: stored messages come in order, as fast as the client takes them, and live ones follow without a seam."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio

from broker.config.loader import Config
from broker.config.schema import Archive, Replay
from broker.wire.packets import Ack, Disconnect, Publish, Suback, Subscribe, Unsuback, Unsubscribe, subscription
from broker.wire.properties import PacketType
from broker.wire.reasons import Reason
from broker.worker.worker import Worker, open_broker
from router.log.replay_position import decode_position, encode_position, parse_time
from tests.support.doubles import TopicAcl
from tests.support.embedded import CONFIG, TIMEOUT_S, Device, device

ARCHIVED = msgspec.structs.replace(CONFIG, archive=Archive(topic_filters=("sensors/#", "a/+")))
EVERYTHING = b"$replay/1970-01-01T00:00:00Z/"


def serve(folder: Path, run: Callable[[Worker], Awaitable[None]], config: Config = ARCHIVED, **seams: Any) -> None:
    """Run a broker that keeps what it has in a folder, once."""
    folder.mkdir(exist_ok=True)

    async def main() -> None:
        with trio.fail_after(TIMEOUT_S):
            async with open_broker(config, folder=folder, **seams) as broker:
                await run(broker)

    trio.run(main)


async def fill(broker: Worker, count: int, topic: bytes = b"sensors/%d", qos: int = 1, start: int = 0) -> None:
    """Have numbered messages stored, from a client of their own."""
    async with device(broker, b"source", 4) as source:
        for number in range(start, start + count):
            name = topic % number if b"%" in topic else topic
            if qos:
                await source.publish(name, b"%d" % number, qos)
            else:
                await source.send(Publish(name, b"%d" % number))
        await source.publish(b"sensors/end", b"end", 1)  # all of them have been taken when this is acknowledged


async def ask(client: Device, topic_filter: bytes, qos: int = 0, **options: Any) -> Reason:
    """Subscribe; returns the reason code of the answer."""
    await client.send(Subscribe(9, (subscription(topic_filter, qos, **options),)))
    packet = await client.receive()
    assert isinstance(packet, Suback), packet
    return Reason(packet.reasons[0])


async def take(client: Device, count: int) -> list[Publish]:
    """Take so many messages, and acknowledge them."""
    packets = []
    for _ in range(count):
        packet = await client.receive()
        assert isinstance(packet, Publish), packet
        if packet.qos:
            await client.send(Ack(PacketType.PUBACK, packet.packet_identifier))
        packets.append(packet)
    return packets


def payloads(packets: list[Publish]) -> list[bytes]:
    return [packet.payload for packet in packets]


def numbered(*numbers: int | range) -> list[bytes]:
    return [b"%d" % number for part in numbers for number in ([part] if isinstance(part, int) else part)]


def positions(packets: list[Publish]) -> list[str]:
    found = []
    for packet in packets:
        user = packet.properties["user_property"]
        found += [value for name, value in user if name == "shoal-position"]
    assert len(found) == len(packets)
    return found


async def in_sync(client: Device) -> None:
    """Nothing is on its way to the client but the answer to this."""
    await client.send(Unsubscribe(77, (b"nobody/asked",)))
    packet = await client.receive()
    assert isinstance(packet, Unsuback), packet


async def output_waits(broker: Worker) -> None:
    """A client does not read, so that what the system takes for it is used up, and half of what we keep for it."""
    half = broker.reactor.output_bytes_max // 2
    connections = broker.reactor.connections_snapshot
    while not any(connection.pending_bytes > half for connection in connections()):  # noqa: ASYNC110  (no event)
        await trio.sleep(0.005)


@pytest.mark.parametrize("version", [3, 4, 5])
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_stored_messages_come_in_order_and_then_live_ones(tmp_path: Path, version: int, qos: int) -> None:
    async def run(broker: Worker) -> None:
        await fill(broker, 5, qos=0)
        await fill(broker, 5, qos=1, start=5)
        await fill(broker, 3, b"elsewhere/%d")
        async with device(broker, b"reader", version) as reader:
            assert await ask(reader, EVERYTHING + b"sensors/+", qos) == min(qos, 1)
            stored = await take(reader, 12)
            assert payloads(stored) == [*numbered(range(5)), b"end", *numbered(range(5, 10)), b"end"]
            assert [packet.qos for packet in stored] == [0] * 5 + [min(qos, 1)] * 7
            assert not any(packet.retain or packet.dup for packet in stored)
            await fill(broker, 4, start=100)
            assert payloads(await take(reader, 6)) == [b"end", *numbered(range(100, 104)), b"end"]
            await in_sync(reader)
        assert broker.counters()["replayed_messages"] == 18

    serve(tmp_path, run)


def test_a_position_goes_on_right_behind_its_message(tmp_path: Path) -> None:
    async def run(broker: Worker) -> None:
        await fill(broker, 6)
        async with device(broker, b"reader") as reader:
            assert await ask(reader, EVERYTHING + b"sensors/#") == 0
            tokens = positions(await take(reader, 7))
            assert all(len(decode_position(token)) == 1 for token in tokens)
        for index in (0, 2, 5):
            async with device(broker, b"reader") as reader:
                await ask(reader, b"$replay/" + tokens[index].encode() + b"/sensors/#", 1)
                again = await take(reader, 6 - index)
                assert payloads(again) == [*numbered(range(index + 1, 6)), b"end"]
                assert positions(again) == tokens[index + 1 :]

    serve(tmp_path, run)


def test_a_time_skips_what_is_older(tmp_path: Path) -> None:
    async def run(broker: Worker) -> None:
        await fill(broker, 3)
        async with device(broker, b"reader", 4) as reader:
            for start in (b"-1h", b"-3600", b"2020-02-29T12:00:00Z"):
                await ask(reader, b"$replay/" + start + b"/sensors/#")
                assert payloads(await take(reader, 4)) == [*numbered(range(3)), b"end"]
            await ask(reader, b"$replay/2999-01-01T00:00:00Z/sensors/#")
            await in_sync(reader)

    serve(tmp_path, run)


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("topic_filter", [
    b"$replay/yesterday/a", b"$replay/-1h", b"$replay/-1h/", b"$replay//a", b"$replay/", b"$replay/-1h/a/#/b",
    b"$replay/-1h/$share/g/a", b"$replay/-1h/$replay/-1h/a", b"$replay/pAAAA/a", b"$replay/2020-01-01T00:00:00/a",
    b"$share/g/$replay/-1h/a"])  # fmt: skip
def test_a_start_or_filter_that_is_none_is_refused(tmp_path: Path, version: int, topic_filter: bytes) -> None:
    async def run(broker: Worker) -> None:
        async with device(broker, b"reader", version) as reader:
            refused = Reason.TOPIC_FILTER_INVALID if version == 5 else Reason.UNSPECIFIED_ERROR
            if version == 4 and topic_filter == b"$replay/-1h/a/#/b":
                refused = Reason.UNSPECIFIED_ERROR
            assert await ask(reader, topic_filter) == refused
            assert broker.reactor.replays.count == 0

    serve(tmp_path, run)


def test_the_acl_is_asked_about_the_filter_behind_the_start(tmp_path: Path) -> None:
    async def run(broker: Worker) -> None:
        async with device(broker, b"reader") as reader:
            assert await ask(reader, b"$replay/-1h/secret/#") == Reason.NOT_AUTHORIZED
            assert await ask(reader, b"$replay/-1h/open/#") == 0

    serve(tmp_path, run, acl=TopicAcl())


def test_nobody_publishes_to_replay(tmp_path: Path) -> None:
    async def run(broker: Worker) -> None:
        async with device(broker, b"writer") as writer:
            await writer.send(Publish(b"$replay/-1h/a", b"x", 1, False, False, 3))
            assert (await writer.receive()).reason == Reason.NOT_AUTHORIZED
            await writer.send(Publish(b"$replayed", b"x", 1, False, False, 3))
            assert (await writer.receive()).reason == Reason.NO_MATCHING_SUBSCRIBERS

    serve(tmp_path, run)


def test_a_message_comes_once_for_each_of_a_live_subscription_and_a_replay(tmp_path: Path) -> None:
    async def run(broker: Worker) -> None:
        async with device(broker, b"reader") as reader:
            await ask(reader, b"a/+")
            await ask(reader, EVERYTHING + b"a/+")
            await fill(broker, 3, b"a/b")
            both = await take(reader, 6)
            assert sorted(payloads(both)) == sorted(numbered(range(3)) * 2)
            replayed = [packet for packet in both if "user_property" in packet.properties]
            assert payloads(replayed) == numbered(range(3))

    serve(tmp_path, run)


def test_unsubscribe_ends_a_replay(tmp_path: Path) -> None:
    async def run(broker: Worker) -> None:
        topic_filter = b"$replay/2020-01-01T01:00:00+01:00/sensors/#"  # the time has a + that is no wildcard
        async with device(broker, b"reader") as reader:
            assert await ask(reader, topic_filter) == 0
            await fill(broker, 1)
            await take(reader, 2)
            await reader.send(Unsubscribe(3, (topic_filter, topic_filter)))
            answer = await reader.receive()
            assert answer.reasons == (Reason.SUCCESS, Reason.NO_SUBSCRIPTION_EXISTED)
            await fill(broker, 1)
            await in_sync(reader)
            assert broker.reactor.replays.count == 0

    serve(tmp_path, run)


def test_identifier_no_local_and_retain_as_published_hold_for_replays(tmp_path: Path) -> None:
    async def run(broker: Worker) -> None:
        async with device(broker, b"reader") as reader:
            await reader.publish(b"a/own", b"own", 1)
            await fill(broker, 1, b"a/other")
            async with device(broker, b"keeper") as keeper:
                await keeper.publish(b"a/kept", b"kept", 1, True)
            await reader.send(
                Subscribe(
                    5,
                    (subscription(EVERYTHING + b"a/+", 0, no_local=True, retain_as_published=True),),
                    {"subscription_identifier": 300},
                )
            )
            assert isinstance(await reader.receive(), Suback)
            packets = await take(reader, 2)
            assert payloads(packets) == [b"0", b"kept"]
            assert [packet.retain for packet in packets] == [False, True]
            assert [packet.properties["subscription_identifier"] for packet in packets] == [[300], [300]]

    serve(tmp_path, run)


def test_a_client_gets_no_more_than_its_window_and_goes_on_when_it_acknowledges(tmp_path: Path) -> None:
    async def run(broker: Worker) -> None:
        await fill(broker, 40)
        async with device(broker, b"reader", properties={"receive_maximum": 3}) as reader:
            assert await ask(reader, EVERYTHING + b"sensors/#", 1) == 1
            window = [await reader.receive() for _ in range(3)]
            await in_sync(reader)
            for packet in window:
                await reader.send(Ack(PacketType.PUBACK, packet.packet_identifier))
            rest = await take(reader, 38)
            assert payloads(window + rest) == [*numbered(range(40)), b"end"]

    serve(tmp_path, run)


def test_qos_0_waits_for_a_client_that_does_not_read_and_loses_nothing(tmp_path: Path) -> None:
    count, size = 160, 100_000

    async def run(broker: Worker) -> None:
        async with device(broker, b"source") as source:
            for number in range(count):
                await source.publish(b"a/b", b"%d " % number + bytes(size), 1)
        async with device(broker, b"reader") as reader:
            await reader.send(Subscribe(9, (subscription(EVERYTHING + b"a/b", 0),)))
            await output_waits(broker)
            assert isinstance(await reader.receive(), Suback)
            packets = await take(reader, count)
            assert [int(packet.payload.split()[0]) for packet in packets] == list(range(count))
        assert sum(count for name, count in broker.counters().items() if name.startswith("dropped_")) == 0

    serve(tmp_path, run)


def test_a_client_that_reads_slowly_gets_all_retained_messages(tmp_path: Path) -> None:
    count, size = 160, 100_000

    async def run(broker: Worker) -> None:
        async with device(broker, b"source") as source:
            for number in range(count):
                await source.publish(b"kept/%d" % number, bytes(size), 1, True)
        async with device(broker, b"reader") as reader:
            await reader.send(Subscribe(9, (subscription(b"kept/#", 0),)))
            await output_waits(broker)
            assert isinstance(await reader.receive(), Suback)
            assert len(await take(reader, count)) == count

    serve(tmp_path, run)


# Sessions -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("qos", [0, 1])
@pytest.mark.parametrize("restart", [False, True])
def test_a_durable_session_goes_on_where_it_was(tmp_path: Path, qos: int, restart: bool) -> None:
    durable = {"clean_start": False, "properties": {"session_expiry_interval": 1000}}
    found: list[Publish] = []

    async def first(broker: Worker) -> None:
        await fill(broker, 20)
        async with device(broker, b"reader", **durable) as reader:
            await ask(reader, EVERYTHING + b"sensors/#", qos)
            found.extend(await take(reader, 21))
            await in_sync(reader)
            await reader.send(Disconnect())
        await fill(broker, 5, start=20)
        if not restart:
            await second(broker)

    async def second(broker: Worker) -> None:
        async with device(broker, b"reader", **durable) as reader:
            found.extend(await take(reader, 6))
            await fill(broker, 5, start=25)
            found.extend(await take(reader, 6))
            await in_sync(reader)

    serve(tmp_path, first)
    if restart:
        serve(tmp_path, second)
    assert [payload for payload in payloads(found) if payload != b"end"] == numbered(range(30))


def test_what_was_not_acknowledged_comes_again_and_the_rest_behind_it(tmp_path: Path) -> None:
    durable = {"clean_start": False, "properties": {"session_expiry_interval": 1000, "receive_maximum": 4}}
    first_window: list[Publish] = []

    async def first(broker: Worker) -> None:
        await fill(broker, 10)
        async with device(broker, b"reader", **durable) as reader:
            await ask(reader, EVERYTHING + b"sensors/#", 1)
            first_window.extend([await reader.receive() for _ in range(4)])

    async def second(broker: Worker) -> None:
        async with device(broker, b"reader", **durable) as reader:
            again = await take(reader, 11)
            assert payloads(again) == [*numbered(range(10)), b"end"]
            assert [packet.dup for packet in again[:4]] == [True] * 4
            assert positions(again[:4]) == positions(first_window)
            await in_sync(reader)

    serve(tmp_path, first)
    serve(tmp_path, second)


def test_subscribing_again_begins_anew_unless_only_a_new_one_is_wanted(tmp_path: Path) -> None:
    async def run(broker: Worker) -> None:
        await fill(broker, 3)
        async with device(broker, b"reader") as reader:
            await ask(reader, EVERYTHING + b"sensors/#")
            await take(reader, 4)
            await ask(reader, EVERYTHING + b"sensors/#")
            assert len(await take(reader, 4)) == 4
            await ask(reader, EVERYTHING + b"sensors/#", retain_handling=1)
            await in_sync(reader)
            await fill(broker, 1)
            assert len(await take(reader, 2)) == 2
            assert broker.counters()["replays"] == 1

    serve(tmp_path, run)


# What is gone ---------------------------------------------------------------------------------------------------------


def test_a_client_is_told_how_much_retention_has_taken(tmp_path: Path) -> None:
    async def run(broker: Worker) -> None:
        assert broker.store is not None
        log = broker.store.log
        log.segment_bytes_max = 6000
        for part in range(4):
            await fill(broker, 30, start=30 * part)
        log.discard(log.headers[-1].segment)
        while len(log.headers) > 1:  # noqa: ASYNC110  (the log's thread knows no trio)
            await trio.sleep(0.005)
        first = log.headers[0].first_number
        async with device(broker, b"reader") as reader:
            await ask(reader, b"$replay/" + encode_position({0: 1}).encode() + b"/sensors/#")
            message = (await take(reader, 1))[0]
            assert ("shoal-replay-gap", str(first - 2)) in message.properties["user_property"]
            message = (await take(reader, 1))[0]
            assert [name for name, _ in message.properties["user_property"]] == ["shoal-time", "shoal-position"]
        assert broker.reactor.replays.records_missing == first - 2
        assert broker.counters()["replay_gaps"] == 1

    serve(tmp_path, run)


# Beside others --------------------------------------------------------------------------------------------------------


def test_many_replays_get_everything_while_others_publish(tmp_path: Path) -> None:
    readers, stored, live = 20, 200, 100

    async def run(broker: Worker) -> None:
        await fill(broker, stored, qos=0)

        async def read(index: int) -> None:
            async with device(broker, b"reader-%d" % index, 4 + index % 2) as reader:
                await ask(reader, EVERYTHING + b"sensors/#", index % 2)
                packets = await take(reader, stored + live + 2)
                numbers = [payload for payload in payloads(packets) if payload != b"end"]
                assert numbers == numbered(range(stored + live))

        async with trio.open_nursery() as nursery:
            for index in range(readers):
                nursery.start_soon(read, index)
            nursery.start_soon(fill, broker, live, b"sensors/%d", 1, stored)

    serve(tmp_path, run)


def test_without_a_data_folder_there_is_nothing_to_replay() -> None:
    async def main() -> None:
        with trio.fail_after(TIMEOUT_S):
            async with open_broker(CONFIG) as broker, device(broker) as reader:
                assert await ask(reader, b"$replay/-1h/a") == Reason.IMPLEMENTATION_SPECIFIC_ERROR
                await reader.send(Unsubscribe(3, (b"$replay/-1h/a",)))
                assert (await reader.receive()).reasons == (Reason.NO_SUBSCRIPTION_EXISTED,)

    trio.run(main)


def test_a_replayed_message_says_when_it_was_stored_and_that_is_a_start(tmp_path: Path) -> None:
    async def run(broker: Worker) -> None:
        before_us = broker.router.ledger.now_us
        await fill(broker, 3)
        async with device(broker, b"reader") as client:
            assert await ask(client, EVERYTHING + b"sensors/#") == Reason.SUCCESS
            found = await take(client, 4)
            times = [dict(packet.properties["user_property"])["shoal-time"] for packet in found]
            assert times == sorted(times)
            assert before_us - 1_000_000 <= parse_time(times[0], 0) <= broker.router.ledger.now_us + 1_000_000
            assert await ask(client, f"$replay/{times[-1]}/sensors/end".encode()) == Reason.SUCCESS
            assert payloads(await take(client, 1)) == [b"end"]

    serve(tmp_path, run)


@pytest.mark.parametrize("explained", [True, False])
def test_why_a_replay_is_refused_is_told_and_logged(tmp_path: Path, explained: bool) -> None:
    async def run(broker: Worker) -> None:
        properties = {} if explained else {"request_problem_information": 0}
        async with device(broker, b"reader", properties=properties) as client:
            await client.send(Subscribe(9, (subscription(b"$replay/yesterday/a"), subscription(b"$replay/-1h/a/#b"))))
            packet = await client.receive()
            assert isinstance(packet, Suback)
            assert set(packet.reasons) == {Reason.TOPIC_FILTER_INVALID}
            said = packet.properties.get("reason_string")
            if explained:
                assert said.startswith("'yesterday' is not a time")
                assert "; " in said
            else:
                assert said is None  # [MQTT-3.1.2-29]

    serve(tmp_path, run)


def test_replays_may_be_closed_to_clients_without_a_user_name(tmp_path: Path) -> None:
    closed = msgspec.structs.replace(ARCHIVED, replay=Replay(allow_anonymous=False))

    async def run(broker: Worker) -> None:
        async with device(broker, b"reader") as client:
            await client.send(Subscribe(9, (subscription(EVERYTHING + b"a/#"),)))
            packet = await client.receive()
            assert isinstance(packet, Suback)
            assert packet.reasons == (Reason.NOT_AUTHORIZED,)
            assert "replay.allow_anonymous" in packet.properties["reason_string"]

    serve(tmp_path, run, config=closed)
