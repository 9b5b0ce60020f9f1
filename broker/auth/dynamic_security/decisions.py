"""What a client may do: its own roles by priority, then those of its groups by priority, then what holds by default.

In each role the rules of the kind that is asked about are looked at, high priorities first, and the first one that fits
decides; for topic filters those that are meant literally come first. What begins with `$CONTROL` is allowed by rules
alone, and what begins with `$` fits rules alone that begin with it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from broker.auth.dynamic_security.entities import (
    PUBLISH_RECEIVE,
    PUBLISH_SEND,
    SUBSCRIBE_LITERAL,
    SUBSCRIBE_PATTERN,
    UNSUBSCRIBE_LITERAL,
    UNSUBSCRIBE_PATTERN,
    Group,
    Role,
    Rule,
)
from broker.auth.dynamic_security.state import State
from router.matching.topic_names import check_topic_filter, matches_compiled

CONTROL: Final = b"$CONTROL"


class Verdict(NamedTuple):
    """What was decided.

    Attributes:
        allowed: None: nothing says so, and it is not for us to decide.
        by: what decided, in words.
    """

    allowed: bool | None
    by: str


class Pattern:
    """The topic filter of a rule, taken apart.

    Attributes:
        levels: those of it, without the last one if that is `#`.
        is_wide: the last one is `#`.
    """

    __slots__ = ("is_wide", "levels", "names_client", "topic", "usable")

    def __init__(self, topic: str) -> None:
        self.topic = topic.encode()
        levels = self.topic.split(b"/")
        # Rules in a list are not looked at when they come, and one that is no topic filter fits nothing.
        self.usable = check_topic_filter(self.topic) is None
        self.names_client = b"%c" in levels or b"%u" in levels
        self.is_wide = levels[-1] == b"#"
        self.levels = levels[:-1] if self.is_wide else levels

    def for_client(self, user: str | None, client_identifier: bytes) -> Pattern | None:
        """Return it with what `%c` and `%u` stand for as whole levels; None: it fits nothing of this client's."""
        stand_for = {b"%c": client_identifier, b"%u": b"" if user is None else user.encode()}
        for name, value in stand_for.items():
            if name in self.levels and (not value or any(sign in value for sign in b"+#/\0")):
                return None
        return Pattern(
            b"/".join(
                [*(stand_for.get(level, level) for level in self.levels), *([b"#"] if self.is_wide else [])]
            ).decode()
        )

    def fits_topic(self, topic_name: bytes) -> bool:
        """Return whether it matches a topic name."""
        return self.usable and matches_compiled(self.topic, topic_name)

    def covers(self, topic_filter: bytes) -> bool:
        """Return whether it matches whatever a topic filter matches."""
        if not self.usable or (topic_filter[:1] == b"$") != (self.topic[:1] == b"$"):
            return False
        levels = topic_filter.split(b"/")
        is_wide = levels[-1] == b"#"
        if is_wide:
            levels.pop()
        if (
            (is_wide and not self.is_wide)
            or len(levels) < len(self.levels)
            or (len(levels) > len(self.levels) and not self.is_wide)
        ):
            return False
        return all(own in (b"+", other) for own, other in zip(self.levels, levels, strict=False))


class Decisions:
    """Decides by a state, as it is when it is asked.

    Remembers the rules of a role by kind, as long as that role is there.
    """

    def __init__(self, state: State) -> None:
        self._state = state
        self._patterns: dict[str, tuple[Role, dict[str, list[tuple[Rule, Pattern]]]]] = {}

    def may_publish(self, user: str | None, client_identifier: bytes, topic_name: bytes) -> Verdict:
        """Return whether a client may publish to a topic name."""
        return self._on_topic(PUBLISH_SEND, user, client_identifier, topic_name, self._state.settings.publish_send)

    def may_receive(self, user: str | None, client_identifier: bytes, topic_name: bytes) -> Verdict:
        """Return whether a client may be sent what is published to a topic name."""
        default = self._state.settings.publish_receive
        return self._on_topic(PUBLISH_RECEIVE, user, client_identifier, topic_name, default)

    def may_subscribe(self, user: str | None, client_identifier: bytes, topic_filter: bytes) -> Verdict:
        """Return whether a client may subscribe to a topic filter."""
        return self._on_filter(
            SUBSCRIBE_LITERAL, SUBSCRIBE_PATTERN, user, client_identifier, topic_filter, self._state.settings.subscribe
        )

    def may_unsubscribe(self, user: str | None, client_identifier: bytes, topic_filter: bytes) -> Verdict:
        """Return whether a client may unsubscribe from a topic filter."""
        return self._on_filter(
            UNSUBSCRIBE_LITERAL,
            UNSUBSCRIBE_PATTERN,
            user,
            client_identifier,
            topic_filter,
            self._state.settings.unsubscribe,
        )

    def receives_all_of(self, user: str | None, client_identifier: bytes, topic_filter: bytes) -> bool:
        """Return whether a client may surely be sent all that a topic filter matches."""
        for role in self._roles(user) or ():
            for rule, pattern in self._rules(role, PUBLISH_RECEIVE, user, client_identifier):
                if not rule.allow:
                    return False
                if pattern.covers(topic_filter):
                    return True
        return self._knows(user) and self._state.settings.publish_receive and not topic_filter.startswith(CONTROL)

    def _knows(self, user: str | None) -> bool:
        return user is None or user in self._state.clients

    def _roles(self, user: str | None) -> Iterator[Role] | None:
        """Return the roles of a user in their order, None for one that is not known."""
        state = self._state
        if user is None:
            anonymous = state.anonymous_group
            return iter(()) if anonymous is None else self._living(anonymous)
        client = state.clients.get(user)
        if client is None:
            return None

        def of_client() -> Iterator[Role]:
            yield from (role for one in client.roles if (role := state.role(one)) is not None)
            for reference in client.groups:
                group = state.group(reference)
                if group is not None:
                    yield from self._living(group)

        return of_client()

    def _living(self, group: Group) -> Iterator[Role]:
        return (role for one in group.roles if (role := self._state.role(one)) is not None)

    def _rules(
        self, role: Role, kind: str, user: str | None, client_identifier: bytes
    ) -> Iterator[tuple[Rule, Pattern]]:
        known = self._patterns.get(role.name)
        if known is None or known[0] is not role:
            kinds: dict[str, list[tuple[Rule, Pattern]]] = {}
            for rule in role.rules:
                kinds.setdefault(rule.kind, []).append((rule, Pattern(rule.topic)))
            known = self._patterns[role.name] = role, kinds
        for rule, pattern in known[1].get(kind, ()):
            own = pattern.for_client(user, client_identifier) if pattern.names_client else pattern
            if own is not None:
                yield rule, own

    def _on_topic(
        self, kind: str, user: str | None, client_identifier: bytes, topic_name: bytes, default: bool
    ) -> Verdict:
        roles = self._roles(user)
        if roles is None:
            return Verdict(None, "no client of this name")
        for role in roles:
            for rule, pattern in self._rules(role, kind, user, client_identifier):
                if pattern.fits_topic(topic_name):
                    return _verdict(role, rule)
        return _default(kind, topic_name, default)

    def _on_filter(
        self,
        literal: str,
        pattern_kind: str,
        user: str | None,
        client_identifier: bytes,
        topic_filter: bytes,
        default: bool,
    ) -> Verdict:
        roles = self._roles(user)
        if roles is None:
            return Verdict(None, "no client of this name")
        levels = topic_filter.split(b"/")
        has_wildcards = b"+" in levels or b"#" in levels
        for role in roles:
            if has_wildcards and not role.wildcards and literal == SUBSCRIBE_LITERAL:
                return Verdict(False, f"role {role.name!r} without wildcards")
            for rule, pattern in self._rules(role, literal, user, client_identifier):
                if pattern.topic == topic_filter:
                    return _verdict(role, rule)
            for rule, pattern in self._rules(role, pattern_kind, user, client_identifier):
                if pattern.covers(topic_filter):
                    return _verdict(role, rule)
        return _default("subscribe" if literal == SUBSCRIBE_LITERAL else "unsubscribe", topic_filter, default)


def _verdict(role: Role, rule: Rule) -> Verdict:
    return Verdict(rule.allow, f"role {role.name!r} {rule.kind} {'allow' if rule.allow else 'deny'} {rule.topic}")


def _default(kind: str, name: bytes, default: bool) -> Verdict:
    if name.startswith(CONTROL):
        return Verdict(None, f"{CONTROL.decode()} without a rule of its own")
    return Verdict(True if default else None, f"defaultACLAccess {kind} {'allow' if default else 'deny'}")
