"""All packet identifiers in use at once."""

import trio

from broker.config.loader import load
from broker.wire.packets import (
    Ack,
    Connect,
    Pingreq,
    Pingresp,
    Publish,
    Subscribe,
    decode,
    encode,
    next_frame,
    subscription,
)
from broker.wire.properties import PacketType
from tests.support.conversation import MemoryBroker, MemoryClient
from tests.support.doubles import QuickAuthenticator

ALL = 65_535


async def heard(client: MemoryClient) -> list[object]:
    await client.broker.settle()
    data = bytearray(client.connection.take_output())
    packets = []
    while (frame := next_frame(data)) is not None:
        packets.append(decode(*frame, 4))
    assert not data
    return packets


def test_an_identifier_under_way_is_not_given_again() -> None:
    # Proves: [MQTT-2.2.1-4] [MQTT-4.3.2-1]
    flags = {"mqtt.inflight_max": ALL, "mqtt.queue_messages_max": 2 * ALL, "limits.output_buffer_bytes_max": 16_777_216}

    async def run() -> None:
        async with trio.open_nursery() as nursery:
            broker = MemoryBroker(load(None, {}, flags), nursery, None, None, QuickAuthenticator())
            client, publisher = await broker.connect(), await broker.connect()
            await client.send(encode(Connect(4, b"s"), 4) + encode(Subscribe(1, (subscription(b"t", 1),)), 4), False)
            await publisher.send(encode(Connect(4, b"p"), 4), False)
            one = encode(Publish(b"t", b"", 1, packet_identifier=1), 4)
            given = []
            for _ in range(ALL // 1285):  # 51 turns of 1,285 messages
                await publisher.send(one * 1285, False)
                publisher.connection.take_output()
                given += [packet.packet_identifier for packet in await heard(client) if isinstance(packet, Publish)]
            assert given == list(range(1, ALL + 1))
            # None is free: what comes now waits, and everything else is answered.
            await publisher.send(one * 3, False)
            await client.send(encode(Pingreq(), 4), False)
            assert await heard(client) == [Pingresp()]
            await client.send(encode(Ack(PacketType.PUBACK, 2), 4), False)
            assert await heard(client) == []  # 1 is the next in turn, and still under way
            await client.send(encode(Ack(PacketType.PUBACK, 1), 4), False)
            assert [packet.packet_identifier for packet in await heard(client) if isinstance(packet, Publish)] == [1, 2]

    trio.run(run)
