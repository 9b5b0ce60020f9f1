"""Schemas that are found out from JSON objects: what a table of them can have as fields."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.types import ArrayType, BooleanType, DataType, DoubleType, StringType, StructField, StructType

from analytics.lake.fitting import UnfitError, parse

if TYPE_CHECKING:
    from collections.abc import Iterable

DEPTH_MAX: Final = 16  # levels of fields; what lies deeper has none
FIELDS_MAX: Final = 1_000  # of a table; who uses times or names as keys would have a field for each message
NAME_MAX: Final = 127  # characters


def inferred(payloads: Iterable[bytes], not_in_names: str = "") -> StructType:
    """Return a schema that JSON objects fit: numbers are double, what differs from message to message is text.

    What has no field in it is kept beside: empty objects and arrays, what lies too deep, names that no column can have.

    Args:
        not_in_names: characters that the name of a field cannot have.
    """
    found: DataType | None = None
    for payload in payloads:
        try:
            value = parse(payload)
        except UnfitError:
            continue
        new = _type_of(value, not_in_names, 1)
        wider = _wider(found, new)
        if isinstance(wider, StructType) and _count(wider) > FIELDS_MAX:
            assert isinstance(new, StructType), new
            wider = grown(found if isinstance(found, StructType) else StructType([]), new)
        found = wider
    return found if isinstance(found, StructType) else StructType([])


def _type_of(value: Any, not_in_names: str, depth: int) -> DataType | None:
    match value:
        case None:
            return None
        case bool():
            return BooleanType()
        case int() | float():
            return DoubleType()
        case str():
            return StringType()
        case list():
            held: DataType | None = None
            for each in value if depth < DEPTH_MAX else ():
                held = _wider(held, _type_of(each, not_in_names, depth + 1))
            return ArrayType(held) if held is not None else None
        case _:
            fields: dict[str, StructField] = {}
            for name, each in value.items() if depth <= DEPTH_MAX else ():
                if len(fields) == FIELDS_MAX:
                    break
                of_type = _type_of(each, not_in_names, depth + 1)
                if of_type is not None and _is_name(name, not_in_names):
                    fields.setdefault(name.lower(), StructField(name, of_type))
            return StructType(list(fields.values())) if fields else None


def _is_name(name: str, not_in_names: str) -> bool:
    return 0 < len(name) <= NAME_MAX and name.isprintable() and not any(each in name for each in not_in_names)


def _wider(one: DataType | None, other: DataType | None) -> DataType | None:
    """Return a type that values of both fit: text, if there is nothing better."""
    if one is None or other is None or one == other:
        return one if one is not None else other
    if isinstance(one, StructType) and isinstance(other, StructType):
        return extended(one, other)
    if isinstance(one, ArrayType) and isinstance(other, ArrayType):
        held = _wider(one.elementType, other.elementType)
        return ArrayType(held) if held is not None else one
    return StringType()


def extended(known: StructType, more: StructType, *, keep: bool = False) -> StructType:
    """Return a schema with the fields of two, new ones at the end.

    Args:
        keep: a field that both have keeps the type it has in `known`, but for fields within it that are new.
    """
    names = {name.lower(): name for name in known.fieldNames()}
    fields = {field.name: field for field in known.fields}
    for field in more.fields:
        # Spark does not tell fields by capital letters.
        name = names.setdefault(field.name.lower(), field.name)
        if name not in fields:
            fields[name] = field
            continue
        mine = fields[name].dataType
        if not keep:
            wider = _wider(mine, field.dataType)
            assert wider is not None, field
            fields[name] = StructField(name, wider)
        elif isinstance(mine, StructType) and isinstance(field.dataType, StructType):
            fields[name] = StructField(name, extended(mine, field.dataType, keep=True))
    return StructType(list(fields.values()))


def grown(known: StructType, more: StructType) -> StructType:
    """Return what `known` becomes when fields are found out that are new, as long as they are not too many."""
    whole = extended(known, more, keep=True)
    if _count(whole) <= FIELDS_MAX:
        return whole
    fields = list(known.fields)
    left = FIELDS_MAX - _count(known)
    for field in whole.fields[len(fields) :]:
        left -= _count(field.dataType) + 1
        if left >= 0:
            fields.append(field)
    return StructType(fields)


def _count(of_type: DataType) -> int:
    match of_type:
        case StructType():
            return sum(1 + _count(field.dataType) for field in of_type.fields)
        case ArrayType():
            return _count(of_type.elementType)
        case _:
            return 0
