"""Clients that nobody wants: `python -m tests.support.hostile PORT` attacks a broker until standard input is closed.

It prints "ready" when all have begun, "garbage done" when all garbage was sent and answered, and at the end one line of
JSON with what each of them did.
"""

from __future__ import annotations

import argparse
import json
import random
import socket
import ssl
import sys
from collections import Counter

import trio

from broker.wire.packets import Connect, Subscribe, encode, subscription
from tests.support.websockets import ClientEnd, request

GARBAGE_AT_ONCE = 50
HALF_SENT = b"\x30\xff\xff\xff\x7f\0\1t"  # a PUBLISH of 268,435,455 bytes, of which three come
CONNACK = b"\x20\2\0\0"


def garbage(number: int, random_: random.Random) -> bytes:
    """Return what a connection opens with that is no client; each call another kind."""
    kinds = (
        random_.randbytes(random_.randrange(1, 200)),
        b"\x16\x03\x01\x02\0\x01\0\x01\xfc\x03\x03" + random_.randbytes(500),
        b"GET /%d HTTP/1.1\r\nHost: localhost\r\n\r\n" % number,
        encode(Connect(5, b"x" * 20), 5)[: -random_.randrange(1, 20)],
        encode(Connect(4, b""), 4) + random_.randbytes(100),
        b"\x10\xff\xff\xff\xff\xff",
    )
    return kinds[number % len(kinds)]


class Framed(trio.abc.Stream):
    """A stream of bytes in the frames of a WebSocket."""

    def __init__(self, stream: trio.abc.Stream) -> None:
        self.stream = stream
        self.end = ClientEnd(1)

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        await self.stream.send_all(self.end.send(bytes(data)))

    async def wait_send_all_might_not_block(self) -> None:
        await self.stream.wait_send_all_might_not_block()

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        while data := await self.stream.receive_some(max_bytes):
            if plain := b"".join(self.end.received(bytes(data))):
                return plain
        return b""

    async def aclose(self) -> None:
        await self.stream.aclose()


class Hostile:
    """All of them, against one port of the loopback interface.

    Args:
        over: what they come by: "tcp", "tls", "ws" or "wss".
        cafile: who has signed the broker's certificate.
    """

    def __init__(
        self,
        port: int,
        garbage_count: int,
        declared_count: int,
        flap_s: float,
        over: str = "tcp",
        cafile: str | None = None,
    ) -> None:
        self.port, self.garbage_count, self.declared_count, self.flap_s = port, garbage_count, declared_count, flap_s
        self.over = over
        self.context = ssl.create_default_context(cafile=cafile) if over in ("tls", "wss") else None
        self.done: Counter[str] = Counter()

    async def open(self, data: bytes, receive_buffer: int = 0, bare: bool = False) -> trio.abc.Stream:
        """Return a connection on which some bytes were sent.

        Args:
            receive_buffer: of its socket; 0: as the system has it.
            bare: they are sent as they are, whatever is spoken there.
        """
        plain = await trio.open_tcp_stream("127.0.0.1", self.port)
        if receive_buffer:
            plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        stream: trio.abc.Stream = plain
        if not bare and self.context is not None:
            stream = trio.SSLStream(plain, self.context, server_hostname="localhost")
        if not bare and self.over in ("ws", "wss"):
            await stream.send_all(request())
            stream = Framed(stream)
        await stream.send_all(data)
        return stream

    async def member(self, name: bytes, receive_buffer: int = 0) -> trio.abc.Stream:
        """Return a client that has subscribed to everything."""
        return await self.open(
            encode(Connect(4, name), 4) + encode(Subscribe(1, (subscription(b"#", 1),)), 4), receive_buffer
        )

    async def stuck(self, task_status: trio.TaskStatus[None]) -> None:
        """Subscribe to everything, and take nothing."""
        async with await self.member(b"stuck", 4096):
            task_status.started()
            await trio.sleep_forever()

    async def firehose(self, task_status: trio.TaskStatus[None]) -> None:
        """Subscribe to everything at QoS 1, and acknowledge nothing."""
        stream = await self.member(b"firehose")
        task_status.started()
        while data := await stream.receive_some(1 << 18):
            self.done["firehose_bytes"] += len(data)

    async def flapping(self, task_status: trio.TaskStatus[None]) -> None:
        """Connect under one client identifier again and again; each takes over from the one before."""
        before: trio.abc.Stream | None = None
        task_status.started()
        while True:
            stream = await self.open(encode(Connect(4, b"flapping", clean_start=False), 4))
            self.done["takeovers"] += bytes(await stream.receive_some(4))[:2] == CONNACK[:2]
            if before is not None:
                await trio.aclose_forcefully(before)
            before = stream
            await trio.sleep(self.flap_s)

    async def garbage(self, task_status: trio.TaskStatus[None]) -> None:
        """Open connections that send what is no MQTT, and wait until each is closed."""
        limit = trio.CapacityLimiter(GARBAGE_AT_ONCE)
        random_ = random.Random(1)

        async def one(number: int) -> None:
            async with limit:
                try:
                    async with await self.open(garbage(number, random_), bare=number % 2 == 0) as stream:
                        if isinstance(stream, trio.SocketStream):
                            await stream.send_eof()
                        while await stream.receive_some(4096):
                            pass
                except (OSError, trio.BrokenResourceError):
                    self.done["garbage_reset"] += 1
                self.done["garbage"] += 1

        task_status.started()
        async with trio.open_nursery() as nursery:
            for number in range(self.garbage_count):
                async with limit:
                    nursery.start_soon(one, number)
                await trio.sleep(0.0005)
        print("garbage done", flush=True)

    async def declared(self, task_status: trio.TaskStatus[None]) -> None:
        """Hold connections on which a packet of 256 MB was begun."""
        held = []
        for number in range(self.declared_count):
            stream = await self.open(encode(Connect(4, b"declared%d" % number), 4))
            await stream.receive_some(4)
            await stream.send_all(HALF_SENT)
            held.append(stream)
            self.done["declared"] += 1
        task_status.started()
        await trio.sleep_forever()

    async def run(self) -> None:
        """Attack until standard input is closed."""
        async with trio.open_nursery() as nursery:
            for attack in (self.stuck, self.firehose, self.flapping, self.garbage, self.declared):
                await nursery.start(attack)
            print("ready", flush=True)
            await trio.to_thread.run_sync(sys.stdin.read)
            nursery.cancel_scope.cancel()
        print(json.dumps(self.done), flush=True)


def main() -> None:
    """Read the arguments and attack."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("port", type=int)
    parser.add_argument("--garbage", type=int, default=5000, help="connections that send no MQTT")
    parser.add_argument("--declared", type=int, default=1000, help="packets that declare 256 MB")
    parser.add_argument("--over", choices=("tcp", "tls", "ws", "wss"), default="tcp", help="what they come by")
    parser.add_argument("--cafile", help="who has signed the broker's certificate")
    parser.add_argument("--flap", type=float, default=0.01, help="seconds between two takeovers")
    arguments = parser.parse_args()
    trio.run(
        Hostile(
            arguments.port, arguments.garbage, arguments.declared, arguments.flap, arguments.over, arguments.cafile
        ).run
    )


if __name__ == "__main__":
    main()
