"""Settings as they describe themselves, and what is wrong with one."""

from __future__ import annotations

import json
import types
from collections.abc import Iterator
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import msgspec
from msgspec import Meta, Struct

ENVIRONMENT_PREFIX = "SHOAL_"
TABLES = ("listener", "authenticator")       # of which there may be any number


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


def settings_of(struct: type[Struct], prefix: str = "") -> Iterator[Setting]:
    """Yield the settings of a struct whose fields are annotated with their meaning, those of its sections in place."""
    for field in msgspec.structs.fields(struct):
        kind, meta = get_args(field.type)
        if field.name in TABLES:
            continue                     # they are read, and described, by themselves
        if isinstance(kind, type) and issubclass(kind, Struct):
            yield from settings_of(kind, f"{field.name}.")
        else:
            yield Setting(
                prefix + field.name,
                field.type,
                field.default,
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
