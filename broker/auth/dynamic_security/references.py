"""References to groups and roles, as commands give, change and list them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from broker.auth.dynamic_security.entities import UNNAMED_PRIORITY, Group, Reference, Role, by_priority
from broker.auth.dynamic_security.fields import Fields, WrongFieldError, array, integer, text

if TYPE_CHECKING:
    from collections.abc import Iterable

    from broker.auth.dynamic_security.state import State

WRONG_ROLES: Final = "'roles' not an array or missing/invalid rolename"


def priority_of(fields: Fields) -> int:
    """Return the priority that a command or a part of it gives."""
    return integer(fields, "priority", UNNAMED_PRIORITY)


def reference_to(entity: Group | Role, priority: int) -> Reference:
    """Return a reference to what is there now."""
    return Reference(entity.name, entity.mark, priority)


def roles_given(state: State, fields: Fields, wrong: str = WRONG_ROLES) -> tuple[Reference, ...] | None:
    """Return the roles that a command gives; None: it says nothing of roles.

    One that is given twice has the first priority.

    Raises WrongFieldError.
    """
    if "roles" not in fields:
        return None
    given = array(fields, "roles")
    if given is None:
        raise WrongFieldError(wrong)
    found: dict[str, Reference] = {}
    for one in given:
        if not isinstance(one, dict):
            raise WrongFieldError(wrong)
        role = state.roles.get(text(one, "rolename", wrong))
        if role is None:
            raise WrongFieldError("Role not found")
        found.setdefault(role.name, reference_to(role, priority_of(one)))
    return by_priority(list(found.values()))


def living(state: State, references: Iterable[Reference], kind: type[Group | Role]) -> list[Reference]:
    """Return those whose group or role is there still."""
    return [one for one in references if (state.role(one) if kind is Role else state.group(one)) is not None]


def listed(state: State, references: Iterable[Reference], kind: type[Group | Role]) -> list[dict[str, Any]]:
    """Return references as an answer has them."""
    name = "rolename" if kind is Role else "groupname"
    return [
        {name: one.name} if one.priority == UNNAMED_PRIORITY else {name: one.name, "priority": one.priority}
        for one in living(state, references, kind)
    ]


def added(state: State, references: Iterable[Reference], to: Group | Role, priority: int) -> tuple[Reference, ...]:
    """Return references with one more; what is no more there is left out."""
    return by_priority([*living(state, references, type(to)), reference_to(to, priority)])


def removed(state: State, references: Iterable[Reference], to: Group | Role) -> tuple[Reference, ...]:
    """Return references without one."""
    return tuple(one for one in living(state, references, type(to)) if one.name != to.name)
