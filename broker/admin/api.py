"""The admin socket: HTTP/1.1 with JSON over a Unix socket in the data folder, for every operator who may open it.

What is asked goes to the workers by one call, `backend.ask`; what several of them answer is put together here. With one
worker the backend is that worker itself, with more the supervisor, which asks them over their control channels.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote

import msgspec
import trio

from broker.admin.ban_query import asked_for
from broker.admin.listener_query import merged_listeners
from broker.admin.pagination import LIMIT_DEFAULT, LIMIT_MAX, QueryError, Row, place_of
from broker.admin.reload_query import merged_reload
from broker.admin.requests import (
    Admitted,
    Answer,
    Handler,
    Head,
    Request,
    Route,
    Streamed,
    Text,
    arguments_of,
    fits,
    plain_refusal,
)
from broker.admin.route_merge import merged_heads
from broker.admin.shadow_query import merged_shadows
from broker.admin.why_merge import LAST_DEFAULT, merged_why
from broker.version import VERSION

BODY_BYTES_MAX: Final = 16_777_216
WORKER_S: Final = 20.0  # that a request may wait for workers, however many it asks and how often
AGAIN_S: Final = 1.0  # ... and at least so long for those that it asks because of what another one said
READY_S: Final = 0.5  # that /ready waits: a probe has often no more than a second
RECEIVERS_S: Final = 5.0  # that a publish waits for the others, to say whom they had for it
LOOK_WAIT_S: Final = 1.0
LOOK_SILENCE_S: Final = 5.0  # without an answer of a worker, after which a look goes on without it
NO_ANSWER: Final = frozenset({"worker_silent", "worker_away"})  # errors that say nothing of what was asked


if TYPE_CHECKING:
    from broker.admin.backend import Backend
    from broker.auth.bans import Ban


PAGED: Final[dict[str, type]] = {"limit": int, "cursor": str}


class Admin:
    """What the paths of the admin socket answer.

    Args:
        backend: whom it asks.

    Attributes:
        routes: all that can be asked.
    """

    health_paths = ("/live", "/ready")

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self._troubles: dict[int, str | None] = {}  # of each worker's log, when it was asked last
        self.routes: list[Route] = []
        route = self._route
        route("GET", "/live", self._live)
        route("GET", "/ready", self._ready)
        route("GET", "/status", self._status)
        route("GET", "/workers", self._rows_of("workers"))
        route("GET", "/peers", self._rows_of("peers"))
        route("POST", "/peers/*/forget", self._forget)
        route("GET", "/slowest", self._slowest, {"limit": int})
        route("GET", "/clients", self._paged("clients"), {**PAGED, "prefix": str})
        route("GET", "/clients/*", self._of_client("client"))
        route("POST", "/clients/*/kick", self._of_client("kick"), {"session": bool})
        route("GET", "/clients/*/trace", self._trace)
        route("GET", "/clients/*/why", self._why, {"topic": str, "last": int, "watch": bool}, "topic")
        route("GET", "/sessions", self._paged("sessions"), {**PAGED, "prefix": str, "connected": bool})
        route("GET", "/subscriptions", self._paged("subscriptions"), {**PAGED, "client": str, "filter": str})
        route(
            "GET",
            "/routes",
            self._reach,
            {**PAGED, "topic": str, "qos": int, "retain": bool, "publisher": str},
            "topic",
        )
        route("GET", "/acl", self._acl, {
            "client": str, "action": str, "topic": str, "qos": int, "retain": bool, "user": str, "address": str,
            "listener": int, "groups": str}, "client", "action", "topic")  # fmt: skip
        route("GET", "/shadow", self._shadow)
        route("GET", "/retained", self._retained, {**PAGED, "filter": str})
        route(
            "POST",
            "/publish",
            self._publish,
            {"topic": str, "payload": str, "payload_base64": str, "qos": int, "retain": bool},
            "topic",
        )
        route("POST", "/drain", self._drain, {"to": str, "rate": int})
        route("POST", "/restart", self._restart)
        route("GET", "/restart", self._restarting)
        route("GET", "/log-level", self._log_level)
        route("PUT", "/log-level", self._log_level, {"level": str}, "level")
        route("GET", "/listeners", self._listeners)
        route("POST", "/reload", self._reload)
        route("GET", "/config", self._config)
        route("GET", "/bans", self._bans, PAGED)
        route("POST", "/bans", self._ban, {"kind": str, "name": str, "for_s": int, "reason": str}, "kind", "name")
        route("DELETE", "/bans", self._unban, {"kind": str, "name": str}, "kind", "name")

    def _route(
        self, method: str, path: str, handler: Handler, arguments: dict[str, type] | None = None, *required: str
    ) -> None:
        self.routes.append(Route(method, tuple(path.strip("/").split("/")), arguments or {}, required, handler))

    async def keep_house(self) -> None:
        """Tidy up now and then, until cancelled."""
        await self.backend.keep_house()

    async def admit(self, head: Head) -> Admitted:
        """Admit every request: who can open the socket may do everything."""
        return Admitted(BODY_BYTES_MAX, partial(self.answer, head.method, head.target))

    def refusal(self, target: str, error: QueryError) -> Text:
        """Return what is answered to a request that is refused."""
        return plain_refusal(error)

    async def answer(self, method: str, target: str, body: bytes) -> Answer:
        """Return the status and the JSON of a request's answer, or what is to be streamed. Raises QueryError."""
        route, path, query = self.route_of(method, target)
        answer = await route.handler(Request(method, path, arguments_of(route, query, body)))
        if isinstance(answer, (Streamed, Text)):
            return answer
        return answer if isinstance(answer, tuple) else (200, answer)

    def route_of(self, method: str, target: str) -> tuple[Route, tuple[str, ...], str]:
        """Return the route of a request, the parts of its path that stand for something, and its query.

        Raises QueryError: there is none.
        """
        raw_path, _, query = target.partition("?")
        parts = tuple(unquote(part) for part in raw_path.strip("/").split("/"))
        found = [route for route in self.routes if fits(route.path, parts)]
        if not found:
            raise QueryError(
                404,
                "unknown_path",
                f"There is nothing at {raw_path}; the paths are "
                f"{', '.join(dict.fromkeys('/' + '/'.join(route.path) for route in self.routes))}.",
            )
        asked = "GET" if method == "HEAD" else method
        route = next((route for route in found if route.method == asked), None)
        if route is None:
            methods = ", ".join(route.method for route in found)
            raise QueryError(
                405, "method_not_allowed", f"{raw_path} takes {methods}, not {method}.", (("Allow", methods),)
            )
        return route, tuple(part for part, wanted in zip(parts, route.path, strict=True) if wanted == "*"), query

    # Asking workers -------------------------------------------------------------------------------------------------

    async def _ask(self, worker: int, query: str, arguments: Row, within_s: float = WORKER_S) -> Row:
        """Return one worker's answer. Raises QueryError."""
        answer: Row | None = None
        with trio.move_on_after(within_s):
            answer = await self.backend.ask(worker, query, arguments)
        if answer is None:
            raise QueryError(503, "worker_silent", f"Worker {worker} has not answered in {within_s:.3g} s.")
        error = answer.get("error")
        if error is not None:
            raise QueryError(error["status"], error["reason"], error["text"])
        return answer

    async def _ask_all(
        self, query: str, arguments: Row, workers: list[int] | None = None, within_s: float = WORKER_S
    ) -> dict[int, Row | QueryError]:
        """Return the answer of every worker, or of these, or why there is none, by number."""
        answers: dict[int, Row | QueryError] = {}

        async def ask(worker: int) -> None:
            try:
                answers[worker] = await self._ask(worker, query, arguments, within_s)
            except QueryError as error:
                answers[worker] = error

        async with trio.open_nursery() as nursery:
            for worker in self.backend.workers() if workers is None else workers:
                nursery.start_soon(ask, worker)
        return dict(sorted(answers.items()))

    async def _ask_who_knows(self, query: str, arguments: Row) -> Row:
        """Return the answer of the one worker that knows the client: its home, unless that does not know it.

        Whoever waits for a silent worker waits once, and only if it is the home, or if nobody else knows the client.
        """
        began_s = trio.current_time()
        home, present = self.backend.home_of(arguments["client"]), self.backend.workers()
        if not present:
            raise QueryError(503, "no_worker", "No worker is ready.")
        if home not in present:
            raise QueryError(503, "worker_away", f"Worker {home}, where this client lives, does not serve clients now.")
        try:
            return await self._ask(home, query, arguments)
        except QueryError as error:
            if error.reason != "unknown_client":
                raise
            unknown = error
        # In-process clients live with any worker.
        others = [worker for worker in present if worker != home]
        answers = await self._ask_all(query, arguments, others, _left_s(began_s))
        errors = []
        for answer in answers.values():
            if not isinstance(answer, QueryError):
                return answer
            errors.append(answer)
        raise next((error for error in errors if error.reason not in ("unknown_client", *NO_ANSWER)), unknown)

    # Health ---------------------------------------------------------------------------------------------------------

    async def _live(self, request: Request) -> Row:
        return {"live": True}

    async def _ready(self, request: Request) -> tuple[int, Row]:
        """Return 503 and why, while clients cannot connect to a worker or a worker keeps nothing of what it is sent.

        A worker that does not answer at once counts as it did when it did last: it may be busy.
        """
        if not self.backend.describe()["ready"]:
            return 503, {"ready": False, "reasons": ["Not every worker serves clients."]}
        for worker, answer in (await self._ask_all("log", {}, within_s=READY_S)).items():
            if not isinstance(answer, QueryError):
                self._troubles[worker] = answer["trouble"]
        troubles = {worker: self._troubles.get(worker) for worker in self.backend.workers()}
        reasons = [
            f"Worker {worker} cannot keep anything: {trouble}."
            for worker, trouble in troubles.items()
            if trouble is not None
        ]
        return (503, {"ready": False, "reasons": reasons}) if reasons else (200, {"ready": True})

    # The broker -----------------------------------------------------------------------------------------------------

    async def _status(self, request: Request) -> Row:
        known = self.backend.describe()
        answers = await self._ask_all("status", {})
        rows = [answer for answer in answers.values() if not isinstance(answer, QueryError)]
        totals = {
            name: sum(row[name] for row in rows)
            for name in (
                "clients",
                "sessions",
                "subscriptions",
                "queued",
                "messages_in",
                "messages_out",
                "dropped",
                "memory_bytes",
            )
        }
        return {
            "version": VERSION, "pid": os.getpid(), **known, "workers": len(rows),
            "uptime_s": max((row["uptime_s"] for row in rows), default=0.0),
            "listening": sorted({address for row in rows for address in row["listening"]}),
            "log_level": rows[0]["log_level"] if rows else None,
            "durability": rows[0]["durability"] if rows else None,
            "troubles": [row["trouble"] for row in rows if row["trouble"]], **totals,
            "retained": max((row["retained"] for row in rows), default=0),       # one index, which all of them read
        }  # fmt: skip

    def _rows_of(self, query: str) -> Handler:
        """Return a handler that answers with the rows of all workers."""

        async def handle(request: Request) -> Row:
            rows: list[Row] = []
            for worker, answer in (await self._ask_all(query, request.arguments)).items():
                if isinstance(answer, QueryError):
                    rows.append({"worker": worker, "error": answer.text})
                else:
                    rows += answer["rows"]
            return {"rows": rows}

        return handle

    async def _forget(self, request: Request) -> Row:
        peer = request.path[0]
        answers = (await self._ask_all("forget", {"peer": peer})).values()
        known = [answer for answer in answers if not isinstance(answer, QueryError) and answer["known"]]
        if not known:
            refused = [answer for answer in answers if isinstance(answer, QueryError) and answer.status == 409]
            raise refused[0] if refused else QueryError(404, "unknown_peer", f"There is no peer {peer!r}.")
        return {"peer": peer, "messages_dropped": sum(row["messages_dropped"] for row in known)}

    async def _slowest(self, request: Request) -> Row:
        answers = await self._ask_all("slowest", request.arguments)
        rows = [row for answer in answers.values() if not isinstance(answer, QueryError) for row in answer["rows"]]
        rows.sort(key=lambda row: -row["behind_bytes"])
        return {"rows": rows[: request.arguments.get("limit", LIMIT_DEFAULT)]}

    async def _drain(self, request: Request) -> tuple[int, Row]:
        to, rate = request.arguments.get("to"), request.arguments.get("rate")
        if to == "" or (rate is not None and rate < 1):
            raise QueryError(400, "wrong_argument", "Expected another server for to, and 1 or more for rate.")
        return 202, await self.backend.drain(to, rate)

    async def _restart(self, request: Request) -> tuple[int, Row]:
        return 202, await self.backend.restart()

    async def _restarting(self, request: Request) -> Row:
        return self.backend.restarting()

    async def _log_level(self, request: Request) -> Row:
        answers = await self._ask_all("log_level", request.arguments)
        for answer in answers.values():
            if isinstance(answer, QueryError):
                raise answer
        return {"level": next(iter(answers.values()))["level"]}  # type: ignore[index]

    async def _listeners(self, request: Request) -> Row:
        answers = await self._ask_all("listeners", {})
        return {
            "rows": merged_listeners(
                answer["rows"] for answer in answers.values() if not isinstance(answer, QueryError)
            )
        }

    async def _reload(self, request: Request) -> Row:
        """Have all workers read their files again; 422 if one cannot use them, and so stays as it is."""
        changes, config, adopt = await self.backend.read_settings()
        answers = await self._ask_all("reload", {} if config is None else {"config": config})
        merged = merged_reload(answers)
        adopt()
        return {**merged, "settings": changes}

    async def _config(self, request: Request) -> Row:
        return {"rows": self.backend.settings()}

    async def _shadow(self, request: Request) -> Row:
        return merged_shadows(await self._ask_all("shadow", {}))

    async def _acl(self, request: Request) -> Row:
        """Ask where the client lives, if it is there: it knows what the client has shown of itself."""
        workers = self.backend.workers()
        if not workers:
            raise QueryError(503, "no_worker", "No worker is ready.")
        home = self.backend.home_of(request.arguments["client"])
        return await self._ask(home if home in workers else workers[0], "acl", request.arguments)

    async def _bans(self, request: Request) -> Row:
        # All workers have the same.
        return await self._page("bans", request.arguments, any_worker=True)

    async def _ban(self, request: Request) -> Row:
        return await self._change_ban("ban", asked_for(request.arguments))

    async def _unban(self, request: Request) -> Row:
        return await self._change_ban("unban", asked_for(request.arguments))

    async def _change_ban(self, query: str, found: Ban) -> Row:
        """Have one worker keep a change of the bans, and tell the others, so that it is in force when this returns."""
        workers = self.backend.workers()
        if not workers:
            raise QueryError(503, "no_worker", "No worker is ready.")
        # The same one for each ban, so that what is said of it in a row counts in that order.
        home = self.backend.home_of(found.key)
        keeps = home if home in workers else workers[0]
        arguments = {"ban": msgspec.to_builtins(found)}
        answer = await self._ask(keeps, query, {**arguments, "keep": True})
        others = [worker for worker in workers if worker != keeps]
        # One that does not answer now hears of it by its link.
        await self._ask_all(query, {**arguments, "keep": False}, others, RECEIVERS_S)
        return answer

    # Listings -------------------------------------------------------------------------------------------------------

    def _paged(self, query: str) -> Handler:
        """Return a handler that answers with one page of the listings of all workers, one worker after the other."""

        async def handle(request: Request) -> Row:
            return await self._page(query, request.arguments)

        return handle

    async def _page(
        self, query: str, arguments: Row, any_worker: bool = False, missing: Mapping[int, QueryError] | None = None
    ) -> Row:
        """Return a page; a worker that gives no answer is passed over, and named in `unanswered`.

        Args:
            any_worker: each of them has the whole listing, so the first that answers is enough.
            missing: workers that have just been asked in vain, and what they said, by number; they are not asked.
        """
        arguments, missing = dict(arguments), missing or {}
        limit = arguments.get("limit", LIMIT_DEFAULT)
        if not 1 <= limit <= LIMIT_MAX:
            raise QueryError(400, "bad_argument", f"limit is 1 to {LIMIT_MAX}, not {limit}.")
        present = self.backend.workers()
        wanted = self.backend.describe()["workers_wanted"]
        cursor = arguments.pop("cursor", None)
        worker, place = place_of(cursor, wanted)
        page: Row = {"rows": [], "unanswered": []}
        failure: QueryError | None = None
        known = waited = False
        while worker < wanted and len(page["rows"]) < limit and not waited:
            asked = {**arguments, "limit": limit - len(page["rows"])}
            if place:
                asked["cursor"] = place
            answer: Row = {"rows": [], "cursor": None}
            try:
                if worker not in present:
                    raise QueryError(503, "worker_away", f"Worker {worker} does not serve clients now.")
                if worker in missing:
                    raise missing[worker]
                answer = await self._ask(worker, query, asked)
                known = True
            except QueryError as error:
                if error.reason not in ("unknown_client", *NO_ANSWER) or (any_worker and place):
                    raise
                failure = error
                if error.reason in NO_ANSWER and not any_worker:
                    page["unanswered"].append({"worker": worker, "text": error.text})
                    # Somebody waits for the page: one such wait is enough.
                    waited = error.reason == "worker_silent" and worker not in missing
            _join(page, answer)
            place = answer["cursor"] or ""
            if not place:
                worker = wanted if any_worker and known else worker + 1
        if failure is not None and not known and cursor is None and not page["unanswered"]:
            raise failure
        page["cursor"] = None if worker == wanted else f"{worker}:{place}"
        return page

    async def _reach(self, request: Request) -> Row:
        arguments = {**request.arguments, "present": self.backend.workers()}
        if "cursor" in request.arguments:
            return await self._page("routes", arguments)
        # All at once, so whoever asks waits once for all that are silent.
        heads = await self._ask_all("route_head", arguments)
        known = {worker: head for worker, head in heads.items() if not isinstance(head, QueryError)}
        missing = {worker: error for worker, error in heads.items() if isinstance(error, QueryError)}
        _known(heads)
        publisher = request.arguments.get("publisher")
        if publisher is not None:
            _known({**await self._ask_all("client", {"client": publisher}, list(known)), **missing})
        return {**merged_heads(known), **await self._page("routes", arguments, missing=missing)}

    async def _retained(self, request: Request) -> Row:
        # One index, which all of them read.
        return await self._page("retained", request.arguments, any_worker=True)

    # Clients --------------------------------------------------------------------------------------------------------

    def _of_client(self, query: str) -> Handler:
        """Return a handler that answers a question about the client in the path."""

        async def handle(request: Request) -> Row:
            return await self._ask_who_knows(query, {**request.arguments, "client": request.path[0]})

        return handle

    async def _publish(self, request: Request) -> Row:
        if not 0 <= request.arguments.get("qos", 0) <= 2:
            raise QueryError(400, "bad_argument", "qos is 0, 1 or 2.")
        workers = self.backend.workers()
        if not workers:
            raise QueryError(503, "no_worker", "No worker is ready.")
        answer = await self._ask(workers[0], "publish", request.arguments)
        groups = set(answer.pop("groups"))
        unknown = []
        # There is one worker's share of them in its answer; the others are asked whom they had for it.
        told = await self._ask_all("receivers", {"topic": request.arguments["topic"]}, workers[1:], RECEIVERS_S)
        for worker, row in told.items():
            if isinstance(row, QueryError):
                unknown.append(worker)
                continue
            answer["receivers"] += row["receivers"]
            groups.update(row["groups"])
        return {**answer, "receivers": answer["receivers"] + len(groups), "unknown": unknown}

    async def _why(self, request: Request) -> Row | Streamed:
        began_s = trio.current_time()
        arguments = {**request.arguments, "client": request.path[0]}
        if arguments.pop("watch", False):
            return Streamed(self._look({"client": arguments["client"], "topic": arguments["topic"]}))
        answer = await self._ask_who_knows("why", arguments)
        others = [worker for worker in self.backend.workers() if worker != answer["worker"]]
        if not others:
            return answer
        told = await self._ask_all(
            "why_passed", {**request.arguments, "worker": answer["worker"]}, others, _left_s(began_s)
        )
        known = {worker: row for worker, row in told.items() if not isinstance(row, QueryError)}
        return {
            **merged_why(answer, known, request.arguments.get("last", LAST_DEFAULT)),
            "unknown": [worker for worker in others if worker not in known],
        }

    async def _trace(self, request: Request) -> Streamed:
        return Streamed(self._look({"client": request.path[0]}))

    async def _look(self, arguments: Row) -> AsyncIterator[Row]:
        """Yield what all workers see of a client, until the caller has gone."""
        answers = await self._begin_look(arguments)
        home = answers.get(self.backend.home_of(arguments["client"]))
        if home is None or isinstance(home, QueryError):
            raise home or QueryError(503, "worker_away", "The worker where this client lives is away.")
        looks = {worker: answer["look"] for worker, answer in answers.items() if not isinstance(answer, QueryError)}
        known = [worker for worker in looks if answers[worker]["known"]]  # type: ignore[index]
        try:
            yield {"event": "tracing", **arguments, "session": bool(known)}
            while looks:
                found: list[Row] = []
                missed = 0

                async def look_on(worker: int, into: list[Row]) -> None:
                    nonlocal missed
                    try:
                        answer = await self._ask(
                            worker, "look_on", {"look": looks[worker], "wait_s": LOOK_WAIT_S}, LOOK_SILENCE_S
                        )
                    except QueryError as error:
                        del looks[worker]
                        into.append({"event": "worker_lost", "worker": worker, "text": error.text})
                        return
                    into += answer["events"]
                    missed += answer["missed"]

                async with trio.open_nursery() as nursery:
                    for worker in looks:
                        nursery.start_soon(look_on, worker, found)
                for event in found:
                    yield event
                if missed:
                    yield {"event": "missed", "count": missed}
                if not found:
                    yield {}  # nothing to say, and a chance to notice that nobody listens any more
        finally:
            with trio.CancelScope(shield=True, deadline=trio.current_time() + 1.0):
                async with trio.open_nursery() as nursery:
                    for worker, look in looks.items():
                        nursery.start_soon(self._ask_all, "look_away", {"look": look}, [worker])

    async def _begin_look(self, arguments: Row) -> dict[int, Row | QueryError]:
        """Have all workers look at a client. Who is silent is left out soon: its home sees most of it."""
        home = self.backend.home_of(arguments["client"])
        answers: dict[int, Row | QueryError] = {}
        async with trio.open_nursery() as nursery:
            for worker in self.backend.workers():

                async def ask(worker: int = worker) -> None:
                    within_s = WORKER_S if worker == home else LOOK_SILENCE_S
                    answers.update(await self._ask_all("look", arguments, [worker], within_s))

                nursery.start_soon(ask)
        return answers


def _left_s(began_s: float) -> float:
    """Return how long a request that began then (trio's clock) may still wait for workers."""
    return max(AGAIN_S, began_s + WORKER_S - trio.current_time())


def _known(answers: dict[int, Row | QueryError]) -> Row:
    """Return the first answer that is one. Raises QueryError, the weightiest, if there is none."""
    errors = []
    for answer in answers.values():
        if not isinstance(answer, QueryError):
            return answer
        errors.append(answer)
    if not errors:
        raise QueryError(503, "no_worker", "No worker is ready.")
    raise next((error for error in errors if error.reason != "unknown_client"), errors[0])


def _join(page: Row, answer: Row) -> None:
    """Add a worker's answer to a page: lists go behind one another, anything else stays as the first one said it."""
    for name, value in answer.items():
        if isinstance(value, list):
            page[name] = [*page.get(name, ()), *value]
        elif name != "cursor" and page.get(name) is None:
            page[name] = value
