"""Commands about roles and their access rules."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from msgspec.structs import replace

from broker.auth.dynamic_security.common_commands import given, listing, texts_of, with_texts
from broker.auth.dynamic_security.entities import ACL_TYPES, Role, Rule, by_kind
from broker.auth.dynamic_security.fields import (
    Fields,
    WrongFieldError,
    array,
    boolean,
    integer,
    is_valid_text,
    name_of,
    text,
)
from broker.auth.dynamic_security.state import Draft
from router.matching.topic_names import check_topic_filter

KINDS: Final = {kind.lower(): kind for kind in ACL_TYPES}


class RoleCommands:
    """What they make of a draft."""

    def __init__(self, draft: Draft) -> None:
        self._draft = draft
        self.handlers: dict[str, Callable[[Fields], dict[str, Any] | None]] = {
            "createRole": self._create, "deleteRole": self._delete, "getRole": self._get, "listRoles": self._list,
            "modifyRole": self._modify, "addRoleACL": self._add_rule, "removeRoleACL": self._remove_rule,
        }  # fmt: skip

    def _named(self, command: Fields, absent: str = "Role not found") -> Role:
        role = self._draft.roles.get(name_of(command, "rolename", "Role name"))
        if role is None:
            raise WrongFieldError(absent)
        return role

    def _create(self, command: Fields) -> None:
        name = name_of(command, "rolename", "Role name", new=True)
        texts = texts_of(command)
        if not isinstance(command.get("allowwildcardsubs", True), bool):
            raise WrongFieldError("Invalid allowwildcardsubs")
        if name in self._draft.roles:
            raise WrongFieldError("Role already exists")
        self._draft.put(
            "role",
            name,
            Role(
                name=name,
                mark=self._draft.new_mark(),
                **texts,
                wildcards=boolean(command, "allowwildcardsubs", default=True),
                rules=rules_given(array(command, "acls") or []),
            ),
        )

    def _delete(self, command: Fields) -> None:
        role = self._named(command)
        self._draft.kick_holders(role)
        self._draft.put("role", role.name, None)

    def _modify(self, command: Fields) -> None:
        before = role = self._named(command, "Role does not exist")
        role = with_texts(role, command)
        role = replace(role, wildcards=boolean(command, "allowwildcardsubs", default=role.wildcards))
        given_rules = array(command, "acls")
        if given_rules is not None:
            role = replace(role, rules=rules_given(given_rules))
        self._draft.put("role", role.name, role)
        if given_rules is not None or role.wildcards != before.wildcards:
            self._draft.kick_holders(role)

    def _add_rule(self, command: Fields) -> None:
        role = self._named(command)
        kind = _kind_of(command)
        topic = _topic_of(command)
        if any(rule.kind == kind and rule.topic == topic for rule in role.rules):
            raise WrongFieldError("ACL with this topic already exists")
        rule = Rule(kind, topic, integer(command, "priority", 0), boolean(command, "allow", default=False))
        role = replace(role, rules=by_kind([*role.rules, rule]))
        self._draft.put("role", role.name, role)
        self._draft.kick_holders(role)

    def _remove_rule(self, command: Fields) -> None:
        role = self._named(command)
        kind = _kind_of(command)
        topic = _topic_of(command)
        left = tuple(rule for rule in role.rules if rule.kind != kind or rule.topic != topic)
        if len(left) == len(role.rules):
            raise WrongFieldError("ACL not found")
        role = replace(role, rules=left)
        self._draft.put("role", role.name, role)
        self._draft.kick_holders(role)

    def _get(self, command: Fields) -> dict[str, Any]:
        return {"role": described(self._named(command))}

    def _list(self, command: Fields) -> dict[str, Any]:
        roles = self._draft.roles
        return listing("roles", roles, command, lambda chosen: [described(roles[name]) for name in chosen])


def described(role: Role) -> dict[str, Any]:
    """Return a role as an answer has it."""
    return {
        "rolename": role.name,
        **given(textname=role.text_name, textdescription=role.text_description),
        "allowwildcardsubs": role.wildcards,
        "acls": [
            {"acltype": rule.kind, "topic": rule.topic, "priority": rule.priority, "allow": rule.allow}
            for rule in role.rules
        ],
    }


def rules_given(acls: list[Any]) -> tuple[Rule, ...]:
    """Return the rules of a list; what is none is passed over, and of two for one topic the one asked first is kept."""
    found: list[Rule] = []
    for one in acls:
        if not isinstance(one, dict):
            continue
        kind, topic = one.get("acltype"), one.get("topic")
        if isinstance(kind, str) and kind.lower() in KINDS and isinstance(topic, str) and topic:
            found.append(
                Rule(KINDS[kind.lower()], topic, integer(one, "priority", 0), boolean(one, "allow", default=False))
            )
    kept: dict[tuple[str, str], Rule] = {}
    for rule in by_kind(found):
        kept.setdefault((rule.kind, rule.topic), rule)
    return tuple(kept.values())


def _kind_of(command: Fields) -> str:
    kind = text(command, "acltype", "Invalid/missing acltype")
    if kind.lower() not in KINDS:
        raise WrongFieldError("Unknown acltype")
    return KINDS[kind.lower()]


def _topic_of(command: Fields) -> str:
    topic = text(command, "topic", "Invalid/missing topic")
    if not is_valid_text(topic):
        raise WrongFieldError("Topic not valid UTF-8")
    if check_topic_filter(topic.encode()) is not None:
        raise WrongFieldError("Invalid ACL topic")
    return topic
