"""What a client may do: the seam that is asked about topics."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Coroutine
from enum import Enum, IntEnum
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

from broker.logs import get

if TYPE_CHECKING:
    from broker.auth.principal import Principal

log = get("acl")

Action = Literal["publish", "subscribe", "read"]


class Grant(IntEnum):
    """What a client is granted of a topic filter."""

    REFUSED = 0
    NARROWED = 1  # the topics among those that match that may_read() allows
    WHOLE = 2


class Fetched(Enum):
    """Whether an answer is known."""

    KNOWN = "known"
    UNKNOWN = "unknown"
    UNAVAILABLE = "unavailable"  # who knows it was asked, and does not answer


class Decision(NamedTuple):
    """What was decided, and by what.

    Attributes:
        grant: REFUSED or WHOLE; NARROWED of a subscription only.
        by: in words for an operator, such as "acl.conf:17 topic deny plant/#".
    """

    grant: Grant
    by: str


class Acl(Protocol):
    """Answers at once, without I/O. Answers for publishing are remembered per connection and topic name.

    What it raises is logged with its traceback, and the answer is no. About superusers it is not asked. It may have
    more members:

        may_read(principal, topic_name): whether a topic of a subscription that it has NARROWED may be read; without it,
            whether may_subscribe() grants the topic name as a whole. Remembered by client and topic name.
        may_use(principal, topic_filter): whether a client may use a shared subscription or a replay at all, asked about
            the topic filter as it is, `$share/NAME/FILTER` or `$replay/START/FILTER`, before may_subscribe() is about
            the FILTER in it; without it, it may.
        may_unsubscribe(principal, topic_filter): whether a client may end a subscription of its own, asked as
            may_subscribe() is; without it, it may.
        decides_by_qos: True if its answers for publishing depend on QoS or RETAIN, which are remembered with the topic
            name then.
        explain(principal, action, name, qos, retain): returns a Decision, for operators.
        waits: True if not all answers are known: what is not is refused, and missing() says so.
        missing(principal, action, name, qos, retain): returns None if an answer is known, or else whom to ask for it,
            whose `await ask(principal, action, name, qos, retain)` has it known, for a second at least, and whether
            that one has been asked just now and could not answer. Of subscribe, name is the FILTER.
        may_leave_will(principal, topic_name, qos, retain): may_publish(), for a will about which who is asked has been
            asked at its CONNECT.
        changed: set by the broker; to be called, from trio's thread, when the answers may be others now.
    """

    def may_publish(self, principal: Principal, topic_name: bytes, qos: int, retain: bool) -> bool:
        """Return whether a client may publish to a topic name."""

    def may_subscribe(self, principal: Principal, topic_filter: bytes, qos: int) -> bool | Grant:
        """Return whether a client may subscribe to a topic filter, which comes without $share/NAME or $replay/START."""


class WillAcl(Protocol):
    """Who is asked when a will is published."""

    def may_leave_will(self, principal: Principal, topic_name: bytes, qos: int, retain: bool) -> bool:
        """Return whether a will may be published to a topic name."""


class AllowAll:
    """Every client may do everything. The default: anonymous on loopback."""

    def may_publish(self, principal: Principal, topic_name: bytes, qos: int, retain: bool) -> bool:
        """Return True."""
        return True

    def may_subscribe(self, principal: Principal, topic_filter: bytes, qos: int) -> bool | Grant:
        """Return True."""
        return True

    def may_leave_will(self, principal: Principal, topic_name: bytes, qos: int, retain: bool) -> bool:
        """Return True."""
        return True


class FailClosed:
    """Another ACL, whose failures are a no: they are its own affair, not the worker's. Superusers may do everything.

    Attributes:
        explains: clients may know what decided against them.
        allows_all: it is never asked anything: everybody may do everything, and always may.
        waits: not all answers are known: fetched() says which are, and fetch() has one known.
        relying: connections that may remember answers which count for a while only.
    """

    def __init__(self, acl: Acl, *, explains: bool = False) -> None:
        self._acl = acl
        self.explains = explains
        self.allows_all = type(acl) is AllowAll
        self.waits = bool(getattr(acl, "waits", False))
        self.relying: set[Any] = set()
        self._may_read = getattr(acl, "may_read", None)
        self._may_use = getattr(acl, "may_use", None)
        self._may_unsubscribe = getattr(acl, "may_unsubscribe", None)

    @property
    def decides_by_qos(self) -> bool:
        """Whether the other's answers for publishing depend on QoS or RETAIN."""
        return bool(getattr(self._acl, "decides_by_qos", False))

    def watch(self, changed: Callable[[], None]) -> None:
        """Have something called when the other's answers may be others than before."""
        if not self.allows_all:
            with contextlib.suppress(AttributeError):  # it has no room for it, so its answers never change
                self._acl.changed = changed  # type: ignore[attr-defined]

    def may_publish(self, principal: Principal, topic_name: bytes, qos: int, retain: bool) -> bool:
        """Return the other's answer."""
        if principal.superuser:
            return True
        try:
            return bool(_answered(self._acl.may_publish(principal, topic_name, qos, retain)))
        except Exception:
            log.exception("acl_failed")
            return False

    def may_subscribe(self, principal: Principal, topic_filter: bytes, qos: int) -> Grant:
        """Return what the other grants of a topic filter, of a shared subscription or a replay too."""
        if principal.superuser:
            return Grant.WHOLE
        inner = inner_filter(topic_filter)
        try:
            if not self._uses(principal, topic_filter, inner):
                return Grant.REFUSED
            granted = _answered(self._acl.may_subscribe(principal, inner, qos))
        except Exception:
            log.exception("acl_failed")
            return Grant.REFUSED
        if isinstance(granted, Grant):
            return granted
        return Grant.WHOLE if granted else Grant.REFUSED

    def may_unsubscribe(self, principal: Principal, topic_filter: bytes) -> bool:
        """Return the other's answer, about the filter in a shared subscription or a replay too; if it has none, yes."""
        if self._may_unsubscribe is None or principal.superuser:
            return True
        try:
            return bool(_answered(self._may_unsubscribe(principal, inner_filter(topic_filter))))
        except Exception:
            log.exception("acl_failed")
            return False

    def may_read(self, principal: Principal, topic_name: bytes) -> bool:
        """Return the other's answer; if it has none, whether it grants the topic name as a filter."""
        if principal.superuser:
            return True
        if self._may_read is None:
            return self.may_subscribe(principal, topic_name, 0) == Grant.WHOLE
        try:
            return bool(_answered(self._may_read(principal, topic_name)))
        except Exception:
            log.exception("acl_failed")
            return False

    def _uses(self, principal: Principal, topic_filter: bytes, inner: bytes) -> bool:
        return self._may_use is None or inner is topic_filter or bool(_answered(self._may_use(principal, topic_filter)))

    def may_leave_will(self, principal: Principal, topic_name: bytes, qos: int, retain: bool) -> bool:
        """Return whether a will may be published, which keeps what others have said of it at its CONNECT."""
        if not self.waits or principal.superuser:
            return self.may_publish(principal, topic_name, qos, retain)
        try:
            return bool(_answered(self._acl.may_leave_will(principal, topic_name, qos, retain)))  # type: ignore[attr-defined]
        except Exception:
            log.exception("acl_failed")
            return False

    def fetched(self, principal: Principal, action: Action, name: bytes, qos: int, retain: bool) -> Fetched:
        """Return whether the answer about something is known."""
        if not self.waits or principal.superuser:
            return Fetched.KNOWN
        try:
            missing = self._missing(principal, action, name, qos, retain)
        except Exception:
            log.exception("acl_failed")
            return Fetched.KNOWN  # that it is refused
        if missing is None:
            return Fetched.KNOWN
        return Fetched.UNAVAILABLE if missing[1] else Fetched.UNKNOWN

    async def fetch(self, principal: Principal, action: Action, name: bytes, qos: int, retain: bool) -> Fetched:
        """Have the answer about something known, by asking who knows it. Returns KNOWN or UNAVAILABLE."""
        if not self.waits or principal.superuser:
            return Fetched.KNOWN
        try:
            asked: list[Any] = []
            while (missing := self._missing(principal, action, name, qos, retain)) is not None:
                # What one has said may have ended while another one was asked.
                if missing[1] or asked.count(missing[0]) > 1:
                    return Fetched.UNAVAILABLE
                asked.append(missing[0])
                await missing[0].ask(principal, action, name, qos, retain)
        except Exception:
            log.exception("acl_failed")
            return Fetched.UNAVAILABLE
        return Fetched.KNOWN

    def _missing(
        self, principal: Principal, action: Action, name: bytes, qos: int, retain: bool
    ) -> tuple[Any, bool] | None:
        if action == "subscribe":
            name = inner_filter(name)
        found: tuple[Any, bool] | None = self._acl.missing(principal, action, name, qos, retain)  # type: ignore[attr-defined]
        return found

    def explain(self, principal: Principal, action: Action, name: bytes, qos: int, retain: bool) -> Decision:
        """Return what is decided, and by what."""
        if principal.superuser:
            return Decision(Grant.WHOLE, "superuser")
        explain = getattr(self._acl, "explain", None)
        if explain is None:
            if action == "subscribe":
                return Decision(self.may_subscribe(principal, name, qos), type(self._acl).__name__)
            allowed = (
                self.may_read(principal, name) if action == "read" else self.may_publish(principal, name, qos, retain)
            )
            return Decision(Grant.WHOLE if allowed else Grant.REFUSED, type(self._acl).__name__)
        try:
            if action == "subscribe":
                inner = inner_filter(name)
                if self._uses(principal, name, inner):
                    name = inner  # else it is the use of it that is refused
            grant, by = _answered(explain(principal, action, name, qos, retain))
            return Decision(Grant(grant), str(by))
        except Exception:
            log.exception("acl_failed")
            return Decision(Grant.REFUSED, f"{type(self._acl).__name__} has failed")


def inner_filter(topic_filter: bytes) -> bytes:
    """Return the topic filter in that of a shared subscription or of a replay; any other one as it is."""
    if topic_filter.startswith((b"$share/", b"$replay/")):
        parts = topic_filter.split(b"/", 2)
        return parts[2] if len(parts) == 3 else topic_filter
    return topic_filter


def _answered(answer: Any) -> Any:
    """Return an answer; raise TypeError for a coroutine, which would count as a yes."""
    if isinstance(answer, Coroutine):
        answer.close()
        raise TypeError("an ACL answers at once: its methods are not async")
    return answer
