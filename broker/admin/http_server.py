"""HTTP/1.1 on a listening socket: requests of a connection are answered one by one, those of others beside them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any, Final

import h11
import msgspec
import trio

from broker.admin.pagination import QueryError, Row
from broker.admin.requests import Streamed, Text
from broker.logs import get

if TYPE_CHECKING:
    import socket

    from broker.admin.requests import Site

log = get("admin")

CONNECTIONS_MAX: Final = 64
HEADER_BYTES_MAX: Final = 65_536
BODY_BYTES_MAX: Final = 16_777_216
RECEIVE_BYTES: Final = 65_536
IDLE_S: Final = 60.0  # that a connection may wait before its next request
REQUEST_S: Final = 30.0  # that a request may take, to arrive and to be answered
SEND_S: Final = 30.0  # that whoever reads an answer may take for a piece of it


async def serve(site: Site, listener: socket.socket, *, task_status: Any = trio.TASK_STATUS_IGNORED) -> None:
    """Answer on a listening socket until cancelled. No client can end it or make it wait for another one.

    Beyond CONNECTIONS_MAX, the connection is closed that has waited longest for a request. If all are busy, who comes
    may only ask for the broker's health.
    """
    conversations: dict[_Conversation, None] = {}  # in the order in which they began to wait, busy ones anywhere

    async def handle(stream: trio.SocketStream) -> None:
        conversation = _Conversation(site, stream, conversations)
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


class _Conversation:
    """One client of the socket: requests and their answers, one after the other.

    Attributes:
        idle: it waits for a request, or for the rest of one.
        too_many: it may only ask for the broker's health, because so many others are busy.
        scope: what runs it.
    """

    def __init__(self, site: Site, stream: trio.SocketStream, all_of_them: dict[_Conversation, None]) -> None:
        self.site = site
        self.stream = stream
        self.idle = True
        self.too_many = False
        self.scope = trio.CancelScope()
        self._all = all_of_them
        self.http = h11.Connection(h11.SERVER, max_incomplete_event_size=HEADER_BYTES_MAX)

    async def run(self) -> None:
        async with self.stream:
            while self.http.states[h11.CLIENT] is h11.IDLE:
                try:
                    with trio.fail_after(IDLE_S):
                        request = await self._event()
                    if not isinstance(request, h11.Request):
                        return
                    with trio.fail_after(REQUEST_S):
                        body = await self._body()
                    self.idle = False
                    await self._answer(request, body)
                    self._wait_again()
                except trio.TooSlowError:
                    return
                except h11.RemoteProtocolError as error:
                    if self.http.our_state in (h11.IDLE, h11.SEND_RESPONSE):
                        await self._send_error(QueryError(error.error_status_hint, "bad_request", f"{error}."), True)
                    return
                if self.http.our_state is h11.DONE and self.http.their_state is h11.DONE:
                    self.http.start_next_cycle()

    def _wait_again(self) -> None:
        self.idle = True
        if self in self._all:
            del self._all[self]
            self._all[self] = None  # behind those that wait longer

    async def _event(self) -> Any:
        while True:
            event = self.http.next_event()
            if event is not h11.NEED_DATA:
                return event
            if self.http.they_are_waiting_for_100_continue:
                await self._send(h11.InformationalResponse(status_code=100, headers=[]))
            self.http.receive_data(await self.stream.receive_some(RECEIVE_BYTES))

    async def _body(self) -> bytes:
        body = bytearray()
        while True:
            event = await self._event()
            if not isinstance(event, h11.Data):
                return bytes(body)
            body += event.data
            if len(body) > BODY_BYTES_MAX:
                raise h11.RemoteProtocolError(f"a body of more than {BODY_BYTES_MAX:,} bytes", 413)

    async def _answer(self, request: h11.Request, body: bytes) -> None:
        method = request.method.decode("ascii", "replace")
        target = request.target.decode("ascii", "replace")
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in request.headers}
        answer: tuple[int, Row] | Text | Streamed | None = None
        try:
            if self.too_many and target.partition("?")[0] not in self.site.health_paths:
                raise QueryError(503, "too_many_connections", f"{CONNECTIONS_MAX} connections are open already.")
            with trio.move_on_after(REQUEST_S):
                answer = await self.site.answer(method, target, headers, body)
            if answer is None:
                raise QueryError(504, "too_slow", f"There was no answer within {REQUEST_S:.0f} s.")
        except QueryError as error:
            await self._send_error(error)
            return
        except Exception:
            log.exception("admin_failed", path=target)
            await self._send_error(QueryError(500, "internal_error", "This is our fault; the log has more."), True)
            return
        if isinstance(answer, Streamed):
            await self._stream(answer)
            return
        if not isinstance(answer, Text):
            answer = _json(*answer)
        await self._send_text(answer, with_body=method != "HEAD", close=self.too_many)

    async def _send_error(self, error: QueryError, close: bool = False) -> None:
        answer = _json(error.status, {"error": {"reason": error.reason, "text": error.text}})
        await self._send_text(answer, close=close or self.too_many)

    async def _send_text(self, answer: Text, *, with_body: bool = True, close: bool = False) -> None:
        status, kind, text = answer
        headers = [("Content-Type", kind), ("Content-Length", str(len(text)))]
        if close:
            headers.append(("Connection", "close"))
        await self._send(h11.Response(status_code=status, headers=headers))
        if with_body:
            await self._send(h11.Data(data=text))
        await self._send(h11.EndOfMessage())

    async def _stream(self, answer: Streamed) -> None:
        """Send lines as they come, until they end or the caller goes; an empty one shows that we are here."""
        begun = False
        async with _Closing(answer.lines) as lines, trio.open_nursery() as nursery:
            nursery.start_soon(self._until_gone, nursery.cancel_scope)
            try:
                async for line in lines:
                    if not begun:
                        await self._send(
                            h11.Response(
                                status_code=200,
                                headers=[("Content-Type", "application/x-ndjson"), ("Connection", "close")],
                            )
                        )
                        begun = True
                    if line:
                        await self._send(h11.Data(data=msgspec.json.encode(line) + b"\n"))
                await self._send(h11.EndOfMessage())
            except QueryError as error:
                assert not begun, error  # only the beginning can be refused
                await self._send_error(error, True)
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

    async def _send(self, event: Any) -> None:
        data = self.http.send(event)
        if data:
            with trio.fail_after(SEND_S):
                await self.stream.send_all(data)


def _json(status: int, value: Row) -> Text:
    return Text(status, "application/json", msgspec.json.encode(value) + b"\n")


class _Closing:
    """An async iterator that is closed at the end of a block, whatever ends it."""

    def __init__(self, lines: AsyncIterator[Row]) -> None:
        self.lines = lines

    async def __aenter__(self) -> AsyncIterator[Row]:
        return self.lines

    async def __aexit__(self, *ignored: object) -> None:
        with trio.CancelScope(shield=True, deadline=trio.current_time() + 2.0):
            await self.lines.aclose()  # type: ignore[attr-defined]
