"""A filter between a client's socket and the protocol that raises: its connection ends, and no other one does."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
import trio

from broker import logs
from broker.config.loader import Log
from broker.wire.packets import Connect, Pingreq, Pingresp, Publish, Will
from broker.wire.reasons import CloseReason
from broker.worker.worker import Worker
from tests.support.embedded import Device, as_guest, as_task

BREAK = b"break here"


class Breaking:
    """Lets everything through until a certain word comes; then it fails in one of many ways."""

    def __init__(self, how: str) -> None:
        self.how = how
        self.broken = False

    def received(self, data: bytes) -> Any:
        """Return what has come, and perhaps something else."""
        self.broken = self.broken or BREAK in data
        if not self.broken:
            return [data]
        if self.how == "received":
            raise ZeroDivisionError("by chance")
        if self.how == "received returns text":
            return ["text"]
        if self.how == "received returns nothing":
            return None
        return self.some(data) if self.how == "received later" else [data]

    @staticmethod
    def some(data: bytes) -> Iterator[bytes]:
        """Yield half of it."""
        yield data[: len(data) // 2]
        raise ZeroDivisionError("by chance")

    def send(self, data: bytes) -> Any:
        """Return what is to be sent, or not."""
        if self.broken and self.how == "send":
            raise ZeroDivisionError("by chance")
        return "text" if self.broken and self.how == "send returns text" else data

    def wants_to_send(self) -> bool:
        """It has nothing of its own to say."""
        if self.broken and self.how == "wants_to_send":
            raise ZeroDivisionError("by chance")
        return False


HOW = [
    "received",
    "received later",
    "received returns text",
    "received returns nothing",
    "send",
    "send returns text",
    "wants_to_send",
]


async def stream_to(broker: Worker, stack: AsyncExitStack) -> trio.SocketStream:
    assert broker.acceptor is not None
    stream = await trio.open_tcp_stream("127.0.0.1", broker.acceptor.addresses[0].port)
    return await stack.enter_async_context(stream)


async def come(broker: Worker, stack: AsyncExitStack, name: bytes, will: Will | None = None) -> Device:
    device = Device(await stream_to(broker, stack), 5)
    await device.send(Connect(5, name, True, 0, will))
    assert (await device.receive()).reason == 0
    return device


def lines(file: Path) -> list[dict[str, Any]]:
    logs.flush(10)
    return [
        line
        for line in map(json.loads, file.read_text(encoding="utf-8").splitlines())
        if line["event"] == "filter_failed"
    ]


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("driver", [as_task, as_guest])
def test_a_filter_that_fails_ends_its_connection_and_no_other(
    driver: Callable[..., None], how: str, tmp_path: Path
) -> None:
    async def run(broker: Worker, stack: AsyncExitStack) -> None:
        witness = await come(broker, stack, b"witness")
        await witness.subscribe(b"w")
        device = await come(broker, stack, b"broken", Will(b"w", b"gone"))
        await device.send(Publish(BREAK, b"x", 1, packet_identifier=1))
        assert await device.receive() is None
        assert (await witness.receive()).payload == b"gone"
        await witness.send(Pingreq())
        assert isinstance(await witness.receive(), Pingresp)
        await come(broker, stack, b"broken")
        assert broker.controller.ends[CloseReason.FILTER_FAILED] == 1

    fail(driver, run, tmp_path / "log", transform=lambda: Breaking(how))
    (line,) = lines(tmp_path / "log")
    assert line["client"] == "broken"
    assert "Error: " in line["exception"]


@pytest.mark.parametrize("driver", [as_task, as_guest])
def test_a_filter_that_cannot_be_made_costs_one_connection(driver: Callable[..., None], tmp_path: Path) -> None:
    makers = iter([lambda: Breaking("send"), lambda: 1 // 0, lambda: Breaking("send")])

    async def run(broker: Worker, stack: AsyncExitStack) -> None:
        witness = await come(broker, stack, b"witness")
        stream = await stream_to(broker, stack)
        assert await stream.receive_some() == b""
        await come(broker, stack, b"another")
        await witness.send(Pingreq())
        assert isinstance(await witness.receive(), Pingresp)
        assert broker.controller.ends[CloseReason.FILTER_FAILED] == 1

    fail(driver, run, tmp_path / "log", transform=lambda: next(makers)())
    (line,) = lines(tmp_path / "log")
    assert line["exception"].endswith("ZeroDivisionError: integer division or modulo by zero")


def fail(
    driver: Callable[..., None], run: Callable[[Worker, AsyncExitStack], Awaitable[None]], file: Path, **seams: Any
) -> None:
    """Run a broker whose log is a file."""

    async def closing(broker: Worker) -> None:
        async with AsyncExitStack() as stack:
            await run(broker, stack)

    logs.configure(Log(file=str(file)))
    driver(closing, **seams)
