"""What commands about clients, groups and roles have in common."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from msgspec.structs import replace

from broker.auth.dynamic_security.entities import Client, Group, Role
from broker.auth.dynamic_security.fields import Fields, WrongFieldError, boolean, integer, text_or_none
from broker.auth.dynamic_security.state import Draft

Named = TypeVar("Named", Client, Group, Role)


def texts_of(command: Fields) -> dict[str, Any]:
    """Return the texts of what is made."""
    return {
        "text_name": text_or_none(command, "textname", "Invalid/missing textname"),
        "text_description": text_or_none(command, "textdescription", "Invalid/missing textdescription"),
    }


def with_texts(entity: Named, command: Fields) -> Named:
    """Return an entity with the texts that a command gives; others stay, and what is no text is passed over."""
    given_texts = {field: command.get(field.replace("_", "")) for field in ("text_name", "text_description")}
    return replace(entity, **{field: text for field, text in given_texts.items() if isinstance(text, str)})


def role_in(draft: Draft, name: str) -> Role:
    """Return the role of a name. Raises WrongFieldError."""
    role = draft.roles.get(name)
    if role is None:
        raise WrongFieldError("Role not found")
    return role


def given(**fields: str | bool | None) -> dict[str, Any]:
    """Return those fields of an answer that are not None."""
    return {name: value for name, value in fields.items() if value is not None}


def chosen_of(names: list[str], command: Fields) -> list[str]:
    """Return that part of a listing that a command asks for; a count of 0 is taken for 1, as mosquitto does."""
    count, offset = integer(command, "count", -1), max(0, integer(command, "offset", 0))
    return names[offset:] if count < 0 else names[offset : offset + max(1, count)]


def listing(
    kind: str, all_names: Iterable[str], command: Fields, described: Callable[[list[str]], list[Any]]
) -> dict[str, Any]:
    """Return the answer to a command that lists.

    Args:
        kind: what it lists, as the answer has it.
        described: returns what a verbose answer says of some.
    """
    names = sorted(all_names)
    chosen = chosen_of(names, command)
    is_verbose = boolean(command, "verbose", default=False)
    return {"totalCount": len(names), kind: described(chosen) if is_verbose else chosen}
