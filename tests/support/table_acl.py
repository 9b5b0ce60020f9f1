"""An ACL of topic filters by user, which may change."""

from __future__ import annotations

from collections.abc import Callable

from broker.auth.acl import Decision, Grant
from broker.auth.principal import Principal
from router.log.record_scan import matches


def covers(wide: bytes, topic_filter: bytes) -> bool:
    """Return whether every topic that a filter matches is matched by a wider one."""
    ours, theirs = wide.split(b"/"), topic_filter.split(b"/")
    for index, level in enumerate(ours):
        if level == b"#":
            return True
        if index == len(theirs) or theirs[index] == b"#" or (level != b"+" and level != theirs[index]):
            return False
    return len(ours) == len(theirs)


def overlap(one: bytes, other: bytes) -> bool:
    """Return whether there is a topic that both filters match."""
    ours, theirs = one.split(b"/"), other.split(b"/")
    for level, its in zip(ours, theirs, strict=False):
        if b"#" in (level, its):
            return True
        if b"+" not in (level, its) and level != its:
            return False
    rest = ours[len(theirs) :] or theirs[len(ours) :]
    return not rest or rest[0] == b"#"


class TableAcl:
    """Each user may publish and read what the filters in the table match.

    Args:
        table: topic filters by user name; who is not in it may do everything.
    """

    changed: Callable[[], None]

    def __init__(self, **table: str) -> None:
        self.asked = 0
        self.table: dict[str, list[bytes]] = {}
        self.allow(**table)

    def allow(self, **table: str) -> None:
        """Put other filters into the table, with blanks between them."""
        self.table |= {user: text.encode().split() for user, text in table.items()}

    def change(self, **table: str) -> None:
        """allow(), in a broker that runs."""
        self.allow(**table)
        self.changed()

    def _filters(self, principal: Principal) -> list[bytes]:
        return self.table.get(principal.user_name or "", [b"#"])

    def may_publish(self, principal: Principal, topic_name: bytes, qos: int, retain: bool) -> bool:
        return any(matches(one, topic_name) for one in self._filters(principal))

    def may_read(self, principal: Principal, topic_name: bytes) -> bool:
        self.asked += 1
        return any(matches(one, topic_name) for one in self._filters(principal))

    def may_subscribe(self, principal: Principal, topic_filter: bytes, qos: int) -> Grant:
        filters = self._filters(principal)
        if any(covers(one, topic_filter) for one in filters):
            return Grant.WHOLE
        return Grant.NARROWED if any(overlap(one, topic_filter) for one in filters) else Grant.REFUSED

    def explain(self, principal: Principal, action: str, name: bytes, qos: int, retain: bool) -> Decision:
        if action == "subscribe":
            grant = self.may_subscribe(principal, name, qos)
        else:
            grant = Grant.WHOLE if self.may_publish(principal, name, qos, retain) else Grant.REFUSED
        return Decision(grant, f"table: {principal.user_name} {action}")
