"""Clients inside the process beside real network clients, under both drivers of the reactor."""

import gc
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio

from broker.auth.principal import Principal
from broker.wire.packets import Ack, Subscribe, subscription
from broker.wire.properties import PacketType
from broker.wire.reasons import Reason
from broker.worker.worker import Worker, open_broker
from shoal import ReceivedMessage, RefusedError
from tests.support.doubles import TopicAcl
from tests.support.embedded import CONFIG, as_guest, as_task, both_drivers, device, nothing_waits, take

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
        "payload_format_indicator": 1,
        "message_expiry_interval": 3600,
        "content_type": "text/plain",
        "response_topic": "answers",
        "correlation_data": b"\0\1",
        "user_property": [("k", "v"), ("k", "w")],
    }
    async with broker.client("gateway") as client, device(broker) as network:
        await client.subscribe("#")
        await network.subscribe(b"down")
        await network.publish(b"up", b"x", 1, properties=properties | {"topic_alias": 1})
        (message,) = await take(client)
        assert message.properties == properties
        assert message.message_expiry_interval == 3600
        assert message.properties is not message.properties  # a copy: the reader may change it
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
            ReceivedMessage("r/1", b"network", 1, True, (5,)),
            ReceivedMessage("r/2", b"own", 1, True, (5,)),
        ]
        await two.subscribe("r/#", 1, retain_handling=1)  # not new: nothing
        await two.subscribe("r/1", 1, retain_handling=2)
        await two.subscribe("$share/group/r/#", 1)  # never for a shared one
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
        for number in range(3):  # more than the inbox holds
            await two.publish(f"r/{number}", b"old", retain=True)
        await one.subscribe("r/#")
        await two.publish("r/1", b"new", retain=True)
        assert [(message.topic_name, message.payload, message.retain) for message in await take(one, 3)] == [
            ("r/0", b"old", True),
            ("r/2", b"old", True),
            ("r/1", b"new", False),
        ]
        assert one.dropped == 0


@both_drivers
async def test_a_message_that_expired_in_the_inbox_is_not_handed_out(broker: Worker) -> None:
    async with broker.client("one") as one:
        await one.publish("r", b"retained", retain=True, properties={"message_expiry_interval": 0})
        await one.subscribe("#")
        await one.publish("t", b"expired", properties={"message_expiry_interval": 0})
        await one.publish("t", b"lives", properties={"message_expiry_interval": 60})
        came_ms = broker.reactor.look_at_clock()
        while broker.reactor.look_at_clock() <= came_ms + 1:  # it expires within the next millisecond
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
        while time.monotonic_ns() // 1_000_000 < before_ms:  # no turn meanwhile: nothing else runs
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
            if number % 100 == 0:  # some from outside, all in order
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
            (
                lambda: one.publish("a", properties={"payload_format_indicator": 2}),
                ValueError,
                r"properties\['payload_format_indicator'\] is 0 to 1, not 2",
            ),
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
    driver: Callable[..., None],
) -> None:
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
                (f"t/{number}", b"%d" % number) for number in range(200)
            }
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
    driver: Callable[..., None], acl: Any
) -> None:
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
