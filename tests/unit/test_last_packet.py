"""What happens to a connection in the rest of the turn in which its end was decided."""

import trio

from broker.config.loader import load
from broker.wire.packets import (
    Ack,
    Connack,
    Connect,
    Disconnect,
    Packet,
    Publish,
    Suback,
    Subscribe,
    decode,
    encode,
    next_frame,
    subscription,
)
from broker.wire.properties import PacketType
from broker.wire.reasons import Reason
from tests.support.conversation import MemoryBroker, MemoryClient
from tests.support.doubles import QuickAuthenticator


async def heard(client: MemoryClient) -> list[Packet]:
    await client.broker.settle()
    data = bytearray(client.connection.take_output())
    packets = []
    while (frame := next_frame(data)) is not None:
        packets.append(decode(*frame, 5))
    assert not data
    return packets


def test_nothing_is_sent_behind_a_disconnect_and_nothing_is_lost() -> None:
    # Proves: [MQTT-3.14.4-1]
    async def run() -> None:
        async with trio.open_nursery() as nursery:
            broker = MemoryBroker(load(None, {}, {}), nursery, None, None, QuickAuthenticator())
            bad, publisher = await broker.connect(), await broker.connect()
            connect = Connect(5, b"bad", False, properties={"session_expiry_interval": 60})
            await bad.send(encode(connect, 5) + encode(Subscribe(1, (subscription(b"t", 2),)), 5), False)
            await publisher.send(encode(Connect(5, b"publisher"), 5), False)
            assert [type(packet) for packet in await heard(bad)] == [Connack, Suback]
            await heard(publisher)
            # In one turn: a malformed packet, and then what others have for that client.
            bad.connection.feed_bytes(b"\xc1\x00")
            for qos in (0, 1, 2):
                publisher.connection.feed_bytes(encode(Publish(b"t", b"%d" % qos, qos, packet_identifier=qos), 5))
            packets = await heard(bad)
            assert [(type(packet), getattr(packet, "reason", None)) for packet in packets] == [
                (Disconnect, Reason.MALFORMED_PACKET)
            ]
            assert await heard(publisher) == [Ack(PacketType.PUBACK, 1), Ack(PacketType.PUBREC, 2)]
            assert broker.router.ledger.dropped() == {"offline": 1}
            # What had to be delivered is, when the client comes back.
            again = await broker.connect()
            await again.send(encode(connect, 5), False)
            accepted, *owed = await heard(again)
            assert isinstance(accepted, Connack)
            assert accepted.session_present
            assert [(packet.payload, packet.dup) for packet in owed if isinstance(packet, Publish)] == [
                (b"1", False),
                (b"2", False),
            ]
            nursery.cancel_scope.cancel()

    trio.run(run)


def test_a_connection_whose_end_is_decided_is_not_ended_again_by_a_takeover() -> None:
    # Proves: [MQTT-3.14.4-1]
    async def run() -> None:
        async with trio.open_nursery() as nursery:
            broker = MemoryBroker(load(None, {}, {}), nursery, None, None, QuickAuthenticator())
            first, second = await broker.connect(), await broker.connect()
            await first.send(encode(Connect(5, b"c"), 5), False)
            await heard(first)
            second.connection.feed_bytes(encode(Connect(5, b"c"), 5))
            first.connection.feed_bytes(b"\xc1\x00")
            assert [packet.reason for packet in await heard(first) if isinstance(packet, Disconnect)] == [
                Reason.MALFORMED_PACKET
            ]
            assert [type(packet) for packet in await heard(second)] == [Connack]
            assert broker.controller.ends == {"malformed_packet": 1}
            nursery.cancel_scope.cancel()

    trio.run(run)
