"""Wishes of clients whose answer is not known yet: each waits for its own, and for nothing else does a client wait."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, Protocol

import trio

from broker.auth.acl import Fetched, inner_filter
from broker.auth.outcome import Refused
from broker.logs import get
from broker.reactor import introspection
from broker.wire.reasons import ClientError, CloseReason, Reason
from broker.wire.rendering import text_of
from router.core.receiver import NARROWED_OPTION
from router.log.record_scan import matches

if TYPE_CHECKING:
    from broker.auth.acl import Action, FailClosed
    from broker.auth.outcome import Accepted, Outcome
    from broker.auth.principal import Principal
    from broker.reactor.connection import Connection
    from broker.wire.packets import Connect
    from router.router import Router

log = get("handshake")

RELIED_ON_S: Final = 1.0  # for which a connection remembers what was known
AT_A_TIME: Final = 4096  # connections that forget between two turns
SUBSCRIPTIONS: Final = 64  # looked at in one step
UNAVAILABLE: Final = "who decides on rights does not answer"


class Tasks(Protocol):
    """What runs tasks: broker.control.connect.Handshake."""

    spawn: Callable[..., Any] | None


class RightsQuestions:
    """Has answers fetched that an ACL does not know, and what rests on them go on then.

    A PUBLISH stays unparsed, and its connection parked, until the answer is known. If that cannot be had, the
    connection ends, with 0x89 server busy: the client, which may publish for all that is known, comes back and sends it
    again.

    Args:
        acl: of which `waits` is true.
        tasks: runs those that wait.
        fail: ends a connection.
    """

    def __init__(self, acl: FailClosed, tasks: Tasks, fail: Callable[[Connection, ClientError], None]) -> None:
        self._acl = acl
        self._tasks = tasks
        self._fail = fail
        self._waiting: dict[Connection, trio.CancelScope] = {}

    def on_publish(self, connection: Connection, first: int, topic_name: bytes) -> bool:
        """Have it known whether a client may publish to a topic. Returns False: its connection goes on later.

        Args:
            first: QoS and RETAIN of the PUBLISH, as in its first byte.
        """
        self._spawn(self._publish, connection, topic_name, first >> 1 & 3, bool(first & 1))
        return False

    def forget(self, connection: Connection) -> None:
        """A connection has ended: what it has waited for is not asked any more."""
        waiting = self._waiting.get(connection)
        if waiting is not None:
            waiting.cancel()

    async def _fetch(
        self, connection: Connection, action: Action, name: bytes, qos: int, retain: bool
    ) -> Fetched | None:
        """Have an answer known, while a connection waits for it. Returns None if that has ended."""
        assert connection not in self._waiting, "a connection waits for one answer"
        fetched = None
        with trio.CancelScope() as scope:
            self._waiting[connection] = scope
            if connection.is_closing:
                scope.cancel()  # before this began
            try:
                fetched = await self._acl.fetch(connection.principal, action, name, qos, retain)
            finally:
                del self._waiting[connection]
        return None if connection.is_closing else fetched

    async def _publish(self, connection: Connection, topic_name: bytes, qos: int, retain: bool) -> None:
        fetched = await self._fetch(connection, "publish", topic_name, qos, retain)
        if fetched is None:
            return
        if fetched is Fetched.KNOWN:
            connection.unpark()
        else:
            self._fail(
                connection, ClientError(Reason.SERVER_BUSY, "section 4.13", UNAVAILABLE, CloseReason.RIGHTS_UNAVAILABLE)
            )

    def asks(self, connection: Connection, topic_filter: bytes, qos: int, then: Callable[[], None]) -> bool:
        """Return whether an answer about a SUBSCRIBE is fetched first; `then` is called when that is over."""
        if self._acl.fetched(connection.principal, "subscribe", topic_filter, qos, False) is not Fetched.UNKNOWN:
            return False
        self._spawn(self._subscribe, connection, topic_filter, qos, then)
        return True

    async def _subscribe(self, connection: Connection, topic_filter: bytes, qos: int, then: Callable[[], None]) -> None:
        if await self._fetch(connection, "subscribe", topic_filter, qos, False) is not None:
            then()

    def is_unavailable(self, connection: Connection, topic_filter: bytes, qos: int) -> bool:
        """Return whether the answer about a SUBSCRIBE cannot be had now."""
        return self._acl.fetched(connection.principal, "subscribe", topic_filter, qos, False) is not Fetched.KNOWN

    async def run(self, new_salt: Callable[[], int]) -> None:
        """Have connections look again, once a second, at answers that they remember. Runs until cancelled."""
        while True:
            await trio.sleep(RELIED_ON_S)
            relying, self._acl.relying = self._acl.relying, set()
            for number, connection in enumerate(relying):
                if number % AT_A_TIME == AT_A_TIME - 1:
                    await trio.lowlevel.checkpoint()
                if connection.is_open:
                    connection.renew_salt(new_salt())

    def _spawn(self, task: Callable[..., Any], *arguments: Any) -> None:
        spawn = self._tasks.spawn
        assert spawn is not None, "an ACL waits, but nothing runs under trio here"
        spawn(task, *arguments)


def reads_whole(router: Router, client_identifier: bytes, topic_name: bytes) -> bool:
    """Return whether a session has a subscription, granted as a whole, that matches a topic name.

    Cost: some 0.3 us for each of its subscriptions. It may be called while a route is read.
    """
    session = router.sessions.get(client_identifier)
    end = 0 if session is None else session.entry_count
    while end:
        some, end = introspection.subscriptions_below(router.tree, session, end, SUBSCRIPTIONS)
        for topic_filter, options, _ in some:
            if not options & NARROWED_OPTION and matches(inner_filter(topic_filter), topic_name):
                return True
    return False


async def accepted_with_will(acl: FailClosed, principal: Principal, connect: Connect, accepted: Accepted) -> Outcome:
    """Have it known whether a client may publish its will. Returns the outcome of its CONNECT, as far as that goes."""
    will = connect.will
    assert will is not None, principal
    fetched = await acl.fetch(principal, "publish", will.topic, will.qos, will.retain)
    return accepted if fetched is Fetched.KNOWN else Refused(Reason.SERVER_UNAVAILABLE, UNAVAILABLE)


def without_refused_will(acl: FailClosed, principal: Principal, connect: Connect) -> Connect:
    """Return a CONNECT as it counts: its will keeps the rights that it has now, and goes if these are none."""
    will = connect.will
    assert will is not None, principal
    if acl.may_publish(principal, will.topic, will.qos, will.retain):
        return connect
    log.info("will_refused", client=text_of(principal.client_identifier), topic=text_of(will.topic))
    return replace(connect, will=None)
