"""Clients inside the process beside real network clients, under both drivers of the reactor."""

import gc
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio

from broker.auth.principal import Principal
from broker.control.presence import Disconnected
from broker.wire.packets import Ack, Suback, Subscribe, subscription
from broker.wire.properties import PacketType
from broker.wire.reasons import CloseReason, Reason
from broker.worker.worker import Worker, open_broker
from shoal import InProcessClient, ReceivedMessage, RefusedError
from tests.support.doubles import FakeLog, TopicAcl
from tests.support.embedded import CONFIG, TIMEOUT_S, as_guest, as_task, both_drivers, device


async def take(client: InProcessClient, count: int = 1) -> list[ReceivedMessage]:
    """The next messages that a client receives."""
    return [await anext(client) for _ in range(count)]


async def nothing_waits(client: InProcessClient, sentinel: str = "nothing/more") -> None:
    """Nothing came but what was taken: a message published now is the next one."""
    await client.subscribe(sentinel)
    await client.publish(sentinel)
    assert (await anext(client)).topic_name == sentinel


# Messages ------------------------------------------------------------------------------------------------------------


@both_drivers
async def test_messages_go_from_network_clients_to_in_process_clients_and_back(broker: Worker) -> None:
    async with broker.client("gateway") as client:
        assert await client.subscribe("up/#", 2) == 2
        for version in (3, 4, 5):
            async with device(broker, b"d%d" % version, version) as network:
                await network.subscribe(b"down/#", 2)
                for qos in (0, 1, 2):
                    await network.publish(b"up/t", b"%d" % qos, qos)
                    assert await take(client) == [ReceivedMessage("up/t", b"%d" % qos, qos, False)]
                    assert await client.publish("down/ü", b"x", qos=qos) == 1
                    packet = await network.receive()
                    assert (packet.topic, packet.payload, packet.qos) == ("down/ü".encode(), b"x", qos)
                    if qos == 1:
                        await network.send(Ack(PacketType.PUBACK, packet.packet_identifier))
                    if qos == 2:
                        await network.send(Ack(PacketType.PUBREC, packet.packet_identifier))
                        assert (await network.receive()).type == PacketType.PUBREL
                        await network.send(Ack(PacketType.PUBCOMP, packet.packet_identifier))
        assert await client.publish("nobody/cares") == 0


@both_drivers
async def test_properties_survive_both_ways_and_an_alias_stays_with_its_connection(broker: Worker) -> None:
    properties = {
        "payload_format_indicator": 1, "message_expiry_interval": 3600, "content_type": "text/plain",
        "response_topic": "answers", "correlation_data": b"\0\1", "user_property": [("k", "v"), ("k", "w")]}
    async with broker.client("gateway") as client, device(broker) as network:
        await client.subscribe("#")
        await network.subscribe(b"down")
        await network.publish(b"up", b"x", 1, properties=properties | {"topic_alias": 1})
        (message,) = await take(client)
        assert message.properties == properties
        assert message.message_expiry_interval == 3600
        assert message.properties is not message.properties     # a copy: the reader may change it
        assert await client.publish("down", b"y", properties=message.properties) == 2
        assert (await network.receive()).properties == properties
        await client.publish("plain")
        assert [message.properties for message in await take(client, 2)] == [properties, {}]


@both_drivers
async def test_one_copy_has_the_highest_qos_and_all_identifiers_of_overlapping_subscriptions(broker: Worker) -> None:
    async with broker.client("one") as one, broker.client("two") as two:
        await one.subscribe("a/+", 0, subscription_identifier=1)
        await one.subscribe("a/#", 2, subscription_identifier=300_000)
        await one.subscribe("+/b", 1)
        await two.publish("a/b", b"x", qos=1)
        (message,) = await take(one)
        assert message.qos == 1
        assert sorted(message.subscription_identifiers) == [1, 300_000]
        await nothing_waits(one)


@both_drivers
async def test_no_local_keeps_a_client_s_own_messages_away_and_nobody_else_s(broker: Worker) -> None:
    async with broker.client("one") as one, broker.client("two") as two:
        await one.subscribe("t", no_local=True)
        assert await one.publish("t", b"own") == 0
        assert await two.publish("t", b"other") == 1
        assert [message.payload for message in await take(one)] == [b"other"]


@both_drivers
async def test_retained_messages_come_as_the_retain_handling_says(broker: Worker) -> None:
    async with broker.client("one") as one, broker.client("two") as two, device(broker) as network:
        await network.publish(b"r/1", b"network", 1, True)
        await one.publish("r/2", b"own", qos=2, retain=True)
        await two.subscribe("r/#", 1, subscription_identifier=5)
        assert await take(two, 2) == [
            ReceivedMessage("r/1", b"network", 1, True, (5,)), ReceivedMessage("r/2", b"own", 1, True, (5,))]
        await two.subscribe("r/#", 1, retain_handling=1)        # not new: nothing
        await two.subscribe("r/1", 1, retain_handling=2)
        await two.subscribe("$share/group/r/#", 1)              # never for a shared one
        await nothing_waits(two)
        await two.unsubscribe("$share/group/r/#")
        await one.publish("r/2", b"live", retain=True)
        assert [(message.payload, message.retain) for message in await take(two)] == [(b"live", False)]
        await two.subscribe("r/#", 1, retain_handling=2, retain_as_published=True)
        await one.publish("r/2", b"", retain=True)
        assert [(message.payload, message.retain) for message in await take(two)] == [(b"", True)]
        await network.subscribe(b"r/#")
        assert (await network.receive()).topic == b"r/1"


@both_drivers
async def test_a_retained_message_that_was_replaced_before_it_was_taken_is_passed_over(broker: Worker) -> None:
    async with broker.client("one", inbox_max=1) as one, broker.client("two") as two:
        for number in range(3):                                 # more than the inbox holds
            await two.publish(f"r/{number}", b"old", retain=True)
        await one.subscribe("r/#")
        await two.publish("r/1", b"new", retain=True)
        assert [(message.topic_name, message.payload, message.retain) for message in await take(one, 3)] == [
            ("r/0", b"old", True), ("r/2", b"old", True), ("r/1", b"new", False)]
        assert one.dropped == 0


@both_drivers
async def test_a_message_that_expired_in_the_inbox_is_not_handed_out(broker: Worker) -> None:
    async with broker.client("one") as one:
        await one.publish("r", b"retained", retain=True, properties={"message_expiry_interval": 0})
        await one.subscribe("#")
        await one.publish("t", b"expired", properties={"message_expiry_interval": 0})
        await one.publish("t", b"lives", properties={"message_expiry_interval": 60})
        came_ms = broker.reactor.look_at_clock()
        while broker.reactor.look_at_clock() <= came_ms + 1:    # it expires within the next millisecond
            await trio.lowlevel.checkpoint()
        (message,) = await take(one)
        assert (message.payload, message.message_expiry_interval) == (b"lives", 60)
        assert one.dropped == 2
        assert broker.counters()["dropped_expired"] == 2


@both_drivers
async def test_what_is_published_between_turns_expires_by_the_clock_not_by_the_last_turn(broker: Worker) -> None:
    async with broker.client("one") as one:
        await trio.lowlevel.checkpoint()
        before_ms = time.monotonic_ns() // 1_000_000 + 50
        while time.monotonic_ns() // 1_000_000 < before_ms:     # no turn meanwhile: nothing else runs
            pass
        await one.publish("t", b"x", retain=True, properties={"message_expiry_interval": 10})
        assert broker.router.retained.message_of(b"t").expires_at_ms >= before_ms + 10_000


@both_drivers
async def test_members_of_a_shared_subscription_in_and_out_of_the_process_share(broker: Worker) -> None:
    async with broker.client("one") as one, broker.client("two") as two, device(broker) as network:
        await one.subscribe("$share/g/t/#", 1)
        await two.subscribe("$share/g/t/#", 1)
        await network.subscribe(b"$share/g/t/#", 1)
        for number in range(9):
            assert await two.publish("t/x", b"%d" % number, qos=1) == 1
        assert (one.waiting, two.waiting) == (3, 3)
        got = [message.payload for message in await take(one, 3)]
        got += [(await network.receive()).payload for _ in range(3)]
        # Who leaves hands over what it has not taken (4.8.2).
        await one.unsubscribe("$share/g/t/#")
        await two.disconnect()
        got += [(await network.receive()).payload for _ in range(3)]
        assert sorted(got) == [b"%d" % number for number in range(9)]
        assert two.dropped == 0


@both_drivers
async def test_a_full_inbox_drops_what_comes_and_counts_it(broker: Worker) -> None:
    async with broker.client("one", inbox_max=2) as one, broker.client("two") as two:
        await one.subscribe("t", 1)
        assert [await two.publish("t", b"%d" % number, qos=1) for number in range(5)] == [1] * 5
        assert (one.waiting, one.dropped) == (2, 3)
        assert broker.counters()["dropped_inbox_full"] == 3
        assert [message.payload for message in await take(one, 2)] == [b"0", b"1"]
        assert await two.publish("t", b"room again", qos=1) == 1
        assert [message.payload for message in await take(one)] == [b"room again"]


@both_drivers
async def test_unsubscribe_says_whether_there_was_a_subscription(broker: Worker) -> None:
    async with broker.client("one") as one:
        await one.subscribe("t/+")
        await one.publish("t/1", b"before")
        assert await one.unsubscribe("t/+") is True
        assert await one.unsubscribe("t/+") is False
        assert await one.publish("t/1", b"after") == 0
        assert [message.payload for message in await take(one)] == [b"before"]


@both_drivers
async def test_ten_thousand_messages_leave_nothing_behind(broker: Worker) -> None:
    async with broker.client("one") as one, broker.client("two") as two, device(broker) as network:
        await one.subscribe("t")
        blocks = 0
        for number in range(11_000):
            if number == 1000:
                gc.collect()
                blocks = sys.getallocatedblocks()
            if number % 100 == 0:                               # some from outside, all in order
                await network.publish(b"t", b"%d" % number, 1)
            else:
                assert await two.publish("t", b"%d" % number) == 1
            assert (await anext(one)).payload == b"%d" % number
        gc.collect()
        assert sys.getallocatedblocks() - blocks < 500
        assert (one.dropped, one.waiting) == (0, 0)
        infos = {info.client_identifier: info for info in await broker.clients()}
        assert infos["one"].counters == {"messages_in": 0, "messages_out": 11_000, "messages_dropped": 0}
        assert infos["two"].counters["messages_in"] == 10_890
        assert infos["device"].counters["messages_in"] == 110


# Waiting, cancelling, ending -----------------------------------------------------------------------------------------


@both_drivers
async def test_a_task_that_waits_for_a_message_wakes_when_one_comes_and_its_cancellation_loses_none(
        broker: Worker) -> None:
    async with broker.client("one") as one, device(broker) as network, trio.open_nursery() as nursery:
        await one.subscribe("t")
        got: list[bytes] = []
        ready = trio.Event()

        async def receive() -> None:
            got.append((await anext(one)).payload)
            ready.set()

        waiting = trio.CancelScope()

        async def be_cancelled() -> None:
            with waiting:
                await anext(one)

        nursery.start_soon(be_cancelled)
        nursery.start_soon(receive)
        await trio.lowlevel.checkpoint()
        await trio.lowlevel.checkpoint()
        waiting.cancel()
        await network.publish(b"t", b"after", 1)
        await ready.wait()
        assert got == [b"after"]
        # Cancelled before it looks: the message stays.
        await network.publish(b"t", b"kept", 1)
        with trio.CancelScope() as scope:
            scope.cancel()
            await anext(one)
        assert scope.cancelled_caught
        assert [message.payload for message in await take(one)] == [b"kept"]
        with trio.CancelScope() as scope:
            scope.cancel()
            await one.publish("t", b"never")
        assert scope.cancelled_caught
        assert one.waiting == 0


@pytest.mark.parametrize("driver", [as_task, as_guest])
def test_a_publish_returns_when_its_record_is_durable(driver: Callable[..., None]) -> None:
    log = FakeLog()

    async def recorded(payload: bytes) -> None:
        while not any(record.kind == "accepted" and record.fields["payload"] == payload for record in log.records):
            await trio.lowlevel.checkpoint()

    async def run(broker: Worker) -> None:
        async with broker.client("one") as one, device(
                broker, clean_start=False, properties={"session_expiry_interval": 100}) as network:
            log.sync()
            await network.send(Subscribe(1, (subscription(b"t", 1),)))
            while len(log.records) < 2:
                await trio.lowlevel.checkpoint()
            log.sync()
            assert isinstance(await network.receive(), Suback)
            order: list[str] = []

            async def publish(payload: str, qos: int) -> None:
                await one.publish("t", payload.encode(), qos=qos)
                order.append(payload)

            async with trio.open_nursery() as nursery:
                nursery.start_soon(publish, "first", 1)
                await recorded(b"first")                         # the pump runs, though nothing came from outside
                await one.publish("t", b"zero", retain=True)     # QoS 0 waits for nobody
                assert order == []
                # A cancelled wait changes nothing for the message.
                with trio.CancelScope() as scope:
                    nursery.start_soon(cancel_soon, scope)
                    await one.publish("t", b"cancelled", qos=2)
                assert scope.cancelled_caught
                assert order == []
                await recorded(b"cancelled")
                log.sync()
            assert order == ["first"]
            payloads = []
            while len(payloads) < 3:
                packet = await network.receive()
                payloads.append(packet.payload)
                if packet.qos:
                    await network.send(Ack(PacketType.PUBACK, packet.packet_identifier))
            assert sorted(payloads) == [b"cancelled", b"first", b"zero"]
            assert one._settlements == {}

            async def publish_in_vain() -> None:
                with pytest.raises(trio.ClosedResourceError, match="before the message was durable"):
                    await publish("never known", 1)

            async with trio.open_nursery() as nursery:
                nursery.start_soon(publish_in_vain)
                await recorded(b"never known")
                await one.disconnect()

    log.on_append = lambda: log.sync() if log.records[-1].kind in ("session", "detached") else None
    driver(run, log_store=log)


@both_drivers
async def test_who_is_cancelled_on_the_way_in_leaves_no_client_behind(broker: Worker) -> None:
    """At every checkpoint between the call and the block, by both ways in."""
    async def by_client(entered: Callable[[], None]) -> None:
        async with broker.client("one"):
            entered()

    async def by_connect(entered: Callable[[], None]) -> None:
        async with await broker.connect("one"):
            entered()

    for way in (by_client, by_connect):
        for checkpoints in range(10):
            inside: list[bool] = []
            with trio.CancelScope() as scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(way, partial(inside.append, True))
                    for _ in range(checkpoints):
                        await trio.lowlevel.checkpoint()
                    scope.cancel()
            assert broker.in_process.clients == {}
        assert inside == [True]
    async with broker.client("one"):
        pass


async def cancel_soon(scope: trio.CancelScope) -> None:
    """Cancel it once its task waits."""
    for _ in range(5):
        await trio.lowlevel.checkpoint()
    scope.cancel()


@both_drivers
async def test_after_disconnect_nothing_is_left_and_the_name_is_free(broker: Worker) -> None:
    one = await broker.connect("one")
    await one.subscribe("t/#")
    with pytest.raises(ValueError, match="in-process client of this name is connected"):
        await broker.connect("one")
    await one.publish("t/1", b"not taken")
    await one.disconnect()
    await one.disconnect()
    assert [message async for message in one] == []
    assert (one.waiting, one.dropped) == (0, 1)
    for forbidden in (one.publish("t"), one.subscribe("t"), one.unsubscribe("t")):
        with pytest.raises(trio.ClosedResourceError):
            await forbidden
    async with broker.client("one") as again:
        assert await again.publish("t/1") == 0
        assert (await broker.clients())[0].subscriptions == 0
    assert await broker.clients() == []


@both_drivers
async def test_a_network_client_of_the_same_name_is_somebody_else(broker: Worker) -> None:
    async with broker.client("same") as inside, device(broker, b"same") as outside:
        await inside.subscribe("t", no_local=True)
        await outside.publish(b"t", b"x", 1)
        assert [message.payload for message in await take(inside)] == [b"x"]
        assert sorted(info.in_process for info in await broker.clients()) == [False, True]


def test_the_end_of_the_broker_ends_its_clients_once_they_have_taken_what_came() -> None:
    got: list[bytes] = []
    events: list[Any] = []

    async def main() -> None:
        async def receive(client: InProcessClient) -> None:
            got.extend([message.payload async for message in client])

        async def watch(broker: Worker, task_status: trio.TaskStatus[None]) -> None:
            async with broker.presence() as presence:
                task_status.started()
                events.extend([event async for event in presence])

        with trio.fail_after(TIMEOUT_S):
            async with trio.open_nursery() as nursery, open_broker(CONFIG) as broker:
                await nursery.start(watch, broker)
                client = await broker.connect("one")
                await client.subscribe("t")
                async with device(broker) as network:
                    await network.publish(b"t", b"1", 1)
                    await network.publish(b"t", b"2", 1)
                nursery.start_soon(receive, client)
            with pytest.raises(trio.ClosedResourceError):
                await client.publish("t")
            with pytest.raises(trio.ClosedResourceError):
                await broker.connect("late")

    trio.run(main)
    assert got == [b"1", b"2"]
    assert [type(event).__name__ for event in events] == ["Connected", "Connected", "Disconnected", "Disconnected"]
    assert Disconnected("one", CloseReason.SERVER_SHUTDOWN, in_process=True) in events


def test_a_cancelled_broker_ends_its_clients_too() -> None:
    async def main() -> None:
        async def receive(client: InProcessClient) -> None:
            assert [message async for message in client] == []
            ended.set()

        ended = trio.Event()
        with trio.fail_after(TIMEOUT_S):
            async with trio.open_nursery() as nursery:
                with trio.CancelScope() as scope:
                    async with open_broker(CONFIG) as broker:
                        nursery.start_soon(receive, await broker.connect("one"))
                        await trio.lowlevel.checkpoint()
                        scope.cancel()
                        await trio.sleep_forever()
                await ended.wait()

    trio.run(main)


def test_an_exception_out_of_the_block_leaves_as_it_is() -> None:
    async def run(broker: Worker) -> None:
        async with broker.client("one"):
            raise LookupError("the block's own")

    with pytest.raises(LookupError, match="the block's own"):
        as_task(run)


def test_a_router_that_fails_under_an_in_process_client_ends_the_worker() -> None:
    async def run(broker: Worker) -> None:
        async with broker.client("one") as one:
            # A router whose state is broken: nothing can be recorded while somebody looks at the records.
            with memoryview(broker.router.ledger.records), pytest.raises(AssertionError):
                await one.publish("t", b"x", retain=True)
            await trio.sleep_forever()

    with pytest.raises(BaseExceptionGroup) as caught:
        as_task(run, log_store=FakeLog())
    assert caught.group_contains(AssertionError)


# Input and permission ------------------------------------------------------------------------------------------------


@both_drivers
async def test_what_is_wrong_with_an_argument_is_said_with_its_name(broker: Worker) -> None:
    async with broker.client("one") as one:
        for call, error, text in (
            (lambda: one.publish("a/+"), ValueError, r"topic_name 'a/\+': a topic name has no \+ and no #"),
            (lambda: one.publish(""), ValueError, "topic_name: 1 to 65,535 bytes of UTF-8, not 0"),
            (lambda: one.publish("x" * 65_536), ValueError, "topic_name: 1 to 65,535 bytes of UTF-8, not 65,536"),
            (lambda: one.publish("a\0"), ValueError, r"topic_name: no U\+0000"),
            (lambda: one.publish("a\ud800"), ValueError, "topic_name: a surrogate has no UTF-8"),
            (lambda: one.publish(b"a"), TypeError, "topic_name is a str, not bytes"),
            (lambda: one.publish("a", "text"), TypeError, "payload is bytes, not str"),
            (lambda: one.publish("a", bytes(268_435_455)), ValueError, "payload: 268,435,455 bytes are more"),
            (lambda: one.publish("a", qos=3), ValueError, "qos is 0 to 2, not 3"),
            (lambda: one.publish("a", qos="1"), TypeError, "qos is an int, not str"),
            (lambda: one.publish("a", properties={"colour": 1}), ValueError, "properties: 'colour' is none of"),
            (lambda: one.publish("a", properties={"topic_alias": 1}), ValueError, "'topic_alias' is none of"),
            (lambda: one.publish("a", properties={"payload_format_indicator": 2}), ValueError,
             r"properties\['payload_format_indicator'\] is 0 to 1, not 2"),
            (lambda: one.publish("a", properties={"message_expiry_interval": -1}), ValueError, "not -1"),
            (lambda: one.publish("a", properties={"response_topic": "a/#"}), ValueError, r"\['response_topic'\] 'a/#'"),
            (lambda: one.publish("a", properties={"correlation_data": "x"}), TypeError, "is bytes, not str"),
            (lambda: one.publish("a", properties={"correlation_data": bytes(70_000)}), ValueError, "not 70,000"),
            (lambda: one.publish("a", properties={"user_property": {"a": "b"}}), TypeError, "is a list of"),
            (lambda: one.publish("a", properties={"user_property": [("a", "\0")]}), ValueError, r"\[0\] value: no U"),
            (lambda: one.subscribe("a#"), ValueError, "topic_filter 'a#': # fills a whole level"),
            (lambda: one.subscribe("$share//a"), ValueError, "a share name has at least one character"),
            (lambda: one.subscribe("a", 3), ValueError, "qos is 0 to 2, not 3"),
            (lambda: one.subscribe("a", retain_handling=3), ValueError, "retain_handling is 0 to 2, not 3"),
            (lambda: one.subscribe("a", subscription_identifier=0), ValueError, "subscription_identifier is 1 to"),
            (lambda: one.subscribe("$share/g/a", no_local=True), ValueError, "no_local: not with a shared"),
            (lambda: one.unsubscribe("a/#/b"), ValueError, "# is the last level"),
            (lambda: broker.connect(""), ValueError, "client_identifier: 1 to 65,535 bytes"),
            (lambda: broker.connect("x", inbox_max=0), ValueError, "inbox_max is 1 to"),
        ):
            with pytest.raises(error, match=text):
                await call()
        assert (await broker.clients())[0].counters["messages_in"] == 0
        assert set(broker.in_process.clients) == {"one"}


@pytest.mark.parametrize("driver", [as_task, as_guest])
def test_a_client_with_an_identity_is_subject_to_the_acl_and_one_without_is_trusted(
        driver: Callable[..., None]) -> None:
    async def run(broker: Worker) -> None:
        async with broker.client("trusted") as trusted, broker.client("ann", identity="ann") as ann:
            assert await trusted.subscribe("secret/#") == 0
            with pytest.raises(RefusedError, match=r"publish to 'secret/x': not authorized \(0x87\)") as caught:
                await ann.publish("secret/x", qos=1)
            assert caught.value.reason == Reason.NOT_AUTHORIZED
            for topic_filter in ("secret/#", "$share/g/secret/#"):
                with pytest.raises(RefusedError):
                    await ann.subscribe(topic_filter)
            assert broker.counters()["dropped_not_authorized"] == 1
            assert await trusted.publish("secret/x") == 1
            assert await ann.publish("public") == 0

    driver(run, acl=TopicAcl())


@pytest.mark.parametrize("driver", [as_task, as_guest])
def test_retained_messages_come_from_the_data_folder_however_many(driver: Callable[..., None], tmp_path: Path) -> None:
    async def run(broker: Worker) -> None:
        async with broker.client("one") as one, broker.client("two") as two:
            for number in range(200):
                await one.publish(f"t/{number}", b"%d" % number, qos=number == 199, retain=True)
            await one.publish("u", b"", retain=True)
            await two.subscribe("#")
            await one.publish("t/7", b"live")
            received = [await anext(two) for _ in range(201)]
            assert {(message.topic_name, message.payload) for message in received if message.retain} == {
                (f"t/{number}", b"%d" % number) for number in range(200)}
            assert (received[-1].payload, received[-1].retain) == (b"live", False)
            assert broker.metrics().retained_messages == 200
            # What is durable comes to lie in the index, and need not be kept in memory.
            while broker.router.retaining.index.pending:
                await trio.lowlevel.checkpoint()

    driver(run, folder=tmp_path)


async def test_a_client_has_what_was_read_when_the_broker_ends(tmp_path: Path) -> None:
    async with open_broker(CONFIG, folder=tmp_path) as broker:
        one = await broker.connect("one")
        for number in range(200):
            await one.publish(f"t/{number}", b"x", retain=True)
        await one.subscribe("#")
        await anext(one)
    assert 0 < len([message async for message in one]) < 199


class BrokenAcl:
    """An ACL that cannot answer; it is asked about whom it does not know."""

    def may_publish(self, principal: Principal, topic_name: bytes, qos: int, retain: bool) -> bool:
        raise KeyError(principal)

    def may_subscribe(self, principal: Principal, topic_filter: bytes, qos: int) -> bool:
        raise KeyError(principal)


class AsyncAcl:
    """An ACL whose author has not read that it answers at once."""

    async def may_publish(self, principal: Principal, topic_name: bytes, qos: int, retain: bool) -> bool:
        return True

    async def may_subscribe(self, principal: Principal, topic_filter: bytes, qos: int) -> bool:
        return True


@pytest.mark.parametrize("acl", [BrokenAcl(), AsyncAcl()])
@pytest.mark.parametrize("driver", [as_task, as_guest])
def test_an_acl_that_fails_refuses_in_process_clients_as_it_refuses_others(
        driver: Callable[..., None], acl: Any) -> None:
    async def run(broker: Worker) -> None:
        async with broker.client("one", identity="ann") as client, device(broker) as network:
            with pytest.raises(RefusedError, match=r"not authorized \(0x87\)"):
                await client.publish("t")
            with pytest.raises(RefusedError, match=r"not authorized \(0x87\)"):
                await client.subscribe("t")
            await network.send(Subscribe(1, (subscription(b"t", 0),)))
            suback = await network.receive()
            assert suback.reasons == (Reason.NOT_AUTHORIZED,)
            assert broker.counters()["dropped_not_authorized"] == 1

    driver(run, acl=acl)
