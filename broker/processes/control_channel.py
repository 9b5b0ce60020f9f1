"""Questions and answers between the supervisor and a worker, over a pair of sockets.

A message is four bytes with its length, little-endian, and msgpack: [id, kind, payload]. A question has an id above 0
of its asker's own counting, and its answer the same one with the kind `answer`, or `failed` and a text. A message with
the id 0 is told and not answered. Both ends ask and both ends tell.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import msgpack  # type: ignore[import-untyped]
import trio

from broker.logs import get

if TYPE_CHECKING:
    import socket

log = get("control_channel")

Handler = Callable[[Any], Any]  # gets the payload; returns the answer, or an awaitable of it

MESSAGE_BYTES_MAX = 16 << 20
OUTBOX_BYTES_MAX = 64 << 20  # unsent: beyond it the other end does not read any more, and the channel ends
TOLD_BYTES_MAX = 1 << 20  # unsent: beyond it what is only told is left out
ASKED_MAX = 64  # questions that this end deals with at once; more are answered with "busy"
RECEIVE_BYTES = 65_536
ANSWER, FAILED = "answer", "failed"
LENGTH = struct.Struct("<I")


class ControlError(Exception):
    """A question got no answer, in one sentence. A handler raises it to have its asker told so."""


class ChannelClosedError(ControlError):
    """The other end is gone."""


def pack(identifier: int, kind: str, payload: Any) -> bytes:
    """Return a message as it travels. Raises ControlError if it is too large, TypeError if msgpack has no such type."""
    body: bytes = msgpack.packb([identifier, kind, payload])
    if len(body) > MESSAGE_BYTES_MAX:
        raise ControlError(f"A message of {len(body):,} bytes, {MESSAGE_BYTES_MAX:,} are allowed.")
    return LENGTH.pack(len(body)) + body


def receive_now(end: socket.socket) -> tuple[int, str, Any]:
    """Wait for one message and return it: for a process in which trio does not run yet. Blocks, and reads no byte more.

    Raises ChannelClosedError.
    """
    (length,) = LENGTH.unpack(_exactly(end, LENGTH.size))
    return _unpacked(_exactly(end, length))


def _exactly(end: socket.socket, length: int) -> bytes:
    data = bytearray()
    while len(data) < length:
        piece = end.recv(min(length - len(data), RECEIVE_BYTES))
        if not piece:
            raise ChannelClosedError("The other end is gone.")
        data += piece
    return bytes(data)


def _unpacked(body: bytes) -> tuple[int, str, Any]:
    identifier, kind, payload = msgpack.unpackb(body)
    return identifier, kind, payload


class _Question:
    """One that waits for its answer."""

    __slots__ = ("answer", "error", "event")

    def __init__(self) -> None:
        self.event = trio.Event()
        self.answer: Any = None
        self.error: ControlError | None = None


class ControlChannel:
    """One end. Nothing is sent or received but while run() runs; what was asked or told before waits for it.

    Args:
        end: connected stream socket, which the channel closes.
        name: of the other end, for log lines.

    Attributes:
        closed: the other end is gone, or run() was cancelled.
    """

    def __init__(self, end: socket.socket, name: str) -> None:
        self.name = name
        self.closed = False
        self._stream = trio.SocketStream(trio.socket.from_stdlib_socket(end))
        self._handlers: dict[str, Handler] = {}
        self._questions: dict[int, _Question] = {}
        self._last_identifier = 0
        self._asked = 0
        self._outbox: deque[bytes] = deque()
        self._outbox_bytes = 0
        self._unsent = trio.Event()

    def handle(self, kind: str, handler: Handler) -> None:
        """Have `handler(payload)` called for every message of a kind; there is one handler for each.

        It returns the answer, which msgpack must know, or an awaitable of it, which runs as a task of run(). What it
        raises is the asker's ControlError: a ControlError's text as it is, anything else also in the log.
        """
        assert kind not in self._handlers, kind
        assert kind not in (ANSWER, FAILED), kind
        self._handlers[kind] = handler

    async def ask(self, kind: str, payload: Any = None) -> Any:
        """Ask the other end and return its answer. A caller that must not wait long sets a deadline around it.

        Cost: some 100 microseconds of both ends' time.

        Raises:
            ControlError: it failed there, nobody there knows the kind, or either message is too large.
            ChannelClosedError: the other end went away first.
        """
        self._last_identifier += 1
        identifier = self._last_identifier
        message = pack(identifier, kind, payload)
        if self.closed:
            raise ChannelClosedError(f"The {self.name} is gone.")
        question = self._questions[identifier] = _Question()
        try:
            self._put(message)
            await question.event.wait()
        finally:
            del self._questions[identifier]
        if question.error is not None:
            raise question.error
        return question.answer

    def tell(self, kind: str, payload: Any = None) -> bool:
        """Tell the other end, which does not answer. Returns False if it is gone, or does not keep up: it is not told.

        Raises ControlError if the message is too large.
        """
        message = pack(0, kind, payload)
        if self.closed or self._outbox_bytes > TOLD_BYTES_MAX:
            return False
        self._put(message)
        return True

    def _put(self, message: bytes) -> None:
        self._outbox.append(message)
        self._outbox_bytes += len(message)
        self._unsent.set()

    async def run(self) -> None:
        """Send and receive until the other end is gone or sends what is no message; then waiting callers are told."""
        try:
            async with self._stream, trio.open_nursery() as nursery:
                nursery.start_soon(self._send)
                await self._receive(nursery)
                nursery.cancel_scope.cancel()
        finally:
            self.closed = True
            for question in self._questions.values():
                question.error = ChannelClosedError(f"The {self.name} is gone.")
                question.event.set()

    async def _send(self) -> None:
        try:
            while True:
                while self._outbox:
                    message = self._outbox.popleft()
                    await self._stream.send_all(message)
                    self._outbox_bytes -= len(message)
                self._unsent = trio.Event()
                await self._unsent.wait()
        except trio.BrokenResourceError:
            pass  # receiving finds the same

    async def _receive(self, nursery: trio.Nursery) -> None:
        data = bytearray()
        while True:
            while len(data) >= LENGTH.size:
                (length,) = LENGTH.unpack_from(data)
                if length > MESSAGE_BYTES_MAX:
                    log.error("control_message_too_large", peer=self.name, bytes=length)
                    return
                if len(data) < LENGTH.size + length:
                    break
                try:
                    message = _unpacked(bytes(data[LENGTH.size : LENGTH.size + length]))
                except (TypeError, ValueError) as error:
                    log.error("control_message_malformed", peer=self.name, what=repr(error))
                    return
                del data[: LENGTH.size + length]
                self._take(nursery, *message)
            if self._outbox_bytes > OUTBOX_BYTES_MAX:
                log.error("control_channel_stuck", peer=self.name, bytes=self._outbox_bytes)
                return
            try:
                piece = await self._stream.receive_some(RECEIVE_BYTES)
            except trio.BrokenResourceError:
                return
            if not piece:
                return
            data += piece

    def _take(self, nursery: trio.Nursery, identifier: int, kind: str, payload: Any) -> None:
        if kind in (ANSWER, FAILED):
            question = self._questions.get(identifier)
            if question is not None:  # else nobody waits for it any more
                question.answer = payload
                question.error = ControlError(payload) if kind == FAILED else None
                question.event.set()
            return
        handler = self._handlers.get(kind)
        if handler is None:
            self._reply(identifier, FAILED, f"Nobody here knows what {kind!r} is.")
        elif self._asked >= ASKED_MAX:
            self._reply(identifier, FAILED, "Too much is asked at once: busy.")
        else:
            self._asked += 1
            nursery.start_soon(self._deal_with, handler, identifier, kind, payload)

    async def _deal_with(self, handler: Handler, identifier: int, kind: str, payload: Any) -> None:
        try:
            answer = handler(payload)
            if isinstance(answer, Awaitable):
                answer = await answer
            self._reply(identifier, ANSWER, answer)
        except ControlError as error:
            self._reply(identifier, FAILED, str(error))
        except Exception as error:
            log.exception("control_failed", peer=self.name, kind=kind)
            self._reply(identifier, FAILED, f"{type(error).__name__}: {error}")
        finally:
            self._asked -= 1

    def _reply(self, identifier: int, kind: str, payload: Any) -> None:
        if identifier:
            self._put(pack(identifier, kind, payload))
