"""The two doubles that stand in for what comes later, a log and a follower, and the seams' test implementations."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from typing import Any

import trio

from broker.auth.enhanced_auth import Exchange
from broker.auth.outcome import Accepted, Outcome, Refused
from broker.auth.principal import Principal
from broker.wire.packets import Connect
from broker.wire.reasons import Reason
from router.core.message import Message
from router.log.record_buffer import RecordBuffer
from router.log.record_cursor import Cursor
from router.log.record_kinds import Record


class FakeLog:
    """A log whose sync takes until somebody calls sync(): nothing is durable before."""

    MARK = 0x5A5A5A5A

    def __init__(self) -> None:
        self.durable = 0
        self.appended = 0
        self.accepting = True
        self.batches: list[tuple[int, bytes]] = []  # (number of the record before, stamped records)
        self._on_durable: Callable[[], None] = lambda: None
        self.on_append: Callable[[], None] = lambda: None

    def when_durable(self, callback: Callable[[], None]) -> None:
        """Call this whenever something has become durable."""
        self._on_durable = callback

    def append(self, records: RecordBuffer) -> None:
        """Take the records of a turn, in order, numbered without a gap."""
        assert records.first_number == self.appended + 1, (records.first_number, self.appended)
        records.stamp(self.MARK)
        self.batches.append((self.appended, bytes(records)))
        self.appended = records.last_number
        records.clear()
        self.on_append()

    def sync(self) -> None:
        """All that was appended is durable from here on."""
        if self.durable != self.appended:
            self.durable = self.appended
            self._on_durable()

    @property
    def records(self) -> list[Record]:
        """All that was appended."""
        return [record for before, data in self.batches for record in Cursor(data, 0, self.MARK, before)]

    def fetch(self, number: int, now_us: int, now_ms: int) -> Message:
        """Return the message of a record. Raises LookupError if there is none."""
        at = bisect_left(self.batches, (number, b"")) - 1
        if at >= 0:
            cursor = Cursor(self.batches[at][1], 0, self.MARK, self.batches[at][0])
            while cursor.step():
                if cursor.number == number:
                    return cursor.message(now_us, now_ms)
        raise LookupError(number)


class FakeFollower:
    """Another machine's copy of a log, as far as it has acknowledged it."""

    def __init__(self, log: FakeLog) -> None:
        self.log = log
        self.durable = 0

    def acknowledge(self) -> None:
        """It has what the log has."""
        self.durable = self.log.appended


class SlowAuthenticator:
    """Accepts everybody, but not at once; in the method `toy` it asks for the payload reversed (4.12).

    Who answers `once-more` is asked again, who answers `elsewhere` is sent to another server.
    """

    async def authenticate(self, connect: Connect, exchange: Exchange) -> Outcome:
        """Wait a little, then accept; user names that begin with `refuse` are not let in."""
        await trio.lowlevel.checkpoint()
        if exchange.method == "toy":
            answer = await exchange.challenge(b"abc")
            if answer == b"once-more":
                answer = await exchange.challenge(b"abc")
            if answer == b"elsewhere":
                return Refused(Reason.USE_ANOTHER_SERVER, "the other one", "other.example:1883")
            if answer != b"cba":
                return Refused(Reason.NOT_AUTHORIZED, "wrong answer")
            return Accepted("toy", b"welcome")
        if exchange.method is not None:
            return Refused(Reason.BAD_AUTHENTICATION_METHOD)
        await trio.lowlevel.checkpoint()
        if (connect.user_name or "").startswith("refuse"):
            return Refused(Reason.BAD_USER_NAME_OR_PASSWORD)
        return Accepted(connect.user_name)


class QuickAuthenticator:
    """The same decisions as SlowAuthenticator, at once wherever no challenge is needed."""

    def authenticate(self, connect: Connect, exchange: Exchange) -> Any:
        """Decide at once, or return SlowAuthenticator's awaitable for a challenge."""
        if exchange.method is not None:
            return SlowAuthenticator().authenticate(connect, exchange)
        if (connect.user_name or "").startswith("refuse"):
            return Refused(Reason.BAD_USER_NAME_OR_PASSWORD)
        return Accepted(connect.user_name)


class Gatekeeper:
    """An admission that refuses client identifiers beginning with `banned`.

    It redirects those with `moved` this time, and those with `gone` for good.
    """

    def admit(self, connect: Connect, peer: str | None) -> Refused | None:
        """Decide by the client identifier."""
        if connect.client_identifier.startswith(b"banned"):
            return Refused(Reason.BANNED, "not here")
        if connect.client_identifier.startswith(b"moved"):
            return Refused(Reason.USE_ANOTHER_SERVER, "", "other.example:1883")
        if connect.client_identifier.startswith(b"gone"):
            return Refused(Reason.SERVER_MOVED, "", "new.example")
        return None


class TopicAcl:
    """Topics below `secret/` are for nobody.

    Args:
        mount_point: under which all clients live.
    """

    def __init__(self, mount_point: bytes = b"") -> None:
        self.secret = mount_point + b"secret/"

    def may_publish(self, principal: Principal, topic_name: bytes, qos: int, retain: bool) -> bool:
        """Return whether it is not below secret/."""
        return not topic_name.startswith(self.secret)

    def may_subscribe(self, principal: Principal, topic_filter: bytes, qos: int) -> bool:
        """Return whether it is not below secret/."""
        return not topic_filter.startswith(self.secret)


class XorFilter:
    """A filter between socket and protocol: every byte XOR 0x5A, and what comes in is split at every byte."""

    KEY = 0x5A

    def received(self, data: bytes) -> list[bytes]:
        """Return the plain bytes, one by one."""
        return [bytes((byte ^ self.KEY,)) for byte in data]

    def send(self, data: bytes) -> bytes:
        """Return what goes to the socket."""
        return bytes(byte ^ self.KEY for byte in data)

    def wants_to_send(self) -> bool:
        """It never has anything of its own to say."""
        return False
