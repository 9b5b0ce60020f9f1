"""What there is: clients, groups, roles with their access rules, and what holds where none of these decides.

Each is frozen: a change puts another one in its place, and is stored for itself. Who refers to a group or role knows
its mark, too, which no other one has had: so what is deleted and made again under its name is not what was referred to.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, Literal

from msgspec import Struct, convert, to_builtins

Kind = Literal["client", "group", "role", "settings"]

PUBLISH_SEND: Final = "publishClientSend"
PUBLISH_RECEIVE: Final = "publishClientReceive"
SUBSCRIBE_LITERAL: Final = "subscribeLiteral"
SUBSCRIBE_PATTERN: Final = "subscribePattern"
UNSUBSCRIBE_LITERAL: Final = "unsubscribeLiteral"
UNSUBSCRIBE_PATTERN: Final = "unsubscribePattern"
ACL_TYPES: Final = (
    PUBLISH_SEND,
    PUBLISH_RECEIVE,
    SUBSCRIBE_LITERAL,
    SUBSCRIBE_PATTERN,
    UNSUBSCRIBE_LITERAL,
    UNSUBSCRIBE_PATTERN,
)
"""In the order in which they are listed."""

UNNAMED_PRIORITY: Final = -1  # of who was given none; such a one is not listed


class Reference(Struct, frozen=True, array_like=True):
    """A group that a client is in, or a role that a client or group has.

    Attributes:
        mark: of the group or role that is meant.
        priority: higher ones are asked first.
    """

    name: str
    mark: str
    priority: int = UNNAMED_PRIORITY


class Rule(Struct, frozen=True, array_like=True):
    """One access rule of a role.

    Attributes:
        kind: one of ACL_TYPES.
        topic: a topic filter, as it was given; literal ones are a topic filter that is meant as it is.
    """

    kind: str
    topic: str
    priority: int
    allow: bool


class Client(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A user.

    Attributes:
        client_identifier: the only one that it may use; None: any.
        hashed: its password, as a password file has it; None: it has none, and cannot log in.
    """

    name: str
    client_identifier: str | None = None
    text_name: str | None = None
    text_description: str | None = None
    disabled: bool = False
    hashed: str | None = None
    roles: tuple[Reference, ...] = ()
    groups: tuple[Reference, ...] = ()

    def __repr__(self) -> str:
        return f"Client({self.name!r})"  # without the hash, wherever it is printed


class Group(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Clients with the same roles; who is in it, the clients say."""

    name: str
    mark: str
    text_name: str | None = None
    text_description: str | None = None
    roles: tuple[Reference, ...] = ()


class Role(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Access rules under a name.

    Attributes:
        wildcards: who has it may subscribe to topic filters with wildcards.
        rules: by their kinds as in ACL_TYPES, then by priority, high first.
    """

    name: str
    mark: str
    text_name: str | None = None
    text_description: str | None = None
    wildcards: bool = True
    rules: tuple[Rule, ...] = ()


class Settings(Struct, frozen=True, kw_only=True):
    """What there is once.

    Attributes:
        publish_send, publish_receive, subscribe, unsubscribe: whether clients may do that, where no role says.
        anonymous_group: whose roles clients without user name have; None: they have none.
        changes: requests so far that have changed anything.
    """

    publish_send: bool = False
    publish_receive: bool = True
    subscribe: bool = False
    unsubscribe: bool = True
    anonymous_group: Reference | None = None
    changes: int = 0


Entity = Client | Group | Role | Settings

TYPES: Final[dict[Kind, type[Any]]] = {"client": Client, "group": Group, "role": Role, "settings": Settings}


def by_priority(references: list[Reference]) -> tuple[Reference, ...]:
    """Return references in the order in which they are asked."""
    return tuple(sorted(references, key=lambda reference: (-reference.priority, reference.name)))


def by_kind(rules: list[Rule]) -> tuple[Rule, ...]:
    """Return rules in the order in which they are listed, and those of one kind are asked."""
    return tuple(sorted(rules, key=lambda rule: (ACL_TYPES.index(rule.kind), -rule.priority)))


def has(references: Iterable[Reference], to: Group | Role) -> bool:
    """Return whether a group or role is among references."""
    return any(one.name == to.name and one.mark == to.mark for one in references)


def key_of(kind: Kind, name: str) -> str:
    """Return the key under which an entity is stored."""
    return f"{kind}:{name}"


def value_of(entity: Entity) -> dict[str, Any]:
    """Return an entity as it is stored."""
    value: dict[str, Any] = to_builtins(entity)
    return value


def entity_of(kind: Kind, value: dict[str, Any]) -> Entity:
    """Return what was stored. Raises msgspec.ValidationError."""
    entity: Entity = convert(value, TYPES[kind])
    return entity
