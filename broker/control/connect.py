"""CONNECT to CONNACK."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from functools import partial
from random import SystemRandom
from typing import TYPE_CHECKING, Any

from broker.auth.authenticator import Anonymous
from broker.auth.enhanced_auth import FAILED, Exchange, checked
from broker.auth.outcome import LATE, Accepted, Outcome, Pending, Refused
from broker.auth.principal import principal_of
from broker.control.authentication_expiry import AuthenticationExpiry
from broker.control.client_limits import LimitRules, UserConnections
from broker.control.connack import ConnackProperties
from broker.control.connect_terms import (
    check_client_identifier,
    check_connack_size,
    check_will,
    expiry_interval_in_force_s,
    keep_alive_in_force_s,
)
from broker.control.listener_rules import ListenerRules, proves_itself
from broker.control.openings import Opening, Openings, dismiss
from broker.control.rate_limit import Rate
from broker.control.rights_questions import accepted_with_will, without_refused_will
from broker.control.session_limit import SessionLimit
from broker.control.will import PendingWill, mounted_will, without_request
from broker.logs import get
from broker.reactor.peer_socket import watch_peer
from broker.wire.packets import Auth, Connack, Connect, Disconnect, decode_connect, encode_fitting, may_carry
from broker.wire.properties import PacketType
from broker.wire.reasons import ClientError, CloseReason, Reason, reason_to_close

if TYPE_CHECKING:
    from broker.auth.acl import FailClosed
    from broker.auth.authenticator import Admission, Authenticator
    from broker.auth.principal import Principal
    from broker.config.loader import Config
    from broker.control.handover_seam import Handover
    from broker.control.presence import Presence
    from broker.control.rights_review import RightsReview
    from broker.control.tracing import Taps
    from broker.reactor.connection import Connection
    from broker.reactor.shared_counts import Places
    from router.router import Router
    from router.sessions.session import Session

log = get("handshake")

Decide = Callable[["Connection", Connect, Exchange, Outcome], bool]  # returns whether it may be parsed on

_NO_MORE_OF_USER = (
    Refused(Reason.QUOTA_EXCEEDED, "the user has as many connections as it may"),
    CloseReason.CONNECTIONS_PER_USER_MAX,
)
_NO_SESSION = Refused(Reason.QUOTA_EXCEEDED, "the server has as many sessions as it may"), CloseReason.SESSIONS_MAX


class Handshake:
    """Decides on CONNECTs: admission, authentication, session, CONNACK."""

    def __init__(self, config: Config, router: Router, authenticator: Authenticator, admission: Admission | None,
                 acl: FailClosed, presence: Presence, end_now: Callable[[Connection], None],
                 fail: Callable[[Connection, ClientError], None], opened: Callable[[Opening], None],
                 taps: Taps, on_room: Callable[[], None], review: RightsReview) -> None:  # fmt: skip
        self.config = config
        self.router = router
        self.authenticator = authenticator
        self.admission = admission
        self.acl = acl
        self.presence = presence
        self.pending = Pending(config.limits.pending_connects_max, on_room)
        self.exchanges: dict[int, Exchange] = {}
        self.openings = Openings()
        self.spawn: Callable[..., Any] | None = None  # since run_tasks_by()
        self.expiry = AuthenticationExpiry()
        self.handover: Handover | None = None  # since share(), where there are other workers
        self._end_now = end_now
        self._fail = fail
        self._opened = opened
        self._taps = taps
        self._review = review
        self._salt = SystemRandom().getrandbits(64)
        self.rules = [ListenerRules(config, listener) for listener in config.listeners]
        self._is_open_house = isinstance(authenticator, Anonymous)  # no authenticator asks anybody who he is
        self._connack = ConnackProperties(config)
        self.open_connections = 0  # with those that are let in and wait for their session's record
        self.connections_max = config.limits.connections_max
        self._places: Places | None = None  # of all workers together, since share()
        self.limit_rules = LimitRules(config)
        self.user_connections = UserConnections()
        self.session_limit = SessionLimit(router.sessions, config.limits.sessions_max)
        self._rate = Rate(config.limits.connects_per_second_max, 2 * config.limits.connects_per_second_max or 1)

    # A start, step by step --------------------------------------------------------------------------------------------

    def limit_connections(self, connections_max: int) -> None:
        """Let no more in than fit into this process, which has found out how many those are."""
        self.connections_max = connections_max

    def change(self, config: Config) -> None:
        """Go by other settings from now on; they differ as broker.config.live lets them."""
        per_second = config.limits.connects_per_second_max
        if per_second != self.config.limits.connects_per_second_max:
            self._rate = Rate(per_second, 2 * per_second or 1)
        self.config = config
        self._connack = ConnackProperties(config)
        self.limit_rules.change(config)
        self.session_limit.maximum = config.limits.sessions_max

    def share(self, handover: Handover, places: Places, listener_places: Mapping[int, Places]) -> None:
        """From now on clients go to the workers that they are at home on, and connections are counted together.

        Args:
            places: of the connections of all workers.
            listener_places: ... at each listener that has a maximum of its own, by its number.
        """
        self.handover = handover
        self._places = places
        for number, of_listener in listener_places.items():
            self.rules[number].share(of_listener)

    def run_tasks_by(self, spawn: Callable[..., Any]) -> None:
        """From now on authenticators may wait: what they wait in runs as tasks that `spawn` starts."""
        self.spawn = spawn

    # CONNECT ----------------------------------------------------------------------------------------------------------

    def on_connect(self, connection: Connection, body: bytes) -> bool:
        """Deal with a CONNECT. Returns whether the connection may be parsed on."""
        rules = self._rules_of(connection)
        identifier = rules.client_identifier(connection.facts)
        if self.handover is not None and self.handover.sends_home(connection, body, identifier):
            return False
        connect = self._read(connection, body)
        if rules.limits_more:
            connection.limit(rules.packet_bytes_max, rules.maximum_qos)
        if rules.mount_point is not None:
            connection.put_under(rules.mount_point)
            if connect.will is not None:
                connect = replace(connect, will=mounted_will(connect.will, rules.mount_point))
        if rules.requests:
            connection.take_requests(rules.requests)
            connect = without_request(connect, rules.requests)
        if identifier is not None:
            connect = replace(connect, client_identifier=identifier)
        user_name = rules.user_name(connection.facts)
        if user_name is not None:
            connect = replace(connect, user_name=user_name)
        if not rules.anonymous and self._is_open_house and not proves_itself(connection.facts):
            return self._refuse(
                connection, Refused(Reason.NOT_AUTHORIZED, "this listener lets in nobody who does not prove who he is")
            )
        connection.bridge = connect.bridge
        no_room = self._no_room(connect, rules)
        if no_room is not None:
            return self._refuse(connection, *no_room)
        if self.admission is not None:
            refusal = self._admit(connect, connection.peer)
            if refusal is not None:
                return self._refuse(connection, refusal)
        exchange = Exchange(connection, connect.properties.get("authentication_method"),
                            connect.properties.get("authentication_data"), pending=self.pending)  # fmt: skip
        return self._authenticate(connection, connect, exchange, self._decide)

    def _rules_of(self, connection: Connection) -> ListenerRules:
        facts = connection.facts
        return self.rules[0 if facts is None else facts.listener]

    def _read(self, connection: Connection, body: bytes) -> Connect:
        connect = decode_connect(body)
        connection.choose_version(connect.version, connect.properties.get("maximum_packet_size", 0))
        connection.unexplained = connect.properties.get("request_problem_information") == 0
        return connect

    def refuse_unavailable(self, connection: Connection) -> None:
        """The worker that a client lives on is away: the client may try again."""
        try:
            self._read(connection, connection.parked_body)
        except ClientError as error:
            self._fail(connection, error)
            return
        self._refuse(
            connection, Refused(Reason.SERVER_UNAVAILABLE, "the client's worker is away"), CloseReason.HOME_UNAVAILABLE
        )

    def refuse_late(self, connection: Connection) -> bool:
        """Refuse a client whose CONNECT has waited too long for a decision; returns whether it is one."""
        return self.pending.has(connection) and not self._refuse(connection, LATE)

    def on_auth(self, connection: Connection, packet: Auth) -> bool:
        """Deal with an AUTH: the answer to a challenge, or a re-authentication (4.12.1)."""
        exchange = self.exchanges.get(id(connection))
        if exchange is None:
            raise ClientError(Reason.PROTOCOL_ERROR, "MQTT-4.12.0-7", "AUTH after a CONNECT without a method")
        if packet.properties.get("authentication_method") != exchange.method:
            raise ClientError(Reason.PROTOCOL_ERROR, "MQTT-4.12.0-5", "AUTH with another method than the CONNECT")
        if packet.reason == Reason.CONTINUE_AUTHENTICATION:
            if not exchange.answer(packet):
                raise ClientError(Reason.PROTOCOL_ERROR, "MQTT-4.12.0-3", "AUTH that answers no challenge")
            return exchange.again
        if packet.reason != Reason.RE_AUTHENTICATE or not connection.is_open:
            raise ClientError(Reason.PROTOCOL_ERROR, "MQTT-4.12.1-1", f"AUTH with reason 0x{packet.reason:02X}")
        if exchange.under_way:
            raise ClientError(Reason.PROTOCOL_ERROR, "section 4.12.1", "a re-authentication during another")
        again = Exchange(connection, exchange.method, packet.properties.get("authentication_data"), pending=None,
                         answer_timeout_s=self.config.limits.connect_timeout_s)  # fmt: skip
        connect = Connect(5, connection.session.client_identifier)
        self._authenticate(connection, connect, again, self._decide_again)
        return True  # all else goes on under the previous authentication (4.12.1)

    def _admit(self, connect: Connect, peer: str | None) -> Refused | None:
        assert self.admission is not None
        try:
            return self.admission.admit(connect, peer)
        except Exception:
            log.exception("admission_failed")
            return FAILED

    def ask(self, connect: Connect, exchange: Exchange) -> Outcome | Awaitable[Outcome]:
        """Return what the authenticator decides, now or later."""
        try:
            outcome = self.authenticator.authenticate(connect, exchange)
            if not isinstance(outcome, (Accepted, Refused, Awaitable)):
                outcome = checked(outcome)
        except Exception:
            log.exception("authenticator_failed")
            return FAILED
        return outcome

    def _authenticate(self, connection: Connection, connect: Connect, exchange: Exchange, decide: Decide) -> bool:
        """Ask the authenticator. Returns decide()'s answer, or False if that is called later."""
        outcome = self.ask(connect, exchange)
        if exchange.method is not None or not isinstance(outcome, (Accepted, Refused)):
            self.exchanges[id(connection)] = exchange  # its method is that of every later AUTH
        if isinstance(outcome, (Accepted, Refused)):
            exchange.under_way = False
            return decide(connection, connect, exchange, outcome)
        return self._decide_when(outcome, connection, connect, exchange, decide)

    def _decide_when(
        self, outcome: Awaitable[Outcome], connection: Connection, connect: Connect, exchange: Exchange, decide: Decide
    ) -> bool:
        assert self.spawn is not None, "an authenticator or an ACL waits, but nothing runs under trio here"
        exchange.begin()
        connection.wait_for_answer()
        self.spawn(self._decide_later, connection, connect, exchange, outcome, decide)
        return False

    async def _decide_later(
        self, connection: Connection, connect: Connect, exchange: Exchange, deciding: Awaitable[Outcome], decide: Decide
    ) -> None:
        outcome = await exchange.outcome(deciding)
        if outcome is None or connection.is_closing:
            return
        exchange.under_way = False
        if exchange.method is None:
            self.exchanges.pop(id(connection), None)
        try:
            if isinstance(outcome, ClientError):
                raise outcome
            if decide(connection, connect, exchange, outcome):
                connection.unpark()
        except ClientError as error:
            self._fail(connection, error)

    def _decide_again(self, connection: Connection, connect: Connect, exchange: Exchange, outcome: Outcome) -> bool:
        """Tell the client how its re-authentication went. Returns False: its other packets have not waited."""
        if isinstance(outcome, Refused):
            known = may_carry(PacketType.DISCONNECT, outcome.reason)
            reason = outcome.reason if known else Reason.NOT_AUTHORIZED
            connection.write_packet(
                encode_fitting(Disconnect(reason, outcome.properties()), 5, connection.packet_bytes_max)
            )
            connection.close(outcome.close or reason_to_close(outcome.reason))
            return False
        properties: dict[str, Any] = {"authentication_method": exchange.method}
        if outcome.authentication_data is not None:
            properties["authentication_data"] = outcome.authentication_data
        success = encode_fitting(Auth(Reason.SUCCESS, properties), 5, connection.packet_bytes_max)
        if not success:
            raise ClientError(Reason.PACKET_TOO_LARGE, "MQTT-3.1.2-24", "no AUTH fits the Maximum Packet Size")
        self.take_on(connection, outcome)
        connection.write_packet(success)
        return False

    def take_on(self, connection: Connection, outcome: Accepted) -> None:
        """From now on an open connection's client is whom it was accepted as last, for as long as that says."""
        session = connection.session
        principal = principal_of(connection.peer, connection.facts, session.client_identifier, outcome)
        connection.principal = principal
        connection.renew_salt(self.new_salt())
        self.expiry.begin(connection, outcome.expires_at_s)
        was = session.principal
        if was != principal:
            self._limit(connection, session)
            self.router.change_principal(session, principal)
            # The will of the same user keeps the rights of the CONNECT that left it, of a token that has ended too.
            if session.will is not None and session.will.principal.user_name != principal.user_name:
                session.will.principal = principal
            if not self.acl.allows_all:
                self._review.judge(session, was)

    def forget(self, connection: Connection) -> None:
        """The connection ended: an authenticator that decides on it is told, and the session of an opening is detached.

        It was accepted, so its will is published, as that of an open one [MQTT-3.1.2-8], unless its client has sent a
        DISCONNECT behind the CONNECT [MQTT-3.14.4-3].
        """
        opening = self.openings.end(connection)
        if opening is not None:
            self.give_place(connection)
            self.router.detach_session(opening.session, not connection.has_disconnected())
        if self.exchanges:
            exchange = self.exchanges.pop(id(connection), None)
            if exchange is not None:
                exchange.abandon()

    def _no_room(self, connect: Connect, rules: ListenerRules) -> tuple[Refused, CloseReason | None] | None:
        """Return why a client cannot come in at all, and the close reason if it is not the code's own; None: it can."""
        mqtt = self.config.mqtt
        if mqtt.server_reference is not None and mqtt.server_reference_use != "full":
            return Refused(
                Reason.SERVER_MOVED if mqtt.server_reference_use == "moved" else Reason.USE_ANOTHER_SERVER,
                server_reference=mqtt.server_reference,
            ), None
        if not self._rate.take(self.router.ledger.now_ms) or (
            rules.rate is not None and not rules.rate.take(self.router.ledger.now_ms)
        ):
            return Refused(Reason.CONNECTION_RATE_EXCEEDED, "too many clients connect at once; try again later"), None
        if self.router.ledger.memory_full and connect.client_identifier not in self.router.sessions:
            # who has a session may come and take what fills the memory
            return Refused(Reason.SERVER_BUSY, "the server is out of memory"), CloseReason.MEMORY_LIMIT
        return self._full(connect, rules)

    def _full(self, connect: Connect, rules: ListenerRules) -> tuple[Refused, CloseReason | None] | None:
        """Return a refusal if all places are taken; one that takes over an open connection takes its place.

        So it is with sessions: who has one has a place.
        """
        if connect.client_identifier not in self.router.sessions and self.session_limit.is_reached:
            return _NO_SESSION
        older = self._older(connect)
        if rules.is_full and (older is None or self._rules_of(older) is not rules):
            return self._server_full()  # what it takes over has a place by another listener
        if older is not None or (
            self.open_connections < self.connections_max
            and (self._places is None or self._places.total() < self.config.limits.connections_max)
        ):
            return None
        return self._server_full()

    def _older(self, connect: Connect) -> Connection | None:
        """Return the connection that a client takes over."""
        session = self.router.sessions.get(connect.client_identifier)
        return None if session is None else self.holder_of(session)

    def _take_place(
        self, connection: Connection, rules: ListenerRules, older: Connection | None
    ) -> tuple[Refused, CloseReason | None] | None:
        """Count a connection, unless all places are taken and it takes over none: then return how it is refused."""
        beyond = older is not None
        if not beyond and self.open_connections >= self.connections_max:
            return self._server_full()
        if self.limit_rules.counts_users:
            principal = connection.principal
            user_max = self.limit_rules.of(principal).connections_per_user_max
            if not self.user_connections.take(connection, principal.user_name, user_max, older):
                return _NO_MORE_OF_USER
        if self._places is not None and not self._places.take(2**63 if beyond else self.config.limits.connections_max):
            self.user_connections.give(connection)
            return self._server_full()
        if not rules.take(older is not None and self._rules_of(older) is rules):
            self.user_connections.give(connection)
            if self._places is not None:
                self._places.give()
            return self._server_full()
        self.open_connections += 1
        return None

    def _take_session(self, connection: Connection, identifier: bytes) -> tuple[Refused, CloseReason] | None:
        """Count a session for a connection that has its place, if it needs one; return how it is refused."""
        if identifier in self.router.sessions or self.session_limit.take():
            return None
        self.give_place(connection)
        return _NO_SESSION

    def give_place(self, connection: Connection) -> None:
        """A connection that was let in has ended."""
        self._rules_of(connection).give()
        if self.limit_rules.counts_users:
            self.user_connections.give(connection)
        self.open_connections -= 1
        if self._places is not None:
            self._places.give()

    def _server_full(self) -> tuple[Refused, CloseReason | None]:
        reference = self.config.mqtt.server_reference
        if reference is not None:
            return Refused(Reason.USE_ANOTHER_SERVER, "the server is full", reference), CloseReason.CONNECTIONS_MAX
        return Refused(Reason.QUOTA_EXCEEDED, "the server is full"), CloseReason.CONNECTIONS_MAX

    def _refuse(self, connection: Connection, refused: Refused, close: CloseReason | None = None) -> bool:
        connection.write_packet(
            encode_fitting(
                Connack(False, refused.reason, refused.properties()), connection.version, connection.packet_bytes_max
            )
        )
        connection.close(close or refused.close or reason_to_close(refused.reason))
        return False

    def new_salt(self) -> int:
        """Return 64 bits that no client can guess, for the answers that a connection remembers."""
        self._salt = (self._salt * 6364136223846793005 + 1442695040888963407) & 0xFFFFFFFFFFFFFFFF
        return self._salt

    def _decide(self, connection: Connection, connect: Connect, exchange: Exchange, outcome: Outcome) -> bool:
        """Accept or refuse. Returns whether the connection may be parsed on at once."""
        if isinstance(outcome, Refused):
            return self._refuse(connection, outcome)
        rules = self._rules_of(connection)
        refusal = self._full(connect, rules) if exchange.has_waited else None  # others may have come meanwhile
        if refusal is not None:
            return self._refuse(connection, *refusal)
        check_will(connection, connect, self.config)
        check_client_identifier(connect, self.config.mqtt)
        identifier = connect.client_identifier or exchange.identifier or self._assigned_identifier()
        principal = connection.principal = principal_of(connection.peer, connection.facts, identifier, outcome)
        if connect.will is not None and self.acl.waits and not exchange.identifier:
            return self._judge_will(connection, connect, exchange, outcome, principal)
        expiry_s = expiry_interval_in_force_s(connect, self.config.mqtt)
        if not self.router.accepting and (
                expiry_s or connect.will is not None or identifier in self.router.sessions
                or identifier in self.router.ending):  # fmt: skip
            # Nothing that it asks for could be kept.
            return self._refuse(connection, Refused(Reason.QUOTA_EXCEEDED, "the log of the server takes no more"))
        keep_alive_s = keep_alive_in_force_s(connect, self.config.mqtt)
        properties = self._connack.of(connect, rules, identifier, expiry_s, keep_alive_s)
        if exchange.method is not None:
            properties = {**properties, "authentication_method": exchange.method}
            if outcome.authentication_data is not None:
                properties["authentication_data"] = outcome.authentication_data
        if "maximum_packet_size" in connect.properties:
            check_connack_size(connection, properties)
        # Its place is taken before it waits for its record, and the older connection's is given back only then: so no
        # other client, here or on another worker, comes between.
        no_place = self._take_place(connection, rules, self._older(connect))
        no_place = no_place or self._take_session(connection, identifier)
        if no_place is not None:
            return self._refuse(connection, *no_place)
        before = self.router.last_record
        self._take_over(self.router.sessions.get(identifier))
        older = self.router.sessions.get(identifier)
        mount_point = b"" if rules.mount_point is None else rules.mount_point.prefix
        if older is not None and (connect.clean_start or older.mount_point != mount_point):
            self.router.end_session(older)  # [MQTT-3.1.2-4]; the names in it are not those of its client now
        if self.router.ending.more and self.router.ending.call_after(
            identifier, partial(self._decide_late, connection, connect, exchange, outcome)
        ):
            self.give_place(connection)
            self.session_limit.tell()
            return False
        was = None if older is None else self._review.principal_of(older)
        session, present = self.router.open_session(
            identifier, connect.clean_start, expiry_s,
            PendingWill.of(connect.will, self.acl, principal) if connect.will is not None else None, mount_point,
            principal)  # fmt: skip
        self._limit(connection, session)
        opening = Opening(connection, connect, session, present, keep_alive_s, properties, outcome.expires_at_s)
        if self._is_judged_later(opening, was):
            return False
        if self.router.last_record == before and identifier not in self.router.ending:
            self._finish(opening)
            return True
        self.openings.begin(opening)
        self.router.effects.call(partial(self._settled, opening))
        return False

    def _judge_will(
        self, connection: Connection, connect: Connect, exchange: Exchange, accepted: Accepted, principal: Principal
    ) -> bool:
        """Decide on a CONNECT when it is known whether its will may be published. Returns False."""
        exchange.identifier = principal.client_identifier
        self.exchanges[id(connection)] = exchange
        outcome = accepted_with_will(self.acl, principal, connect, accepted)
        return self._decide_when(outcome, connection, connect, exchange, self._decide_on_will)

    def _decide_on_will(self, connection: Connection, connect: Connect, exchange: Exchange, outcome: Outcome) -> bool:
        if isinstance(outcome, Accepted):
            connect = without_refused_will(self.acl, connection.principal, connect)
        return self._decide(connection, connect, exchange, outcome)

    def _is_judged_later(self, opening: Opening, was: Principal | None) -> bool:
        """Judge a session whose client was another principal. Returns whether the CONNACK waits for that."""
        session, principal = opening.session, opening.connection.principal
        if not opening.present or was == principal or self.acl.allows_all or self._review.judge(
                session, was, lambda: self.router.effects.call(lambda: self._settled(opening))):  # fmt: skip
            return False
        self.openings.begin(opening)  # nothing is sent to it before its rights are known
        return True

    def _limit(self, connection: Connection, session: Session) -> None:
        """Hold a client to what it may have, as whom it was let in."""
        if not self.limit_rules.are_all_usual:
            limits = self.limit_rules.of(connection.principal)
            connection.limit_rates(limits.rates)
            session.limit(limits.session)

    def _decide_late(self, connection: Connection, connect: Connect, exchange: Exchange, outcome: Outcome) -> None:
        """Decide about a CONNECT when the session before has passed on what it owed."""
        if connection.is_closing:
            return
        try:
            if self._decide(connection, connect, exchange, outcome):
                connection.unpark()
        except ClientError as error:
            self._fail(connection, error)

    def _settled(self, opening: Opening) -> None:
        """What a CONNACK waited for is durable."""
        connection = opening.connection
        if connection.is_closing:
            return  # its end, which may not have been dealt with, is that of the opening
        if not self.openings.holds(opening):
            # Its client has come again while the record was under way [MQTT-3.1.4-3].
            self._welcome(opening)
            dismiss(connection)
            return
        self.openings.end(connection)
        self._finish(opening)
        connection.unpark()

    def _assigned_identifier(self) -> bytes:
        """Return a client identifier that no client has; with several workers, one that is at home here."""
        while True:
            identifier = (self.config.mqtt.auto_id_prefix + os.urandom(10).hex()).encode()
            if self.handover is None or self.handover.is_at_home(identifier):
                return identifier

    def holder_of(self, session: Session) -> Connection | None:
        """Return the connection that a session belongs to, open or not yet; None if its client is away."""
        opening = self.openings.of(session)
        return session.connection if opening is None else opening.connection

    def _take_over(self, session: Session | None) -> None:
        """Take a session from the connection that holds it [MQTT-3.1.4-3]: to the session, that connection is gone.

        One that is not open yet is told when the record that it waits for is durable.
        """
        if session is None:
            return
        opening = self.openings.of(session)
        if opening is not None:
            self.forget(opening.connection)
        elif session.connection is not None:
            older = session.connection
            dismiss(older)
            self._end_now(older)

    def _finish(self, opening: Opening) -> None:
        connection, connect, session = opening.connection, opening.connect, opening.session
        keep_alive_s = opening.keep_alive_s
        asked = connect.properties
        mqtt = self.config.mqtt
        connection.open(
            session,
            asked.get("receive_maximum", 65_535),
            mqtt.topic_alias_maximum if connect.version == 5 else 0,
            min(asked.get("topic_alias_maximum", 0), mqtt.topic_alias_maximum_out),
            keep_alive_s,
            self.acl,
            self.new_salt(),
        )
        self.expiry.begin(connection, opening.expires_at_s)
        if self.router.interest is not None and session.subscription_count:
            self.router.interest.connection_changes(True, self.router.tree.subscriptions_of(session, shared_only=True))
        if self._taps.looks:
            self._taps.opened(connection, connect)
        if keep_alive_s == 0:
            watch_peer(connection.fd, self.config.limits.tcp_keepalive_s)
        self._welcome(opening)
        connection.resume_later()  # many may be let in at once
        self._opened(opening)
        if self.presence.watches:
            self.presence.opened(connection, self.router.ledger.now_ms)

    def _welcome(self, opening: Opening) -> None:
        """Tell a client that it is let in."""
        version, present = opening.connection.version, opening.present
        opening.connection.write_packet(self._connack.encoded(version, present, opening.properties))
