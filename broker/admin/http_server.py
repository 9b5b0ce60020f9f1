"""HTTP/1.1 on a listening socket: requests of a connection are answered one by one, those of others beside them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import h11
import msgspec
import trio

from broker.admin.pagination import QueryError, Row
from broker.admin.requests import Admitted, Answer, Head, Streamed, Text, json_text
from broker.logs import get

if TYPE_CHECKING:
    import socket

    from broker.admin.requests import Site

log = get("admin")

CONNECTIONS_MAX: Final = 64
HEADER_BYTES_MAX: Final = 65_536
RECEIVE_BYTES: Final = 65_536
IDLE_S: Final = 60.0  # that a connection may wait before its next request
HANDSHAKE_S: Final = 10.0  # that one of TLS may take
REQUEST_S: Final = 30.0  # that a request may take, to arrive and to be answered
SEND_S: Final = 30.0  # that whoever reads an answer may take for a piece of it


async def serve(
    site: Site,
    listener: socket.socket,
    secure: Callable[[trio.SocketStream], trio.SSLStream[trio.SocketStream]] | None = None,
    *,
    task_status: Any = trio.TASK_STATUS_IGNORED,
) -> None:
    """Answer on a listening socket until cancelled. No client can end it or make it wait for another one.

    Beyond CONNECTIONS_MAX, the connection is closed that has waited longest for a request. If all are busy, who comes
    may only ask for the broker's health.

    Args:
        secure: puts TLS around a connection; None: it is spoken without.
    """
    conversations: dict[_Conversation, None] = {}  # in the order in which they began to wait, busy ones anywhere

    async def handle(stream: trio.SocketStream) -> None:
        conversation = _Conversation(site, stream if secure is None else secure(stream), conversations, _peer(stream))
        while len(conversations) >= CONNECTIONS_MAX:
            oldest = next((other for other in conversations if other.idle), None)
            if oldest is None:
                conversation.too_many = True
                break
            del conversations[oldest]
            oldest.scope.cancel()
        conversations[conversation] = None
        try:
            with conversation.scope:
                await conversation.run()
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass  # whoever asked has gone
        except Exception:
            log.exception("admin_failed")
        finally:
            conversations.pop(conversation, None)

    sockets = [trio.SocketListener(trio.socket.from_stdlib_socket(listener))]
    await trio.serve_listeners(handle, sockets, task_status=task_status)


def _peer(stream: trio.SocketStream) -> str | None:
    """Return HOST:PORT of the other end; None: it has none, or has gone."""
    try:
        name = stream.socket.getpeername()
    except OSError:
        return None
    return f"{name[0]}:{name[1]}" if isinstance(name, tuple) else None


class _Conversation:
    """One client of the socket: requests and their answers, one after the other.

    Attributes:
        peer: HOST:PORT of the client; None: at a Unix socket.
        idle: it waits for a request, or for the rest of one.
        too_many: it may only ask for the broker's health, because so many others are busy.
        scope: what runs it.
    """

    def __init__(
        self,
        site: Site,
        stream: trio.SocketStream | trio.SSLStream[trio.SocketStream],
        all_of_them: dict[_Conversation, None],
        peer: str | None,
    ) -> None:
        self.site = site
        self.stream = stream
        self.peer = peer
        self.idle = True
        self.too_many = False
        self.scope = trio.CancelScope()
        self._wants_body = True  # of an answer: the request that is answered is none for the head alone
        self._all = all_of_them
        self.http = h11.Connection(h11.SERVER, max_incomplete_event_size=HEADER_BYTES_MAX)

    async def run(self) -> None:
        async with self.stream:
            if isinstance(self.stream, trio.SSLStream):
                with trio.move_on_after(HANDSHAKE_S) as handshake:
                    await self.stream.do_handshake()
                if handshake.cancelled_caught:
                    return
            while self.http.states[h11.CLIENT] is h11.IDLE:
                try:
                    with trio.fail_after(IDLE_S):
                        request = await self._event()
                    if not isinstance(request, h11.Request):
                        return
                    head = self._head_of(request)
                    self._wants_body = head.method != "HEAD"
                    with trio.fail_after(REQUEST_S):
                        admitted = await self._admitted(head)
                        if admitted is None:
                            return
                        body = await self._body(admitted.body_bytes_max)
                    self.idle = False
                    await self._answer(head, admitted, body)
                    self._wait_again()
                except trio.TooSlowError:
                    return
                except h11.RemoteProtocolError as error:
                    if self.http.our_state in (h11.IDLE, h11.SEND_RESPONSE):
                        refusal = QueryError(error.error_status_hint, "bad_request", f"{error}.")
                        await self._send_error("", refusal, close=True)
                    return
                if self.http.our_state is h11.DONE and self.http.their_state is h11.DONE:
                    self.http.start_next_cycle()

    def _wait_again(self) -> None:
        self.idle = True
        if self in self._all:
            del self._all[self]
            self._all[self] = None  # behind those that wait longer

    def _head_of(self, request: h11.Request) -> Head:
        return Head(
            request.method.decode("ascii", "replace"),
            request.target.decode("ascii", "replace"),
            {name.decode("latin-1"): value.decode("latin-1") for name, value in request.headers},
            self.peer,
        )

    async def _admitted(self, head: Head) -> Admitted | None:
        """Return what the site admits; None: it has refused, and said so. What follows a refusal is not read."""
        try:
            if self.too_many and head.path not in self.site.health_paths:
                raise QueryError(503, "too_many_connections", f"{CONNECTIONS_MAX} connections are open already.")
            return await self.site.admit(head)
        except QueryError as error:
            refusal = error
        except Exception:
            log.exception("admin_failed", path=head.path)
            refusal = QueryError(500, "internal_error", "This is our fault; the log has more.")
        # A connection without a body to come goes on.
        has_body = "transfer-encoding" in head.headers or head.headers.get("content-length", "0") != "0"
        if has_body or refusal.status == 500:
            await self._send_error(head.target, refusal, close=True)
            return None
        return Admitted(0, partial(_refuse, refusal))

    async def _event(self) -> Any:
        while True:
            event = self.http.next_event()
            if event is not h11.NEED_DATA:
                return event
            if self.http.they_are_waiting_for_100_continue:
                await self._send(h11.InformationalResponse(status_code=100, headers=[]))
            self.http.receive_data(bytes(await self.stream.receive_some(RECEIVE_BYTES)))

    async def _body(self, bytes_max: int) -> bytes:
        body = bytearray()
        while True:
            event = await self._event()
            if not isinstance(event, h11.Data):
                return bytes(body)
            body += event.data
            if len(body) > bytes_max:
                raise h11.RemoteProtocolError(f"a body of more than {bytes_max:,} bytes", 413)

    async def _answer(self, head: Head, admitted: Admitted, body: bytes) -> None:
        answer: Answer | None = None
        try:
            with trio.move_on_after(REQUEST_S):
                answer = await admitted.answer(body)
            if answer is None:
                raise QueryError(504, "too_slow", f"There was no answer within {REQUEST_S:.0f} s.")
        except QueryError as error:
            await self._send_error(head.target, error)
            return
        except Exception:
            log.exception("admin_failed", path=head.path)
            refusal = QueryError(500, "internal_error", "This is our fault; the log has more.")
            await self._send_error(head.target, refusal, close=True)
            return
        if isinstance(answer, Streamed):
            await self._stream(head.target, answer)
            return
        if not isinstance(answer, Text):
            answer = json_text(*answer)
        await self._send_text(answer, close=self.too_many)

    async def _send_error(self, target: str, error: QueryError, *, close: bool = False) -> None:
        await self._send_text(self.site.refusal(target, error), close=close or self.too_many)

    async def _send_text(self, answer: Text, *, close: bool = False) -> None:
        status, kind, text, more = answer
        headers = [("Content-Type", kind), ("Content-Length", str(len(text))), *more]
        if close:
            headers.append(("Connection", "close"))
        body = [h11.Data(data=text)] if self._wants_body else []
        # In one piece: an answer to who ends the broker has no second turn to be sent in.
        await self._send(h11.Response(status_code=status, headers=headers), *body, h11.EndOfMessage())

    async def _stream(self, target: str, answer: Streamed) -> None:
        """Send lines as they come, until they end or the caller goes; an empty one shows that we are here."""
        begun = False
        kind = "text/event-stream" if answer.is_events else "application/x-ndjson"
        headers = [("Content-Type", kind), ("Cache-Control", "no-store"), ("Connection", "close")]
        response = h11.Response(status_code=200, headers=headers)
        if not self._wants_body:
            await self._send(response, h11.EndOfMessage())
            return
        async with _Closing(answer.lines) as lines, trio.open_nursery() as nursery:
            nursery.start_soon(self._until_gone, nursery.cancel_scope)
            try:
                async for line in lines:
                    if not begun:
                        await self._send(response)
                        begun = True
                    if answer.is_events:
                        await self._send(h11.Data(data=event_of(line)))
                    elif line:
                        await self._send(h11.Data(data=msgspec.json.encode(line) + b"\n"))
                await self._send(h11.EndOfMessage())
            except QueryError as error:
                assert not begun, error  # only the beginning can be refused
                await self._send_error(target, error, close=True)
            except (trio.BrokenResourceError, trio.TooSlowError):
                pass  # whoever asked has gone, or does not read
            nursery.cancel_scope.cancel()

    async def _until_gone(self, scope: trio.CancelScope) -> None:
        """Cancel when the other end closes; what it sends meanwhile counts for nothing."""
        try:
            while await self.stream.receive_some(RECEIVE_BYTES):
                pass
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass
        scope.cancel()

    async def _send(self, *events: Any) -> None:
        data = b"".join(self.http.send(event) or b"" for event in events)
        if data:
            with trio.fail_after(SEND_S):
                await self.stream.send_all(data)


async def _refuse(error: QueryError, body: bytes) -> Answer:
    raise error


def event_of(line: Row) -> bytes:
    """Return a server-sent event: its name, `event`, and the rest as its data; of nothing, a comment."""
    if not line:
        return b":\n\n"
    data = {name: value for name, value in line.items() if name != "event"}
    return b"event: %b\ndata: %b\n\n" % (line["event"].encode(), msgspec.json.encode(data))


class _Closing:
    """An async iterator that is closed at the end of a block, whatever ends it."""

    def __init__(self, lines: AsyncIterator[Row]) -> None:
        self.lines = lines

    async def __aenter__(self) -> AsyncIterator[Row]:
        return self.lines

    async def __aexit__(self, *ignored: object) -> None:
        with trio.CancelScope(shield=True, deadline=trio.current_time() + 2.0):
            await self.lines.aclose()  # type: ignore[attr-defined]
