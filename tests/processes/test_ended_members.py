"""Members of a shared group whose sessions end while messages are on their way, over three workers."""

from __future__ import annotations

import contextlib
from itertools import cycle

from broker.config.loader import Config
from broker.wire.packets import (
    Ack,
    Connack,
    Connect,
    Disconnect,
    Publish,
    Subscribe,
    decode,
    encode,
    next_frame,
    subscription,
)
from broker.wire.properties import PacketType
from tests.support.raw_client import RawClient, wait_until
from tests.support.seamed_workers import SeamedWorkers

COUNT = 3
ROUNDS = 24
PUBLISHED = 10  # by each publisher in one round
WINDOWS = (5, 2, 8)  # Receive Maximum of one member after another: the rest waits
ENDS = ("session_ended", "no_member")
FILTER = b"$share/g/t/#"


class Member:
    """One that reads now and then, and acknowledges nothing of what it reads."""

    def __init__(self, port: int, name: str, got: set[bytes], window: int) -> None:
        self.client = RawClient(port)
        self.got = got
        self.client.send(
            Connect(
                5, name.encode(), True, 0, None, None, None, {"session_expiry_interval": 600, "receive_maximum": window}
            )
        )
        assert isinstance(self.client.read(), Connack)
        self.client.send(Subscribe(1, (subscription(FILTER, 2),)))
        while self.read_one() is not PacketType.SUBACK:
            pass

    def read_one(self) -> PacketType:
        """Take a packet."""
        packet = self.client.read()
        assert packet is not None
        if isinstance(packet, Publish):
            self.got.add(packet.payload)
            return PacketType.PUBLISH
        return PacketType.SUBACK

    def leave(self) -> None:
        """End the session."""
        with self.client as client:
            client.send(Disconnect(0, {"session_expiry_interval": 0}))
            while client.read() is not None:
                pass  # it has not come, as far as this member knows


def test_what_nobody_of_a_group_gets_when_sessions_end_is_counted() -> None:
    got: set[bytes] = set()
    acknowledged: set[bytes] = set()
    with SeamedWorkers(Config(listen=("tcp://127.0.0.1:0",)), COUNT, dict) as workers, contextlib.ExitStack() as stack:
        ports = workers.in_turn()
        publishers = [stack.enter_context(RawClient(port)) for port in workers.ports]
        for number, publisher in enumerate(publishers):
            publisher.connect(f"publisher-{number}")
        members = [Member(ports(), f"member-{number}", got, window) for number, window in enumerate(WINDOWS)]
        windows = cycle(WINDOWS)
        for number in range(ROUNDS):
            sent: list[dict[int, bytes]] = []
            for index, publisher in enumerate(publishers):
                batch = {
                    identifier: b"%d %d %d" % (number, index, identifier) for identifier in range(1, PUBLISHED + 1)
                }
                publisher.send(
                    *(
                        Publish(b"t/%d" % (identifier % 7), payload, 2, False, False, identifier)
                        for identifier, payload in batch.items()
                    )
                )
                sent.append(batch)
            leaver = members.pop(0)
            leaver.leave()
            members.append(Member(ports(), f"member-{number + COUNT}", got, next(windows)))
            for batch, publisher in zip(sent, publishers, strict=True):
                while batch:
                    packet = publisher.read()
                    assert isinstance(packet, Ack), packet
                    if packet.type == PacketType.PUBREC:
                        if packet.reason < 0x80:
                            acknowledged.add(batch[packet.packet_identifier])
                        publisher.send(Ack(PacketType.PUBREL, packet.packet_identifier))
                    else:
                        del batch[packet.packet_identifier]
        last = RawClient(ports())
        stack.enter_context(last)
        last.send(Connect(5, b"last", True, 0, None, None, None, {}))
        assert isinstance(last.read(), Connack)
        last.send(Subscribe(1, (subscription(FILTER, 2),)))
        last.socket.settimeout(0.05)
        for member in members:
            member.leave()
        data = bytearray()

        def all_are_known() -> bool:
            """Take what has come; whether each message is somebody's or counted."""
            with contextlib.suppress(TimeoutError):
                while chunk := last.socket.recv(1 << 20):
                    data.extend(chunk)
            while (frame := next_frame(data)) is not None:
                packet = decode(*frame, 5)
                if isinstance(packet, Publish):
                    got.add(packet.payload)
                    last.socket.sendall(encode(Ack(PacketType.PUBREC, packet.packet_identifier), 5))
                elif isinstance(packet, Ack):
                    last.socket.sendall(encode(Ack(PacketType.PUBCOMP, packet.packet_identifier), 5))
            dropped = workers.counts("dropped")
            return len(acknowledged - got) <= sum(dropped.get(reason, 0) for reason in ENDS)

        wait_until(all_are_known, "messages reached nobody and are not counted")
        dropped = workers.counts("dropped")
        assert set(dropped) <= set(ENDS), dropped
        # Each member was sent no more than its window at a time, and acknowledged nothing.
        assert dropped["session_ended"] <= (ROUNDS + COUNT) // COUNT * sum(WINDOWS), dropped
    assert len(acknowledged) == COUNT * ROUNDS * PUBLISHED
