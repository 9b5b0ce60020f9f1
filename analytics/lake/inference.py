"""Schemas that are found out from JSON objects: what a table of them can have as fields."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from analytics.lake.fitting import UnfitError, parse
from analytics.source.column_types import array_of, fields_of

if TYPE_CHECKING:
    from collections.abc import Iterable

DEPTH_MAX: Final = 16  # levels of fields; what lies deeper has none
FIELDS_MAX: Final = 1_000  # of a table; who uses times or names as keys would have a field for each message
SHAPES_MAX: Final = 256  # of objects that are remembered while a schema is found out
NAME_MAX: Final = 127  # characters


def inferred(payloads: Iterable[bytes], not_in_names: str = "") -> pa.StructType:
    """Return a schema that JSON objects fit: numbers are double, what differs from message to message is text.

    What has no field in it is kept beside: empty objects and arrays, what lies too deep, names that no column can have.

    Args:
        not_in_names: characters that the name of a field cannot have.
    """
    found: pa.DataType | None = None
    seen: set[tuple[Any, ...]] = set()
    for payload in payloads:
        try:
            value = parse(payload)
        except UnfitError:
            continue
        # Most objects are alike; what is not flat has no such shape.
        shape = tuple(value) + tuple(map(type, value.values()))
        if shape in seen:
            continue
        if len(seen) < SHAPES_MAX and not any(isinstance(each, dict | list) for each in value.values()):
            seen.add(shape)
        new = _type_of(value, not_in_names, 1)
        wider = _wider(found, new)
        if _is_struct(wider) and _count(wider) > FIELDS_MAX:
            assert new is not None, wider
            wider = grown(found if _is_struct(found) else pa.struct([]), new)
        found = wider
    return found if _is_struct(found) else pa.struct([])


def _type_of(value: Any, not_in_names: str, depth: int) -> pa.DataType | None:
    match value:
        case None:
            return None
        case bool():
            return pa.bool_()
        case int() | float():
            return pa.float64()
        case str():
            return pa.string()
        case list():
            held: pa.DataType | None = None
            for each in value if depth < DEPTH_MAX else ():
                held = _wider(held, _type_of(each, not_in_names, depth + 1))
            return array_of(held) if held is not None else None
        case _:
            fields: dict[str, pa.Field] = {}
            for name, each in value.items() if depth <= DEPTH_MAX else ():
                if len(fields) == FIELDS_MAX:
                    break
                of_type = _type_of(each, not_in_names, depth + 1)
                if of_type is not None and _is_name(name, not_in_names):
                    fields.setdefault(name.lower(), pa.field(name, of_type))
            return pa.struct(list(fields.values())) if fields else None


def _is_name(name: str, not_in_names: str) -> bool:
    return 0 < len(name) <= NAME_MAX and name.isprintable() and not any(each in name for each in not_in_names)


def _is_struct(of_type: pa.DataType | None) -> bool:
    return of_type is not None and bool(pa.types.is_struct(of_type))


def _wider(one: pa.DataType | None, other: pa.DataType | None) -> pa.DataType | None:
    """Return a type that values of both fit: text, if there is nothing better."""
    if one is None or other is None or one == other:
        return one if one is not None else other
    if _is_struct(one) and _is_struct(other):
        return extended(one, other)
    if pa.types.is_list(one) and pa.types.is_list(other):
        held = _wider(one.value_type, other.value_type)
        return array_of(held) if held is not None else one
    return pa.string()


def extended(known: pa.StructType, more: pa.StructType, *, keep: bool = False) -> pa.StructType:
    """Return a schema with the fields of two, new ones at the end.

    Args:
        keep: a field that both have keeps the type it has in `known`, but for fields within it that are new.
    """
    fields = {field.name: field for field in fields_of(known)}
    names = {name.lower(): name for name in fields}
    for field in fields_of(more):
        # Spark does not tell fields by capital letters.
        name = names.setdefault(field.name.lower(), field.name)
        if name not in fields:
            fields[name] = field
            continue
        mine = fields[name].type
        if not keep:
            wider = _wider(mine, field.type)
            assert wider is not None, field
            fields[name] = pa.field(name, wider)
        elif _is_struct(mine) and _is_struct(field.type):
            fields[name] = pa.field(name, extended(mine, field.type, keep=True))
    return pa.struct(list(fields.values()))


def grown(known: pa.StructType, more: pa.StructType) -> pa.StructType:
    """Return what `known` becomes when fields are found out that are new, as long as they are not too many."""
    whole = extended(known, more, keep=True)
    if _count(whole) <= FIELDS_MAX:
        return whole
    fields = fields_of(known)
    left = FIELDS_MAX - _count(known)
    for field in fields_of(whole)[len(fields) :]:
        left -= _count(field.type) + 1
        if left >= 0:
            fields.append(field)
    return pa.struct(fields)


def _count(of_type: pa.DataType) -> int:
    if pa.types.is_struct(of_type):
        return sum(1 + _count(field.type) for field in fields_of(of_type))
    return _count(of_type.value_type) if pa.types.is_list(of_type) else 0
