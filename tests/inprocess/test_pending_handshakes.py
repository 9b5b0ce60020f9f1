"""Handshakes under way are bounded: who says nothing in one goes, who is on its way is not sent away for another."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from broker.config.listener import Listener
from broker.config.loader import Config, Limits, Shutdown
from broker.reactor.pending_handshakes import PendingHandshakes
from broker.wire.packets import Connack, Connect, decode, encode
from broker.wire.reasons import CloseReason
from broker.worker.worker import Worker, open_broker
from tests.support.certificates import certificates
from tests.support.conversation import SocketClient, open_over

LIMIT = 5
TIMEOUT_S = 60


def config_of(over: str) -> Config:
    address = f"{over}://127.0.0.1:0"
    listener = Listener(address=address) if over == "ws" else certificates().listener(address)
    return Config(
        listen=(), listener=(listener,), limits=Limits(pending_handshakes_max=LIMIT), shutdown=Shutdown(drain_s=0.1)
    )


async def connected(broker: Worker, over: str, name: bytes) -> SocketClient:
    client = await open_over(over, broker.addresses[0].port, name)
    await client.send(encode(Connect(5, name), 5), False)
    frame = await client.receive()
    assert frame is not None
    assert isinstance(decode(*frame, 5), Connack)
    return client


@pytest.mark.parametrize("over", ["tls", "ws", "wss"])
async def test_those_that_say_nothing_go_when_others_wait(over: str) -> None:
    with trio.fail_after(TIMEOUT_S):
        async with open_broker(config_of(over)) as broker:
            silent = [await trio.open_tcp_stream("127.0.0.1", broker.addresses[0].port) for _ in range(LIMIT)]
            while len(broker.reactor.pending_handshakes.waiting) < LIMIT:  # noqa: ASYNC110  (the reactor knows no trio)
                await trio.sleep(0.01)
            client = await connected(broker, over, b"speaks")
            assert dict(broker.controller.ends) == {CloseReason.PENDING_HANDSHAKES_MAX: LIMIT}
            assert broker.acceptor is not None
            assert broker.acceptor.pauses["pending_handshakes_max"] >= 1
            for stream in silent:
                while await stream.receive_some():  # a goodbye of its layers
                    pass
                await stream.aclose()
            assert broker.reactor.pending_handshakes.waiting == {}
            await client.cut()


async def test_all_of_those_that_come_at_once_get_in() -> None:
    clients: list[Any] = []
    async with open_broker(config_of("tls")) as broker:

        async def come(number: int) -> None:
            clients.append(await connected(broker, "tls", b"c%d" % number))

        with trio.fail_after(TIMEOUT_S):
            async with trio.open_nursery() as nursery:
                for number in range(10 * LIMIT):
                    nursery.start_soon(come, number)
        assert len(clients) == 10 * LIMIT
        assert dict(broker.controller.ends) == {}
        assert broker.reactor.pending_handshakes.waiting == {}
        for client in clients:
            await client.cut()


async def test_those_that_leave_in_a_handshake_are_forgotten() -> None:
    with trio.fail_after(TIMEOUT_S):
        async with open_broker(config_of("tls")) as broker:
            for _ in range(3 * LIMIT):
                stream = await trio.open_tcp_stream("127.0.0.1", broker.addresses[0].port)
                await stream.send_all(b"\x16\x03\x01")
                await stream.aclose()
            while broker.reactor.connection_count or not broker.controller.ends:  # noqa: ASYNC110
                await trio.sleep(0.01)
            assert broker.reactor.pending_handshakes.waiting == {}


class Opening:
    """A connection in its handshake, as the count of them sees it."""

    def __init__(self, heard_ms: int) -> None:
        self.heard_ms = heard_ms
        self.ended: list[CloseReason] = []

    def close(self, reason: CloseReason) -> None:
        """End; its layers stay until its peer has read that."""
        self.ended.append(reason)


def test_who_was_ended_and_lingers_keeps_nobody_out() -> None:
    handshakes = PendingHandshakes(3)
    openings = [Opening(heard_ms) for heard_ms in (0, 500, 1001)]
    for opening in openings:
        handshakes.waiting[object()] = opening  # type: ignore[assignment]
    assert handshakes.room == 0
    handshakes.make_room(3000)
    assert [opening.ended for opening in openings] == [[CloseReason.PENDING_HANDSHAKES_MAX]] * 2 + [[]]
    assert handshakes.room == 2
    handshakes.make_room(9000)
    assert openings[2].ended == [], "there is room"
