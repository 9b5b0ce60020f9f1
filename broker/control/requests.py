"""What clients publish to topic names of the broker's own, which it deals with itself: it goes to no subscriber."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final

from broker.wire.reasons import Reason

if TYPE_CHECKING:
    from broker.control.listener_rules import ListenerRules
    from broker.reactor.connection import Connection
    from router.sessions.session import Session

QOS_BITS: Final = 0x06  # of a PUBLISH's first byte


class Request:
    """One of them, parked as a control packet is: nothing behind it is parsed until it is ended.

    Args:
        connection: its client's.
        first: first byte of the PUBLISH.
        body: packet identifier and the topic name's length in two bytes each, the topic name, and the payload.
    """

    __slots__ = ("_packet_identifier", "_qos", "_session", "connection", "payload", "topic_name")

    def __init__(self, connection: Connection, first: int, body: bytes) -> None:
        self.connection = connection
        self._session: Session = connection.session
        self._qos = (first & QOS_BITS) >> 1
        self._packet_identifier = int.from_bytes(body[:2])
        end = 4 + int.from_bytes(body[2:4])
        self.topic_name = body[4:end]
        self.payload = body[end:]

    @property
    def session(self) -> Session | None:
        """The session of the client that asked; None: it is not connected any more."""
        connection = self.connection
        return None if connection.is_closing or connection.session is not self._session else self._session

    def end(self, reason: Reason = Reason.SUCCESS, *, parses_on: bool = True) -> None:
        """Acknowledge it, if its client is there still, and have what it has sent behind it parsed."""
        if self.session is not None:
            self.connection.end_request(self._qos, self._packet_identifier, reason)
            if parses_on:
                self.connection.unpark()


Handler = Callable[[Request], None]  # calls end(), at once or later


class Requests:
    """Who deals with them, by the broker's topic name."""

    def __init__(self, rules: Iterable[ListenerRules]) -> None:
        self._rules = list(rules)
        self._handlers: dict[bytes, Handler] = {}

    def take(
        self,
        topic_name: bytes,
        handler: Handler,
        *,
        asks_acl: bool = True,
        mounted: bool = False,
        of: Callable[[int], bool] = lambda _listener: True,
    ) -> None:
        """From now on what clients publish to a topic name, if they may, is a request.

        Args:
            asks_acl: whether the ACL says who may; else every client may.
            mounted: clients that live under a mount point may ask, too, by the name as they see it; else what they
                publish there is a message to others.
            of: whether the clients of a listener may ask, by its number.
        """
        for number, rules in enumerate(self._rules):
            if not of(number):
                continue
            name = topic_name
            if rules.mount_point is not None:
                if not mounted:
                    continue
                name = rules.mount_point.mounted(topic_name)
            rules.requests[name] = asks_acl
            self._handlers[name] = handler

    def begin(self, connection: Connection, first: int, body: bytes) -> None:
        """Deal with a request that was parked."""
        request = Request(connection, first, body)
        self._handlers[request.topic_name](request)
