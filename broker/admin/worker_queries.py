"""What one worker answers to an administrator. Nothing here keeps a turn long: what is long goes in steps."""

from __future__ import annotations

import base64
import binascii
import heapq
import os
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
import trio

from broker import logs
from broker.admin.acl_query import describe_decision
from broker.admin.ban_query import ban, describe_bans, unban
from broker.admin.listener_query import facts_row, listeners_of
from broker.admin.pagination import Listings, QueryError, Row, limit_of, page
from broker.admin.reload_query import reload_files
from broker.admin.route_query import describe_head, describe_route, subscribers, topic_of
from broker.admin.shadow_query import describe_shadow
from broker.admin.why_forwarder import explain_passing
from broker.admin.why_receiver import explain
from broker.control.tracing import Look
from broker.reactor import introspection
from broker.version import VERSION
from broker.wire import application_message
from broker.wire.rendering import options_fields, payload_fields, text_of
from router.matching.topic_names import is_own
from router.peers.peer import PEER_PREFIX
from router.router import Router
from router.sessions.session import Session

if TYPE_CHECKING:
    from broker.admin.worker_view import AskedWorker
    from broker.reactor.connection import Connection
    from router.core.message import Message

SHOWN_MAX = 20  # deliveries and subscriptions that the description of one client has
DESCRIPTORS_PER_STEP = 20_000
SLOWEST_MAX = 100
PUBLISH_WAIT_S = 10.0
EVENTS_MAX = 500  # of a look, in one answer
LOOK_WAIT_MAX_S = 5.0
LOOKS_MAX = 16
ROW_COST = 40  # of a client or session, as broker.admin.pagination counts

log = logs.get("admin")


class Queries:
    """The questions that one worker answers, by name.

    Args:
        worker: whose state is asked about.
        number: the worker's, in the broker.
    """

    def __init__(self, worker: AskedWorker, number: int = 0) -> None:
        self.worker = worker
        self.number = number
        self.listings = Listings()
        self._looks: dict[int, Look] = {}
        self._last_look = 0
        self._scans: dict[int, tuple[Any, int, Row]] = {}
        self._answers: dict[str, Callable[[Row], Awaitable[Row]]] = {
            "status": self._status, "log": self._log, "workers": self._metrics, "samples": self._samples,
            "peers": self._peers, "slowest": self._slowest, "forget": self._forget,
            "clients": self._clients, "sessions": self._sessions, "client": self._client,
            "subscriptions": self._subscriptions, "routes": self._routes, "retained": self._retained,
            "route_head": self._route_head, "acl": partial(describe_decision, self),
            "bans": partial(describe_bans, self), "ban": partial(ban, self), "unban": partial(unban, self),
            "kick": self._kick, "publish": self._publish, "receivers": self._receivers,
            "log_level": self._log_level, "listeners": self._listeners,
            "reload": partial(reload_files, self), "shadow": partial(describe_shadow, self),
            "look": self._look, "look_on": self._look_on, "look_away": self._look_away, "why": self._why,
            "why_passed": self._why_passed, "log_in": self._log_in, "numbers": self._numbers,
        }  # fmt: skip

        if worker.dynamic_security is not None:
            from broker.control.dynamic_security import QUERIES

            self._answers |= {query: partial(worker.dynamic_security.answer, query) for query in QUERIES}

    async def answer(self, query: str, arguments: Row) -> Row:
        """Return the answer to a question; one that is refused has `error` with `status`, `reason` and `text`."""
        ask = self._answers.get(query)
        try:
            if ask is None:
                raise QueryError(404, "unknown_query", f"There is no query {query!r}.")
            return await ask(arguments)
        except QueryError as error:
            return error.answer()

    @property
    def router(self) -> Router:
        """The worker's."""
        return self.worker.router

    # The broker -----------------------------------------------------------------------------------------------------

    async def _status(self, arguments: Row) -> Row:
        worker, metrics = self.worker, self.worker.metrics()
        store = worker.store
        return {
            "version": VERSION, "worker": self.number, "pid": os.getpid(), "ready": worker.ready,
            "uptime_s": metrics.uptime_ms / 1000, "listening": [str(address) for address in worker.addresses],
            "log_level": logs.level(), "durability": worker.config.storage.durability if store is not None else None,
            "trouble": store.log.trouble if store is not None else None,
            "clients": metrics.sessions_connected, "sessions": metrics.sessions,
            "subscriptions": metrics.subscriptions, "retained": metrics.retained_messages,
            "queued": metrics.queued_messages, "messages_in": metrics.messages_in,
            "messages_out": metrics.messages_out, "dropped": sum(metrics.dropped.values()),
            "memory_bytes": metrics.resident_bytes,
        }  # fmt: skip

    async def _log(self, arguments: Row) -> Row:
        """What keeps the log from taking anything, None if nothing does."""
        if self.router.accepting:
            return {"trouble": None}
        store = self.worker.store
        said = store.log.trouble if store is not None else None
        return {"trouble": said or "the log is behind, because the disk is too slow"}

    async def _metrics(self, arguments: Row) -> Row:
        metrics: Row = msgspec.to_builtins(self.worker.metrics())
        for name in ("turns", "turn_lags", "guest_lags"):
            metrics[name]["p99_us"] = getattr(self.worker.metrics(), name).percentile_us(0.99)
        return {"rows": [{"worker": self.number, "pid": os.getpid(), "ready": self.worker.ready, **metrics}]}

    async def _samples(self, arguments: Row) -> Row:
        # Here, because few brokers are ever scraped.
        from broker.telemetry.prometheus import samples_of

        metrics = self.worker.metrics()
        return {"samples": samples_of(metrics, self.number), "uptime_ms": metrics.uptime_ms}

    async def _numbers(self, arguments: Row) -> Row:
        from broker.admin.overview import numbers_of

        return {"numbers": numbers_of(self.worker.metrics())}

    async def _peers(self, arguments: Row) -> Row:
        """The links to the other workers; lag is what is on its way and not acknowledged."""
        mesh = self.worker.mesh
        rows = []
        for neighbour in list(mesh.neighbours.values()) if mesh is not None else ():
            told = neighbour.link.statistics()
            rows.append({"worker": self.number, **told, "lag": told["unacknowledged"]})
        return {"rows": rows}

    async def _forget(self, arguments: Row) -> Row:
        """Drop what a peer that is away is owed by this worker."""
        mesh, peer = self.worker.mesh, arguments["peer"]
        try:
            dropped = mesh.forget(peer.encode()) if mesh is not None else None
        except KeyError:
            dropped = None
        except ValueError:
            raise QueryError(409, "peer_connected", f"The peer {peer!r} is there.") from None
        return {"peer": peer, "known": dropped is not None, "messages_dropped": dropped or 0}

    async def _log_level(self, arguments: Row) -> Row:
        level = arguments.get("level")
        if level is not None:
            if level not in logs.LEVELS:
                raise QueryError(400, "bad_argument", f"level is one of {', '.join(logs.LEVELS)}, not {level!r}.")
            log.warning("log_level_changed", to=level)
            logs.set_level(level)
        return {"level": logs.level()}

    async def _listeners(self, arguments: Row) -> Row:
        return {"rows": listeners_of(self.worker)}

    # Clients and sessions -------------------------------------------------------------------------------------------

    async def _clients(self, arguments: Row) -> Row:
        prefix = arguments.get("prefix", "").encode()

        async def everybody() -> list[Any]:
            return [*self.router.sessions.values(), *self.worker.in_process.clients.values()]

        def describe(item: Any) -> Row | None:
            if not isinstance(item, Session):
                matches = item.client_identifier.encode().startswith(prefix)
                return self._in_process_row(item) if matches and item.local.connected else None
            if item.connection is None or item.gone or not item.client_identifier.startswith(prefix):
                return None
            return self._client_row(item)

        return await page(self.listings, "clients", arguments, everybody, describe, ROW_COST)

    async def _sessions(self, arguments: Row) -> Row:
        prefix = arguments.get("prefix", "").encode()
        wanted = arguments.get("connected")

        def describe(session: Session) -> Row | None:
            if session.gone or not session.client_identifier.startswith(prefix):
                return None
            if wanted is not None and session.connected != wanted:
                return None
            return self._session_row(session)

        async def everybody() -> list[Session]:
            return list(self.router.sessions.values())

        return await page(self.listings, "sessions", arguments, everybody, describe, ROW_COST)

    def _session_row(self, session: Session) -> Row:
        ends_ms = session.ends_ms
        owed = introspection.queue_of(session)
        return {
            "client": text_of(session.client_identifier), "worker": self.number, "connected": session.connected,
            "session_expiry_interval_s": session.expiry_interval_s,
            "mount_point": text_of(session.mount_point) or None,
            "expires_in_s": max(0.0, (ends_ms - self.router.ledger.now_ms) / 1000) if ends_ms else None,
            "subscriptions": session.subscription_count, "queued": owed["queued"],
            "queued_bytes": owed["queued_bytes"], "in_flight": owed["in_flight"],
        }  # fmt: skip

    def _client_row(self, session: Session) -> Row:
        connection = session.connection
        counters = connection.counters()
        owed = introspection.queue_of(session)
        return {
            "client": text_of(session.client_identifier), "worker": self.number, "version": connection.version,
            "address": connection.peer,
            "connected_s": (self.worker.reactor.look_at_clock() - connection.opened_ms) / 1000,
            "subscriptions": session.subscription_count, "queued": owed["queued"], "in_flight": owed["in_flight"],
            "output_bytes": connection.pending_bytes, "in_process": False,
            **{name: counters[name] for name in (
                "messages_in", "messages_out", "bytes_in", "bytes_out", "messages_dropped")},
        }  # fmt: skip

    def _in_process_row(self, client: Any) -> Row:
        info = client.describe()
        return {
            "client": info.client_identifier, "worker": self.number, "version": None, "address": None,
            "connected_s": info.connected_s, "subscriptions": info.subscriptions, "queued": client.waiting,
            "in_flight": 0, "output_bytes": 0, "in_process": True, "messages_in": info.counters["messages_in"],
            "messages_out": info.counters["messages_out"], "bytes_in": 0, "bytes_out": 0,
            "messages_dropped": info.counters["messages_dropped"],
        }  # fmt: skip

    def session_of(self, arguments: Row) -> Session:
        """Return the session of the client that a question names. Raises QueryError."""
        name = arguments["client"]
        session = self.router.sessions.get(name.encode())
        if session is None:
            raise QueryError(404, "unknown_client", f"There is no session of a client {name!r}.")
        return session

    async def _client(self, arguments: Row) -> Row:
        session = self.session_of(arguments)
        connection: Connection | None = session.connection
        row = self._session_row(session)
        if connection is not None:
            row |= self._client_row(session)
            principal = connection.principal
            row |= {
                "keep_alive_s": connection.keep_alive_ms * 2 // 3 / 1000, "identity": principal.user_name,
                "groups": list(principal.groups), "superuser": principal.superuser,
                "send_quota": introspection.queue_of(session)["send_quota"],
                "dropped": connection.dropped(), "paused_by": connection.paused_by,
                "answer": self._answer_row(connection),
                "came_by": facts_row(connection.facts),
            }  # fmt: skip
        will = session.will
        row["will"] = (
            None
            if will is None
            else {
                "topic": text_of(will.topic),
                "qos": will.qos,
                "retain": will.retain,
                "delay_interval_s": will.delay_interval_s,
                **payload_fields(will.payload),
            }
        )
        row["incoming"] = session.incoming_identifiers[:SHOWN_MAX]
        row["replays"] = [text_of(replay) for replay in list(session.replays or ())[:SHOWN_MAX]]
        subscriptions, _ = introspection.subscriptions_below(
            self.router.tree, session, session.subscription_count, SHOWN_MAX
        )
        row["topic_filters"] = [
            {"topic_filter": text_of(topic_filter), **options_fields(options, identifier)}
            for topic_filter, options, identifier in subscriptions
        ]
        await trio.lowlevel.checkpoint()
        owed, _ = introspection.deliveries(session, 0, SHOWN_MAX)
        row["deliveries"] = [self._delivery_row(delivery) for delivery in owed]
        return row

    def _answer_row(self, connection: Connection) -> Row | None:
        pending = self.worker.controller.answers.of(connection)
        if pending is None:
            return None
        waited_ms = self.router.ledger.now_ms - pending.since_ms
        return {"packet": pending.packet, "waits_for": pending.waits_for, "waited_s": waited_ms / 1000}

    def _delivery_row(self, delivery: tuple[Any, ...]) -> Row:
        number, identifier, state, qos, retain, record, size, group, topic = delivery
        if topic is None and record and self.worker.store is not None:
            ledger = self.router.ledger
            try:
                message = ledger.bodies.fetch(record, ledger.now_us, ledger.now_ms)
            except (LookupError, OSError):
                message = None
            topic = message.topic_name if message is not None else None
        return {
            "number": number,
            "packet_identifier": identifier,
            "state": state,
            "qos": qos,
            "retain": retain,
            "record": record or None,
            "bytes": size,
            "topic": None if topic is None else text_of(topic),
            **({"group": text_of(group)} if group else {}),
        }

    async def _slowest(self, arguments: Row) -> Row:
        """The clients with the most bytes unsent or queued."""
        count = min(limit_of(arguments), SLOWEST_MAX)
        found: list[tuple[int, Any]] = []
        position = 0
        while True:
            position = introspection.slow_connections(self.worker.reactor, position, DESCRIPTORS_PER_STEP, found)
            found = heapq.nlargest(count, found, key=lambda entry: entry[0])
            await trio.lowlevel.checkpoint()
            if not position:
                break
        return {
            "rows": [
                {**self._client_row(connection.session), "behind_bytes": behind}
                for behind, connection in found
                if connection.is_open
            ]
        }

    async def _kick(self, arguments: Row) -> Row:
        session = self.session_of(arguments)
        with_session = arguments.get("session", False)
        if not with_session and self.worker.controller.handshake.holder_of(session) is None:
            raise QueryError(409, "not_connected", f"The client {arguments['client']!r} is not connected.")
        log.warning("kicked", client=arguments["client"], session=with_session)
        disconnected = self.worker.controller.send_away(session, with_session)
        self.worker.in_process.after()
        return {
            "client": arguments["client"],
            "worker": self.number,
            "disconnected": disconnected,
            "session_ended": with_session,
        }

    # Subscriptions, routes, retained messages -----------------------------------------------------------------------

    def name_of(self, receiver: Any) -> Row:
        """Return what a receiver is, and its name: a client, an in-process client or a peer."""
        identifier: bytes = receiver.client_identifier
        if identifier.startswith(PEER_PREFIX):
            return {"peer": text_of(identifier[len(PEER_PREFIX) :])}
        if isinstance(receiver, Session):
            return {"client": text_of(identifier)}
        return {"client": text_of(identifier), "in_process": True}

    async def _subscriptions(self, arguments: Row) -> Row:
        client, topic_filter = arguments.get("client"), arguments.get("filter")
        tree = self.router.tree
        if topic_filter is not None:
            encoded = topic_filter.encode()

            def describe(receiver: Any) -> Row | None:
                found = introspection.subscription_to(tree, receiver, encoded)
                if found is None or (client is not None and text_of(receiver.client_identifier) != client):
                    return None
                return {
                    **self.name_of(receiver),
                    "worker": self.number,
                    "topic_filter": topic_filter,
                    **options_fields(*found),
                }

            async def receivers() -> list[Any]:
                return await subscribers(tree, encoded)

            return await page(self.listings, "subscriptions", arguments, receivers, describe)
        return await self._all_subscriptions(arguments, client)

    async def _all_subscriptions(self, arguments: Row, client: str | None) -> Row:
        """Page through the subscriptions of all receivers, or of one: the cursor says whose, and where in theirs."""
        limit = limit_of(arguments)
        tree = self.router.tree
        cursor = arguments.get("cursor")
        below = 0
        if cursor is None:
            receivers: Sequence[Any] = (
                [self.session_of(arguments)]
                if client is not None
                else [*self.router.sessions.values(), *(one.local for one in self.worker.in_process.clients.values())]
            )
            number, position = self.listings.begin("subscriptions", receivers), 0
            await trio.lowlevel.checkpoint()
        else:
            number, listing, places = self.listings.find("subscriptions", cursor)
            receivers = listing.items
            position = places[0]
            below = places[1] if len(places) == 2 else 0
        rows: list[Row] = []
        looked_at = 0
        while position < len(receivers) and len(rows) < limit:
            receiver = receivers[position]
            found, below = introspection.subscriptions_below(
                tree, receiver, below or receiver.subscription_count, min(limit - len(rows), 200)
            )
            rows += [
                {
                    **self.name_of(receiver),
                    "worker": self.number,
                    "topic_filter": text_of(topic_filter),
                    **options_fields(options, identifier),
                }
                for topic_filter, options, identifier in found
            ]
            if below == 0:
                position += 1
            looked_at += 1 + 10 * len(found)
            if looked_at > 2000:
                looked_at = 0
                await trio.lowlevel.checkpoint()
        if position >= len(receivers):
            self.listings.end(number)
            return {"rows": rows, "cursor": None}
        return {"rows": rows, "cursor": f"{number}.{position}.{below}"}

    async def _routes(self, arguments: Row) -> Row:
        return await describe_route(self, arguments)

    async def _route_head(self, arguments: Row) -> Row:
        return await describe_head(self, arguments)

    async def _retained(self, arguments: Row) -> Row:
        """Page through retained messages; a page that was made can be had once more, an older one cannot."""
        limit = min(limit_of(arguments), 200)
        ledger = self.router.ledger
        cursor = arguments.get("cursor")
        if cursor is None:
            try:
                encoded, shared = application_message.check_filter(arguments.get("filter", "#"))
            except ValueError as error:
                raise QueryError(400, "bad_argument", f"{error}.") from None
            if shared is not None:
                raise QueryError(400, "bad_argument", "filter is a topic filter without $share/.")
            number, count = self.listings.begin("retained", [self.router.retaining.match(encoded)]), 0
            listing = self.listings.find("retained", f"{number}.0")[1]
        else:
            number, listing, places = self.listings.find("retained", cursor)
            count = places[0]
            if listing.head.get("made") == count:
                return dict(listing.head["page"])
            if listing.head.get("next", 0) != count:
                raise QueryError(400, "bad_cursor", f"{cursor!r} is no cursor that this listing gave last.")
        scan = listing.items[0]
        messages: list[Message] = []
        if isinstance(scan, list):
            messages, done = scan[count : count + limit], count + limit >= len(scan)
            following = count + limit
        else:
            while len(messages) < limit and not scan.done:
                messages += scan.next_slice(min(limit - len(messages), 64), ledger.now_us, ledger.now_ms)
                await trio.lowlevel.checkpoint()
            done, following = scan.done, count + 1
        answer: Row = {
            "rows": [self._message_row(message) for message in messages],
            "cursor": None if done else f"{number}.{following}",
        }
        if done:
            self.listings.end(number)
        else:
            listing.head = {"made": count, "next": following, "page": answer}
        return answer

    def _message_row(self, message: Message) -> Row:
        now_ms = self.router.ledger.now_ms
        expires_ms = message.expires_at_ms
        return {
            "topic": text_of(message.topic_name),
            "qos": message.quality_of_service,
            "expires_in_s": (expires_ms - now_ms) / 1000 if expires_ms else None,
            **payload_fields(message.body),
        }

    # Publishing -----------------------------------------------------------------------------------------------------

    async def _publish(self, arguments: Row) -> Row:
        qos, retain = arguments.get("qos", 0), arguments.get("retain", False)
        payload = self._payload_of(arguments)
        try:
            topic, owned = application_message.check_message(arguments["topic"], payload, qos, None)
        except (TypeError, ValueError) as error:
            raise QueryError(400, "bad_argument", f"{error}.") from None
        if is_own(topic):
            raise QueryError(400, "not_authorized", "Topics under $SYS, $replay and $shoal are the broker's own.")
        router = self.router
        if (qos or retain) and not router.accepting:
            raise QueryError(409, "log_unavailable", "The disk takes no more, so nothing can be kept.")
        message = application_message.build(topic, owned, qos, retain, None, self.worker.reactor.look_at_clock())
        reached = introspection.receivers_of(router.tree, topic)
        _, recorded = self.worker.in_process.publish(None, message)
        if recorded:
            settled = trio.Event()
            router.effects.call(settled.set)
            self.worker.reactor.wake()
            with trio.move_on_after(PUBLISH_WAIT_S):
                await settled.wait()
            if not settled.is_set():
                raise QueryError(504, "not_durable", "The message was published, and the disk has not kept it yet.")
        return {"topic": arguments["topic"], "recorded": recorded, **_receivers_row(*reached)}

    async def _receivers(self, arguments: Row) -> Row:
        """Whom a publish on a topic is for here, other workers left out: how many, and which shared groups."""
        return _receivers_row(*introspection.receivers_of(self.router.tree, topic_of(arguments)))

    def _payload_of(self, arguments: Row) -> bytes:
        if "payload_base64" in arguments:
            if "payload" in arguments:
                raise QueryError(400, "bad_argument", "payload and payload_base64 exclude each other.")
            try:
                return base64.b64decode(arguments["payload_base64"], validate=True)
            except (binascii.Error, ValueError):
                raise QueryError(400, "bad_argument", "payload_base64 is not base64.") from None
        return str(arguments.get("payload", "")).encode()

    # Looking on -----------------------------------------------------------------------------------------------------

    async def _look(self, arguments: Row) -> Row:
        taps = self.worker.controller.taps
        self._end_unused()
        if len(self._looks) >= LOOKS_MAX:
            raise QueryError(409, "too_many_traces", f"{LOOKS_MAX} traces run already.")
        topic = arguments.get("topic")
        look = taps.look(
            arguments["client"].encode(),
            packets=True,
            decisions=topic is not None,
            topic=None if topic is None else topic.encode(),
        )
        self._last_look += 1
        self._looks[self._last_look] = look
        return {"look": self._last_look, "known": arguments["client"].encode() in self.router.sessions}

    async def _look_on(self, arguments: Row) -> Row:
        look = self._looks.get(arguments["look"])
        if look is None:
            raise QueryError(409, "trace_ended", "This trace has ended: nobody took anything from it for a while.")
        events = await look.take(EVENTS_MAX, min(arguments.get("wait_s", 1.0), LOOK_WAIT_MAX_S))
        missed, look.missed = look.missed, 0
        return {"events": events, "missed": missed}

    async def _look_away(self, arguments: Row) -> Row:
        look = self._looks.pop(arguments["look"], None)
        if look is not None:
            self.worker.controller.taps.end(look)
        return {}

    def _end_unused(self) -> None:
        taps = self.worker.controller.taps
        taps.end_unused()
        self._looks = {number: look for number, look in self._looks.items() if taps.has(look)}

    async def keep_house(self) -> None:
        """End what was left open, until cancelled."""
        while True:
            await trio.sleep(5.0)
            self._end_unused()

    async def _why(self, arguments: Row) -> Row:
        return await explain(self, arguments)

    async def _log_in(self, arguments: Row) -> Row:
        # Here, because few brokers are asked over HTTP.
        from broker.admin.login_query import log_in

        return await log_in(self, arguments)

    async def _why_passed(self, arguments: Row) -> Row:
        return await explain_passing(self, arguments)


def _receivers_row(receivers: int, groups: list[bytes]) -> Row:
    return {"receivers": receivers, "groups": [text_of(group) for group in groups]}
