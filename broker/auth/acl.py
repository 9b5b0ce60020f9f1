"""What a client may do: the seam that is asked about topics."""

from collections.abc import Coroutine
from typing import Protocol

from broker.logs import get

log = get("acl")


class Acl(Protocol):
    """Answers at once, without I/O. Answers for publishing are remembered per connection and topic name.

    What it raises is logged with its traceback, and the answer is no.
    """

    def may_publish(self, identity: object, topic_name: bytes) -> bool:
        """Return whether a client may publish to a topic name."""

    def may_subscribe(self, identity: object, topic_filter: bytes) -> bool:
        """Return whether a client may subscribe to a topic filter; a shared subscription's comes without $share."""


class AllowAll:
    """Every client may do everything. The default: anonymous on loopback."""

    def may_publish(self, identity: object, topic_name: bytes) -> bool:
        """Return True."""
        return True

    def may_subscribe(self, identity: object, topic_filter: bytes) -> bool:
        """Return True."""
        return True


class FailClosed:
    """Another ACL, whose failures are a no: they are its own affair, not the worker's."""

    def __init__(self, acl: Acl) -> None:
        self._acl = acl

    def may_publish(self, identity: object, topic_name: bytes) -> bool:
        """Return the other's answer."""
        try:
            return _answered(self._acl.may_publish(identity, topic_name))
        except Exception:
            log.exception("acl_failed")
            return False

    def may_subscribe(self, identity: object, topic_filter: bytes) -> bool:
        """Return the other's answer."""
        try:
            return _answered(self._acl.may_subscribe(identity, topic_filter))
        except Exception:
            log.exception("acl_failed")
            return False


def _answered(answer: object) -> bool:
    """Return an answer; raise TypeError for a coroutine, which would count as a yes."""
    if isinstance(answer, Coroutine):
        answer.close()
        raise TypeError("an ACL answers at once: its methods are not async")
    return bool(answer)
