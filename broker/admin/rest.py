"""/api/v1: what the admin socket answers, for users and groups that the settings name, over the network.

Who asks says so in each request, by HTTP Basic or a bearer token: there are no cookies, so another site's page has
nothing to send along; what a browser says of such a page is heeded all the same.
"""

from __future__ import annotations

import base64
import binascii
import math
import time
import zlib
from collections.abc import AsyncIterator
from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from broker.admin.api import BODY_BYTES_MAX, Admin
from broker.admin.openapi import PREFIX, PROBLEM_JSON, described, document
from broker.admin.overview import COARSE_STEP_S, FINE_STEP_S, MEANINGS, NAMES, Overview
from broker.admin.pagination import QueryError, Row
from broker.admin.requests import Admitted, Answer, Head, Request, Route, Streamed, Text, json_text
from broker.auth.addresses import subscriber_of
from broker.logs import get
from broker.wire.rendering import shown_name

if TYPE_CHECKING:
    from broker.admin.backend import Backend
    from broker.config.http import Http

log = get("admin")

READING: Final = ("GET", "HEAD")
STREAM_S: Final = 3600.0
STREAMS_MAX: Final = 16  # of all who ask
WHO: Final = (
    ("WWW-Authenticate", 'Basic realm="shoal", charset="UTF-8"'),
    ("WWW-Authenticate", 'Bearer realm="shoal"'),
)
ALWAYS: Final = (("Cache-Control", "no-store"), ("X-Content-Type-Options", "nosniff"))
TITLES: Final = {
    400: "Bad Request", 401: "Unauthorized", 403: "Forbidden", 404: "Not Found", 405: "Method Not Allowed",
    409: "Conflict", 413: "Content Too Large", 415: "Unsupported Media Type", 422: "Unprocessable Content",
    429: "Too Many Requests", 500: "Internal Server Error", 503: "Service Unavailable", 504: "Gateway Timeout",
}  # fmt: skip


class Api:
    """What the paths below /api/v1 answer.

    Args:
        backend: whom it asks.
        rights: which users and groups may read, and which may do everything.

    Attributes:
        routes: all that can be asked.
    """

    def __init__(self, backend: Backend, rights: Http) -> None:
        self.backend = backend
        self.rights = rights
        self._overview = Overview(backend)
        self._admin = Admin(backend)
        self.routes = [
            *(route for route in self._admin.routes if described(route) is not None),
            Route("GET", ("stream",), {}, (), self._follow),
            Route("GET", ("history",), {"series": str, "step_s": int, "last_s": int}, (), self._history),
        ]
        self._admin.routes = self.routes
        self._streams = 0
        self._document = json_text(200, document(self.routes))

    async def keep_house(self) -> None:
        """Remember the overview, until cancelled, if there is anyone who may ask for it."""
        if self.rights.is_asked_by_users:
            await self._overview.run()

    async def admit(self, head: Head) -> Admitted:
        """Find out who asks, and whether that may be asked. Raises QueryError."""
        if not self.rights.is_asked_by_users:
            raise QueryError(
                404, "no_api", "There is no API: neither [http] administrators nor observers are set, nor their groups."
            )
        _refuse_other_sites(head)
        user, may_change, until_s = await self._user_of(head)
        target = head.target.removeprefix(PREFIX)
        if head.path == f"{PREFIX}/openapi.json":
            if head.method not in READING:
                raise QueryError(405, "method_not_allowed", f"{head.path} takes GET.", (("Allow", "GET, HEAD"),))
            return Admitted(0, self._describe)
        self._admin.route_of(head.method, target)
        if head.method in READING:
            return Admitted(0, partial(self._answer, head, target, until_s))
        if not may_change:
            raise QueryError(403, "observer", f"{user} may read, and change nothing.")
        if head.headers.get("content-length", "0") != "0" or "transfer-encoding" in head.headers:
            kind = head.headers.get("content-type", "").partition(";")[0].strip().lower()
            if kind != "application/json":
                raise QueryError(415, "not_json", "A body is application/json, and its Content-Type says so.")
        log.warning("api_asked", user=shown_name(user), address=head.peer, method=head.method, path=head.path)
        return Admitted(BODY_BYTES_MAX, partial(self._answer, head, target, until_s))

    def refusal(self, target: str, error: QueryError) -> Text:
        """Return what is answered to a request that is refused: a problem as of RFC 9457."""
        problem = {
            "type": "about:blank",
            "title": TITLES.get(error.status, "Error"),
            "status": error.status,
            "detail": error.text,
            "reason": error.reason,
        }
        return json_text(error.status, problem, PROBLEM_JSON)._replace(headers=(*ALWAYS, *error.headers))

    async def _describe(self, body: bytes) -> Answer:
        return self._document

    async def _answer(self, head: Head, target: str, until_s: float, body: bytes) -> Answer:
        answer = await self._admin.answer(head.method, target, body)
        if isinstance(answer, Streamed):
            return self._stream(answer, until_s)
        if isinstance(answer, Text):
            return answer._replace(headers=ALWAYS)
        return json_text(*answer)._replace(headers=ALWAYS)

    async def _follow(self, request: Request) -> Streamed:
        return Streamed(self._overview.follow(), is_events=True)

    async def _history(self, request: Request) -> Text:
        given = request.arguments
        names = given["series"].split(",") if given.get("series") else NAMES
        unknown = [name for name in names if name not in MEANINGS]
        if unknown:
            raise QueryError(400, "bad_argument", f"There is no series {unknown[0]!r}; there are {', '.join(NAMES)}.")
        step_s = given.get("step_s", COARSE_STEP_S)
        if step_s not in self._overview.rings:
            raise QueryError(400, "bad_argument", f"step_s is {FINE_STEP_S} or {COARSE_STEP_S}, not {step_s}.")
        return Text(200, "application/json", await self._overview.history(names, step_s, given.get("last_s")))

    def _stream(self, answer: Streamed, until_s: float) -> Streamed:
        """Return a stream that is counted, and ends with the login that it was asked for with, or after an hour."""
        if self._streams >= STREAMS_MAX:
            raise QueryError(503, "too_many_streams", f"{STREAMS_MAX} streams are open.", (("Retry-After", "10"),))

        async def counted() -> AsyncIterator[Row]:
            self._streams += 1
            try:
                async with aclosing(answer.lines) as lines:  # type: ignore[type-var]
                    async for line in lines:
                        if time.time() >= until_s:
                            break
                        yield line
            finally:
                self._streams -= 1

        return answer._replace(lines=counted())

    # Who asks -------------------------------------------------------------------------------------------------------

    async def _user_of(self, head: Head) -> tuple[str, bool, float]:
        """Return who asks, whether it may change something, and when that ends (Unix seconds). Raises QueryError."""
        login = _login_of(head.headers.get("authorization", ""))
        present = self.backend.workers()
        if not present:
            raise QueryError(503, "no_worker", "No worker is ready.", (("Retry-After", "1"),))
        # The same one for each address: it counts the logins that failed.
        worker = present[zlib.crc32(subscriber_of(head.peer).encode()) % len(present)]
        found = await self.backend.ask(worker, "log_in", {"peer": head.peer, **login})
        error = found.get("error")
        if error is not None:
            log.warning(
                "api_refused", user=shown_name(login.get("user", "")), address=head.peer, reason=error["reason"]
            )
            headers = WHO if error["status"] == 401 else (("Retry-After", "2"),) if error["status"] == 429 else ()
            raise QueryError(error["status"], error["reason"], error["text"], headers)
        user, groups, ends_s = found["identity"], found["groups"], found["expires_at_s"]
        # Who may not ask any more, and has a stream, has it no longer than this.
        until_s = min(time.time() + STREAM_S, math.inf if ends_s is None else ends_s)
        if user in self.rights.administrators or set(groups).intersection(self.rights.administrator_groups):
            return user, True, until_s
        if user in self.rights.observers or set(groups).intersection(self.rights.observer_groups):
            return user, False, until_s
        log.warning("api_refused", user=shown_name(user), address=head.peer, reason="no_rights")
        raise QueryError(403, "no_rights", f"{user} is neither an administrator nor an observer.")


def _login_of(authorization: str) -> Row:
    """Return the arguments of a login, from a header. Raises QueryError."""
    scheme, _, rest = authorization.strip().partition(" ")
    rest = rest.strip()
    if scheme.lower() == "bearer" and rest.isascii() and rest:
        return {"token": rest.encode()}
    if scheme.lower() != "basic":
        raise QueryError(401, "no_login", "Say who you are: HTTP Basic, or a bearer token.", WHO)
    try:
        user, colon, password = base64.b64decode(rest, validate=True).decode().partition(":")
    except (binascii.Error, UnicodeDecodeError, ValueError):
        colon = ""
    if not colon or not user or "\0" in user:
        raise QueryError(401, "no_login", "That is no user name and password as HTTP Basic has them.", WHO)
    return {"user": user, "password": password.encode()}


def _refuse_other_sites(head: Head) -> None:
    """Refuse what a page of another site has a browser ask for: it may know the password. Raises QueryError."""
    origin, site = head.headers.get("origin"), head.headers.get("sec-fetch-site")
    if site in ("cross-site", "same-site") or (
        origin is not None and urlsplit(origin).netloc.lower() != head.headers.get("host", "").lower()
    ):
        raise QueryError(403, "other_site", "This was asked for by a page of another site.")
