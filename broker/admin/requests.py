"""Requests to the admin socket: which paths there are, and which arguments each takes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any, Final, NamedTuple, Protocol
from urllib.parse import parse_qsl

import msgspec

from broker.admin.pagination import QueryError, Row

_TYPE_NAMES: Final = {int: "a whole number", str: "text", bool: "true or false"}


class Request(NamedTuple):
    """What was asked: the parts of the path that stand for something, and the arguments, by name."""

    method: str
    path: tuple[str, ...]
    arguments: Row


class Streamed(NamedTuple):
    """An answer that goes on: one JSON object a line, or (`is_events`) one server-sent event each."""

    lines: AsyncIterator[Row]
    is_events: bool = False


class Text(NamedTuple):
    """An answer that is no JSON, or has headers of its own."""

    status: int
    content_type: str
    body: bytes
    headers: tuple[tuple[str, str], ...] = ()


Answer = tuple[int, Row] | Text | Streamed


class Head(NamedTuple):
    """The beginning of an HTTP request, all but its body.

    Attributes:
        headers: by their names in lower case; of several of one name, the last.
        peer: HOST:PORT of who asks; None: at a Unix socket.
    """

    method: str
    target: str
    headers: Mapping[str, str]
    peer: str | None

    @property
    def path(self) -> str:
        """The target without its query."""
        return self.target.partition("?")[0]


class Admitted(NamedTuple):
    """A request whose body is read and then answered.

    Attributes:
        body_bytes_max: longer ones are refused.
        answer: returns the answer to the body. Raises QueryError.
    """

    body_bytes_max: int
    answer: Callable[[bytes], Awaitable[Answer]]


class Site(Protocol):
    """What answers the requests of one listening socket."""

    @property
    def health_paths(self) -> tuple[str, ...]:
        """Paths that are answered however many connections there are."""

    async def admit(self, head: Head) -> Admitted:
        """Decide on a request before its body is read. Raises QueryError."""

    def refusal(self, target: str, error: QueryError) -> Text:
        """Return what is answered to a request that is refused."""

    async def keep_house(self) -> None:
        """Do what is to be done now and then, until cancelled."""


Handler = Callable[[Request], Awaitable["Row | Streamed | Text | tuple[int, Row]"]]


class Route(NamedTuple):
    """A method and a path, `*` standing for one part, with the arguments that it takes and its handler."""

    method: str
    path: tuple[str, ...]
    arguments: dict[str, type]
    required: tuple[str, ...]
    handler: Handler


def fits(pattern: tuple[str, ...], parts: tuple[str, ...]) -> bool:
    """Return whether a path is one of a route."""
    return len(pattern) == len(parts) and all(
        wanted in ("*", part) and part != "" for wanted, part in zip(pattern, parts, strict=True)
    )


def arguments_of(route: Route, query: str, body: bytes) -> Row:
    """Return the arguments of a request, from its query and, if it may have one, its JSON body. Raises QueryError."""
    arguments: Row = {}
    for name, text in parse_qsl(query, keep_blank_values=True):
        wanted = route.arguments.get(name)
        if wanted is not None:
            arguments[name] = _converted(name, text, wanted)
        else:
            raise _unknown(route, name)
    if body.strip():
        try:
            given = msgspec.json.decode(body)
        except msgspec.DecodeError as error:
            raise QueryError(400, "bad_json", f"The body is no JSON: {error}.") from None
        if not isinstance(given, dict):
            raise QueryError(400, "bad_json", "The body is a JSON object.")
        for name, value in given.items():
            wanted = route.arguments.get(name)
            if wanted is None:
                raise _unknown(route, name)
            if type(value) is not wanted:
                raise QueryError(400, "bad_argument", f"{name} is {_TYPE_NAMES[wanted]}, not {value!r}.")
            arguments[name] = value
    for name in route.required:
        if name not in arguments:
            raise QueryError(400, "missing_argument", f"The argument {name} is missing.")
    return arguments


def _unknown(route: Route, name: str) -> QueryError:
    known = ", ".join(route.arguments) or "none"
    return QueryError(400, "unknown_argument", f"There is no argument {name!r} here; there are: {known}.")


def _converted(name: str, text: str, wanted: type) -> Any:
    if wanted is bool:
        known = {"true": True, "1": True, "": True, "false": False, "0": False}
        if text.lower() in known:
            return known[text.lower()]
    elif wanted is int:
        if text.isascii() and text.isdigit() and len(text) < 10:
            return int(text)
    else:
        return text
    raise QueryError(400, "bad_argument", f"{name} is {_TYPE_NAMES[wanted]}, not {text!r}.")


def json_text(status: int, value: Any, content_type: str = "application/json") -> Text:
    """Return an answer of JSON."""
    return Text(status, content_type, msgspec.json.encode(value) + b"\n")


def plain_refusal(error: QueryError) -> Text:
    """Return what is answered to a refused request at the admin socket, and where only health is asked for."""
    text = json_text(error.status, {"error": {"reason": error.reason, "text": error.text}})
    return text._replace(headers=error.headers)
