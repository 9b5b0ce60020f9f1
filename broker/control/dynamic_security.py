"""Requests to `$CONTROL/dynamic-security/v1`: executed by one worker in their order, in force on all of them.

The worker that a request comes to hashes the passwords in it, so that nobody else sees them, and asks for the turn of
its commands (CommandOrder, where the workers are known). Whoever's turn it is to execute them stores what changes, each
client, group and role for itself, and when that is durable the other workers are told. Then the client is answered, and
nobody else: who may read the answers of others is not asked.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import trio

from broker.auth.dynamic_security.client_commands import asks_for_connections
from broker.auth.dynamic_security.commands import (
    REQUEST_TOPIC,
    RESPONSE_TOPIC,
    Commands,
    RequestError,
    commands_of,
    plain_passwords,
    response_of,
)
from broker.auth.dynamic_security.entities import TYPES, Entity, Kind, entity_of, key_of, value_of
from broker.auth.dynamic_security.fields import parsed
from broker.auth.dynamic_security.state import Draft, State
from broker.auth.principal import host_of
from broker.logs import get
from broker.wire.application_message import build
from broker.wire.rendering import text_of

if TYPE_CHECKING:
    from broker.auth.dynamic_security.authenticator import DynamicLogins
    from broker.auth.principal import Principal
    from broker.control.controller import Controller
    from broker.control.requests import Request
    from broker.control.shared_state import SharedState, Value

log = get("dynamic_security")

KIND: Final = "dynamic-security"  # of shared state
REQUEST: Final = REQUEST_TOPIC.encode()
RESPONSE: Final = RESPONSE_TOPIC.encode()
MARK_BYTES: Final = 8
APPLY_S: Final = 5.0  # for the other workers to have a change in force, before it is answered
LOOKED_AT_PER_STEP: Final = 500  # connections between two checkpoints: some milliseconds
# mosquitto's words for what cannot be helped.
FAILED: Final = {"command": "Unknown command", "error": "Internal error"}
QUERIES: Final = ("dynamic_security_execute", "dynamic_security_apply", "dynamic_security_connections")

Row = dict[str, Any]
Ask = Callable[[int, str, Row], Awaitable[Row]]
Order = Callable[[Row], Awaitable[Row]]


class CommandOrder:
    """One request after the other, for all workers.

    Args:
        workers: returns the numbers of those that serve clients; the first of them executes.
        ask: asks one of them.
        failed: what `ask` raises if it gives no answer.
    """

    def __init__(self, workers: Callable[[], list[int]], ask: Ask, failed: type[Exception]) -> None:
        self._workers = workers
        self._ask = ask
        self._failed = failed
        self._lock = trio.Lock()

    async def execute(self, request: Row) -> Row:
        """Have a request executed; returns `answers` when what it changes is durable, and in force on all workers.

        A worker that does not answer then hears of it by its link, or when it is back.

        Args:
            request: `commands`, as JSON; `connections`: their answers say where clients are connected from; and `by`:
                the client identifier of who asks.
        """
        async with self._lock:
            connections: dict[str, list[str]] = {}
            if request["connections"]:
                for found in (await self._ask_all("dynamic_security_connections", {}, self._workers())).values():
                    for user, addresses in found.items():
                        connections.setdefault(user, []).extend(addresses)
            executes = self._workers()[:1]
            answered = await self._ask_all(
                "dynamic_security_execute", {"commands": request["commands"], "connections": connections}, executes
            )
            if not answered:
                # Whether it was executed is not known: who asked may look, and ask again.
                return {"answers": [FAILED]}
            (done,) = answered.values()
            if done["values"] or done["kicked"]:
                told = {name: done[name] for name in ("values", "changes", "kicked")} | {"by": request["by"]}
                with trio.move_on_after(APPLY_S):
                    await self._ask_all("dynamic_security_apply", told, self._workers())
            return {"answers": done["answers"], "kicked": done["kicked"]}

    async def _ask_all(self, query: str, arguments: Row, workers: list[int]) -> dict[int, Row]:
        """Return the answers of those workers that give one."""
        answers: dict[int, Row] = {}

        async def ask(worker: int) -> None:
            try:
                answers[worker] = await self._ask(worker, query, arguments)
            except self._failed as error:
                log.warning("worker_not_asked", worker=worker, query=query, what=str(error))

        async with trio.open_nursery() as nursery:
            for worker in workers:
                nursery.start_soon(ask, worker)
        return answers


class DynamicSecurity:
    """What one worker does about it.

    Args:
        logins: the authenticator, whose state is kept here.
        shared: where all workers keep it.
        controller: the worker's.
        keeps_start: this worker stores what the others begin with as well.
    """

    def __init__(self, logins: DynamicLogins, shared: SharedState, controller: Controller, keeps_start: bool) -> None:
        self._logins = logins
        self._rights = logins.rights
        self._shared = shared
        self._controller = controller
        self._keeps_start = keeps_start
        self._start: State | None = None  # what is in force and not known to be stored
        self._lock = trio.Lock()
        self._differs = trio.Event()  # rights are others, and what was remembered of them is not yet
        self._order: Order = CommandOrder(lambda: [0], self._ask_own, trio.TooSlowError).execute
        shared.follow(KIND, self._on_value)
        shared.load(KIND)
        if not shared.has(KIND, key_of("settings", "")):
            self._start = logins.start()
            for kind, name, entity in all_of(self._start):
                logins.state.put(kind, name, entity)
        controller.requests.take(REQUEST, self.on_request)

    def order_by(self, order: Order) -> None:
        """From now on another one says whose turn it is: where there are several workers."""
        self._order = order

    async def run(self) -> None:
        """Store what it begins with, once; then have rights asked about anew when they are others. Until cancelled."""
        if self._keeps_start:
            async with self._lock:
                await self._keep_start()
        while True:
            await self._differs.wait()
            self._tell_changed()

    def _tell_changed(self) -> None:
        """Have what was remembered of rights forgotten, once for all that has changed."""
        if self._differs.is_set():
            self._differs = trio.Event()
            self._rights.changed()

    async def _keep_start(self) -> None:
        start = self._start
        if start is None:
            return
        entities = all_of(start)
        values: dict[str, Value | None] = {key_of(kind, name): value_of(entity) for kind, name, entity in entities}
        settings = values.pop(key_of("settings", ""))
        await self._shared.put_all(KIND, values)
        # The last one says that all others are there.
        await self._shared.put_all(KIND, {key_of("settings", ""): settings})
        self._start = None
        log.info("dynamic_security_begun", clients=len(start.clients), groups=len(start.groups), roles=len(start.roles))

    def _on_value(self, key: str, value: Value | None) -> None:
        kind, _, name = key.partition(":")
        if kind not in TYPES:
            raise KeyError(key)
        entity: Entity | None = None if value is None else entity_of(kind, value)
        if self._logins.state.get(kind, name) != entity:
            self._logins.state.put(kind, name, entity)
            self._logins.changed()
            self._differs.set()
        if kind == "settings":
            self._start = None

    # A client's request ---------------------------------------------------------------------------------------------

    def on_request(self, request: Request) -> None:
        """Deal with a request. What the client sends meanwhile waits."""
        assert self._controller.handshake.spawn is not None, "requests come while serve() runs"
        self._controller.handshake.spawn(self._deal_with, request)

    async def _deal_with(self, request: Request) -> None:
        principal = request.connection.principal
        try:
            done = await self._executed(principal, request.payload)
        except Exception:
            log.exception("dynamic_security_failed", client=text_of(principal.client_identifier))
            done = {"answers": [FAILED]}
        session = request.session
        if session is None:
            return
        if self._rights.may_read(principal, RESPONSE):
            response = response_of(done["answers"])
            self._controller.router.announce(build(RESPONSE, response, 0, False, None, 0), session)
        is_kicked = principal.user_name in done.get("kicked", ())
        request.end(parses_on=not is_kicked)
        if is_kicked:
            self._controller.send_away(session, False)  # behind the answer

    async def _executed(self, principal: Principal, payload: bytes) -> Row:
        try:
            commands = commands_of(payload)
        except RequestError as error:
            return {"answers": [{"command": "Unknown command", "error": str(error)}]}
        for setting in plain_passwords(commands):
            setting["password"] = (await self._logins.hashing.new_hash(setting["password"].encode())).decode()
        client_identifier = principal.client_identifier.decode()
        done = await self._order(
            {
                # As text: between processes not all that JSON can say finds its way.
                "commands": json.dumps(commands).encode(),
                "by": client_identifier,
                "connections": any(isinstance(command, dict) and asks_for_connections(command) for command in commands),
            }
        )
        for command, answer in zip(commands, done["answers"], strict=False):
            named = command if isinstance(command, dict) else {}
            log.info(
                "dynamic_security_command",
                client=client_identifier,
                user=principal.user_name,
                command=answer["command"],
                **{name: named[name] for name in ("username", "groupname", "rolename") if name in named},
                error=answer.get("error"),
            )
        return done

    # What workers ask of one another --------------------------------------------------------------------------------

    async def _ask_own(self, _worker: int, query: str, arguments: Row) -> Row:
        return await self.answer(query, arguments)

    async def answer(self, query: str, arguments: Row) -> Row:
        """Answer one of QUERIES."""
        if query == "dynamic_security_execute":
            return await self._execute(arguments)
        if query == "dynamic_security_apply":
            return await self._apply(arguments)
        return await self._connections()

    async def _execute(self, arguments: Row) -> Row:
        """Execute commands and store what they change; returns that, the answers, and who is to be sent away."""
        connections = arguments["connections"]
        async with self._lock:
            await self._keep_start()
            draft = Draft(self._logins.state, partial(secrets.token_hex, MARK_BYTES))
            answers = Commands(draft, lambda user: connections.get(user, [])).execute(parsed(arguments["commands"]))
            values: dict[str, Value | None] = {
                key_of(kind, name): None if entity is None else value_of(entity) for kind, name, entity in draft.changes
            }
            await self._shared.put_all(KIND, values)
            self._tell_changed()
        changes = draft.settings.changes
        return {"answers": answers, "values": values, "changes": changes, "kicked": list(draft.kicked)}

    async def _apply(self, arguments: Row) -> Row:
        """Have values in force here, and send clients away: not who asked for it, which is answered first."""
        # A later request's are here, by its worker's link, if this worker was away for long.
        if arguments["changes"] >= self._logins.state.settings.changes:
            for key, value in arguments["values"].items():
                self._on_value(key, value)
        self._tell_changed()
        kicked = set(arguments["kicked"])
        for number, (session, connection) in enumerate(self._controller.holders() if kicked else ()):
            if number % LOOKED_AT_PER_STEP == 0:
                await trio.lowlevel.checkpoint()
            principal = connection.principal
            if (
                principal is not None
                and principal.user_name in kicked
                and not connection.is_closing
                and principal.client_identifier.decode() != arguments["by"]
            ):
                self._controller.send_away(session, False)
        return {}

    async def _connections(self) -> Row:
        """Return the addresses of clients that are connected here, by user."""
        found: dict[str, list[str]] = {}
        for number, (_, connection) in enumerate(self._controller.holders()):
            if number % LOOKED_AT_PER_STEP == 0:
                await trio.lowlevel.checkpoint()
            principal = connection.principal
            if principal is not None and principal.user_name is not None:
                address = principal.address or host_of(connection.peer)
                if address is not None:
                    found.setdefault(principal.user_name, []).append(address)
        return found


def all_of(state: State) -> list[tuple[Kind, str, Entity]]:
    """Return all entities of a state, what there is once as the last one."""
    found: list[tuple[Kind, str, Entity]] = []
    found += [("role", name, role) for name, role in state.roles.items()]
    found += [("group", name, group) for name, group in state.groups.items()]
    found += [("client", name, client) for name, client in state.clients.items()]
    return [*found, ("settings", "", state.settings)]
