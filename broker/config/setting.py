"""Settings as they describe themselves, and what is wrong with one."""

from __future__ import annotations

import json
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import msgspec
from msgspec import Meta, Struct

ENVIRONMENT_PREFIX = "SHOAL_"
TABLES = ("listener", "authenticator", "authorizer", "limit")  # of which there may be any number


class Setting(Struct, frozen=True):
    """One setting as it describes itself.

    Attributes:
        key: dotted, as in a TOML file: `mqtt.receive_maximum`.
        kind: the annotated type that a value converts to.
        default: the value if no layer gives one; None means unset.
        text: one sentence.
        expected: the range of values in words.
        unit: "bytes", "seconds", "milliseconds" or "" for a plain number or word.
    """

    key: str
    kind: Any
    default: Any
    text: str
    expected: str
    unit: str

    @property
    def variable(self) -> str:
        """Its name in the environment."""
        return ENVIRONMENT_PREFIX + self.key.upper().replace(".", "__")


class Problem(Struct, frozen=True):
    """One thing that is wrong with a configuration: where, which key, what was found and what was expected."""

    where: str
    key: str
    found: str
    expected: str

    def __str__(self) -> str:
        key = f"{self.key}: " if self.key else ""
        return f"{self.where}: {key}found {self.found}, expected {self.expected}"


def shown(found: Any) -> str:
    """Return what was found, for an error."""
    text = json.dumps(found, ensure_ascii=False, default=str)
    return text if len(text) <= 120 else f"{text[:100]}... ({len(text)} characters)"


def tables_of(found: object, name: str, where: str, problems: list[Problem]) -> list[dict[str, Any]]:
    """Return the [[name]] tables that a layer gives; of anything else none, and that is added to the problems."""
    if isinstance(found, list) and all(isinstance(table, dict) for table in found):
        return found
    problems.append(Problem(where, name, shown(found), f"tables: [[{name}]]"))
    return []


def values_of(
    table: Mapping[str, Any],
    settings: Mapping[str, Setting],
    required: Mapping[str, str],
    where: str,
    key: str,
    problems: list[Problem],
    instead_of: Callable[[str], str],
) -> dict[str, Any] | None:
    """Return what a table sets; None if something is wrong with it, which is added to the problems.

    Args:
        settings: that it may have, by name.
        required: what to expect of those that it must have.
        key: what problems call the table.
        instead_of: returns what to expect in place of a name that is none.
    """
    values: dict[str, Any] = {}
    wrong = len(problems)
    for name, value in table.items():
        setting = settings.get(name)
        if setting is None:
            problems.append(Problem(where, f"{key}.{name}", "an unknown setting", instead_of(name)))
            continue
        try:
            values[name] = msgspec.convert(value, setting.kind)
        except msgspec.ValidationError:
            problems.append(Problem(where, f"{key}.{name}", shown(value), setting.expected))
    problems.extend(
        Problem(where, f"{key}.{name}", "nothing", expected) for name, expected in required.items() if name not in table
    )
    return values if len(problems) == wrong else None


def settings_of(struct: type[Struct], prefix: str = "") -> Iterator[Setting]:
    """Yield the settings of a struct whose fields are annotated with their meaning, those of its sections in place."""
    for field in msgspec.structs.fields(struct):
        kind, meta = get_args(field.type)
        if field.name in TABLES:
            continue  # they are read, and described, by themselves
        if isinstance(kind, type) and issubclass(kind, Struct):
            yield from settings_of(kind, f"{field.name}.")
        else:
            yield Setting(
                prefix + field.name,
                field.type,
                field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory(),
                meta.description,
                _in_words(kind, meta),
                _unit(field.name),
            )


def _in_words(kind: Any, meta: Meta) -> str:
    if get_origin(kind) in (Union, types.UnionType):
        kind = get_args(kind)[0]
    if get_origin(kind) is Annotated:
        kind = get_args(kind)[0]
    if get_origin(kind) is Literal:
        return "one of " + ", ".join(get_args(kind))
    if get_origin(kind) is tuple:
        return "a list of one or more texts" if meta.min_length else "a list of texts"
    if get_origin(kind) is dict:
        return "a table of texts"
    if kind is bool:
        return "true or false"
    if kind is str:
        if meta.max_length is not None:
            return f"a text of up to {meta.max_length} characters"
        return "a text that is not empty"
    number = "a whole number" if kind is int else "a number"
    return f"{number} from {meta.ge} to {meta.le}"


def _unit(name: str) -> str:
    if "_bytes" in name or name.startswith("bytes_"):
        return "bytes"
    if name.endswith("_ms"):
        return "milliseconds"
    return "seconds" if name.endswith("_s") else ""
