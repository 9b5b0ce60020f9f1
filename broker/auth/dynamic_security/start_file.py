"""What a broker begins with: mosquitto's dynamic-security.json, and one that is made for a first administrator."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from broker.auth.dynamic_security.entities import (
    ACL_TYPES,
    PUBLISH_RECEIVE,
    PUBLISH_SEND,
    SUBSCRIBE_PATTERN,
    UNSUBSCRIBE_PATTERN,
    Client,
    Group,
    Reference,
    Role,
    Settings,
    by_priority,
)
from broker.auth.dynamic_security.fields import NAME_BYTES_MAX, Fields, array, boolean, integer, is_valid_text, parsed
from broker.auth.dynamic_security.references import priority_of
from broker.auth.dynamic_security.role_commands import rules_given
from broker.auth.dynamic_security.state import State
from broker.auth.password_hash import HashError, PasswordHash

MARK: Final = "0"  # of all that a file has: it is read when there is nothing else yet
ADMIN_ROLE: Final = "dynsec-admin"
OBSERVER_ROLE: Final = "sys-observe"
CLIENT_ROLE: Final = "client"


class StartFileError(ValueError):
    """A file that cannot be used, in words that hold nothing secret of it."""


def state_of(data: bytes) -> State:
    """Return what a file says. What mosquitto passes over is passed over; what would be lost in silence is an error.

    Raises StartFileError.
    """
    try:
        tree = parsed(data)
    except ValueError as error:
        raise StartFileError(f"it is no JSON: {_where(error)}") from None
    if not isinstance(tree, dict):
        raise StartFileError("it is no JSON object")
    state = State()
    for fields in _objects(tree, "roles"):
        name = _name(fields, "rolename", "roles")
        state.roles.setdefault(
            name,
            Role(
                name=name,
                mark=MARK,
                text_name=_text(fields, "textname"),
                text_description=_text(fields, "textdescription"),
                wildcards=boolean(fields, "allowwildcardsubs", default=True),
                rules=rules_given(array(fields, "acls") or []),
            ),
        )
    memberships: dict[str, dict[str, Reference]] = {}
    for fields in _objects(tree, "groups"):
        name = _name(fields, "groupname", "groups")
        if name in state.groups:
            continue
        state.groups[name] = Group(
            name=name,
            mark=MARK,
            text_name=_text(fields, "textname"),
            text_description=_text(fields, "textdescription"),
            roles=_references(fields, "rolename", state.roles),
        )
        for member in _objects(fields, "clients"):
            user = _text(member, "username")
            if user:
                memberships.setdefault(user, {}).setdefault(name, Reference(name, MARK, priority_of(member)))
    for fields in _objects(tree, "clients"):
        name = _name(fields, "username", "clients")
        groups = memberships.setdefault(name, {})
        for reference in _references(fields, "groupname", state.groups):
            groups.setdefault(reference.name, reference)
        state.clients.setdefault(
            name,
            Client(
                name=name,
                client_identifier=_text(fields, "clientid") or None,
                text_name=_text(fields, "textname"),
                text_description=_text(fields, "textdescription"),
                disabled=boolean(fields, "disabled", default=False),
                hashed=_hashed(name, fields),
                roles=_references(fields, "rolename", state.roles),
                groups=by_priority(list(groups.values())),
            ),
        )
    state.settings = _settings(tree, state)
    state.begun = True
    return state


def _where(error: ValueError) -> str:
    line = getattr(error, "lineno", None)
    return f"line {line}, {getattr(error, 'msg', '')}" if line is not None else str(error)


def _objects(fields: Fields, name: str) -> list[Fields]:
    if name in fields and not isinstance(fields[name], list):
        raise StartFileError(f"{name!r} is no array")
    return [one for one in fields.get(name, ()) if isinstance(one, dict)]


def _name(fields: Fields, name: str, array_name: str) -> str:
    found = fields.get(name)
    if not isinstance(found, str) or not found:
        raise StartFileError(f"one of {array_name!r} has no {name!r}")
    if not is_valid_text(found) or len(found.encode()) > NAME_BYTES_MAX:
        raise StartFileError(f"the {name} {found[:80]!r} has control characters, or more than {NAME_BYTES_MAX:,} bytes")
    return found


def _text(fields: Fields, name: str) -> str | None:
    found = fields.get(name)
    return found if isinstance(found, str) else None


def _references(fields: Fields, name: str, known: dict[str, Any]) -> tuple[Reference, ...]:
    found: dict[str, Reference] = {}
    for one in _objects(fields, "roles" if name == "rolename" else "groups"):
        other = _text(one, name)
        if other in known and other is not None:
            found.setdefault(other, Reference(other, MARK, priority_of(one)))
    return by_priority(list(found.values()))


def _hashed(user: str, fields: Fields) -> str | None:
    """Return the hash of a user's password as a password file has it; None: it has none."""
    stored = _text(fields, "encoded_password")
    if stored is None:
        password, salt, iterations = _text(fields, "password"), _text(fields, "salt"), integer(fields, "iterations", 0)
        if password is None or salt is None:
            return None
        stored = f"$7${iterations}${salt}${password}"
    try:
        PasswordHash(stored.encode())
    except HashError as error:
        raise StartFileError(f"the password of the client {user!r}: {error}") from None
    return stored


def _settings(tree: Fields, state: State) -> Settings:
    default = tree.get("defaultaclaccess")
    given: Fields = default if isinstance(default, dict) else {}
    anonymous = _text(tree, "anonymousgroup")
    return Settings(
        publish_send=boolean(given, "publishClientSend", default=False),
        publish_receive=boolean(given, "publishClientReceive", default=not given),
        subscribe=boolean(given, "subscribe", default=False),
        unsubscribe=boolean(given, "unsubscribe", default=not given),
        anonymous_group=Reference(anonymous, MARK) if anonymous in state.groups and anonymous is not None else None,
    )


def first_file(user: str, hashed: str) -> bytes:
    """Return a file for one administrator, who may do nothing but administer, and see $SYS.

    There is a role for clients that may do everything with topics that do not begin with `$`.

    Args:
        hashed: the hash of its password.
    """
    kinds = (PUBLISH_SEND, PUBLISH_RECEIVE, SUBSCRIBE_PATTERN, UNSUBSCRIBE_PATTERN)
    roles = {
        ADMIN_ROLE: ("$CONTROL/dynamic-security/#", kinds, "May administer clients, groups and roles."),
        OBSERVER_ROLE: ("$SYS/#", kinds[1:], "May see what the broker says of itself."),
        CLIENT_ROLE: ("#", kinds, "May publish and subscribe to all that does not begin with $."),
    }
    tree = {
        "defaultACLAccess": {"publishClientSend": False, "publishClientReceive": True, "subscribe": False,
                             "unsubscribe": True},
        "clients": [{"username": user, "textname": "Administrator", "encoded_password": hashed,
                     "roles": [{"rolename": ADMIN_ROLE}, {"rolename": OBSERVER_ROLE}]}],
        "groups": [],
        "roles": [{"rolename": name, "textdescription": text, "acls": [
            {"acltype": kind, "topic": topic, "priority": 0, "allow": True} for kind in kinds_of]}
            for name, (topic, kinds_of, text) in roles.items()],
    }  # fmt: skip
    assert set(kinds) < set(ACL_TYPES)
    return msgspec.json.format(msgspec.json.encode(tree), indent=4) + b"\n"
