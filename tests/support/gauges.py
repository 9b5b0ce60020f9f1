"""What a broker in another process says of itself under $SYS."""

from __future__ import annotations

import socket

from broker.wire.packets import Connect, Publish, Subscribe, decode, encode, next_frame, subscription

PREFIX = "$SYS/broker/"
NUMBERS_NOW = (
    "clients/total",
    "clients/connected",
    "subscriptions/count",
    "shared_subscriptions/count",
    "store/messages/count",
    "shoal/queued/messages",
    "shoal/output/bytes",
    "messages/inflight",
    "shoal/connections/open",
    "retained messages/count",
    "shoal/errors/unraisable",
)
ANSWER_S = 20.0


def gauges(port: int) -> dict[str, int]:
    """Return what the broker says of itself under $SYS; the client that asks is one of those that it counts."""
    found: dict[str, int] = {}
    with socket.create_connection(("127.0.0.1", port), ANSWER_S) as client:
        topics = tuple(subscription((PREFIX + name).encode()) for name in NUMBERS_NOW)
        client.sendall(encode(Connect(4, b"gauges"), 4) + encode(Subscribe(1, topics), 4))
        buffer = bytearray()
        while len(found) < len(NUMBERS_NOW):
            buffer += client.recv(65_536)
            while (frame := next_frame(buffer)) is not None:
                packet = decode(*frame, 4)
                if isinstance(packet, Publish):
                    found[packet.topic.decode().removeprefix(PREFIX)] = int(packet.payload)
        client.sendall(b"\xe0\0")
    return found
