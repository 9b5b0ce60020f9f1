"""What a payload says, made to fit the schema of a table: each value is kept, or there is a reason why not.

A value that the schema has no field for is kept beside, as JSON. Nothing is rounded away, cut off or made null.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from decimal import ROUND_HALF_UP, Decimal, InvalidOperation
from typing import Any, Final

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

DEPTH_MAX: Final = 64  # levels of a JSON object
SHOWN: Final = 40  # characters of a value that a reason shows
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
_FLOAT_MAX: Final = 3.4028234663852886e38
_BITS: Final[dict[type[DataType], int]] = {ByteType: 8, ShortType: 16, IntegerType: 32, LongType: 64}
_KINDS: Final = {dict: "an object", list: "an array", str: "text", bool: "true or false", int: "a number",
                 float: "a number", type(None): "null"}  # fmt: skip

# A value that fits, and what of it has no field: None if there is nothing.
Fitted = tuple[Any, Any]
Fit = Callable[[Any], Fitted]


class UnfitError(Exception):
    """Why a payload is not in the table: words that go on from `the payload`, or from the name of a field."""


def parse(payload: bytes) -> dict[str, Any]:
    """Return the JSON object that a payload is, all of it. Raises UnfitError."""
    try:
        text = payload.decode()
    except UnicodeDecodeError:
        raise UnfitError("is not UTF-8") from None
    try:
        found = json.loads(text, object_pairs_hook=_object)
    except RecursionError:
        raise UnfitError(f"is nested more than {DEPTH_MAX} levels deep") from None
    except ValueError as error:
        raise UnfitError(f"is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise UnfitError(f"is no JSON object, but {_KINDS[type(found)]}")
    # Only what has many brackets can be deep, and only what is escaped can be half a character.
    if text.count("[") + text.count("{") > DEPTH_MAX and _depth(found) > DEPTH_MAX:
        raise UnfitError(f"is nested more than {DEPTH_MAX} levels deep")
    if "\\u" in text:
        try:
            json.dumps(found, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            raise UnfitError("has half of a surrogate pair, which is no character") from None
    return found


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        names = [name for name, _ in pairs]
        raise UnfitError(f"has the key {next(name for name in names if names.count(name) > 1)!r} twice")
    return made


def _depth(value: Any) -> int:
    level, depth = [value], 0
    while level:
        depth += 1
        level = [
            held for each in level for held in (each.values() if isinstance(each, dict) else each)
            if isinstance(held, dict | list)
        ]  # fmt: skip
    return depth


def fitter(schema: StructType, *, of_json: bool) -> Callable[[Any], tuple[dict[str, Any], str | None]]:
    """Return what makes values of a schema: (fields, the JSON text of what has no field, or None).

    Args:
        schema: of `data`.
        of_json: values come from JSON, where a time is text; else from Python.

    The one that is returned raises UnfitError; this raises ValueError for a type that it cannot make.
    """
    fit = _struct(schema, "", of_json)

    def fitted(value: Any) -> tuple[dict[str, Any], str | None]:
        data, rest = fit(value)
        if rest is None:
            return data, None
        try:
            return data, json.dumps(rest, ensure_ascii=False, default=_text)
        except (TypeError, ValueError, RecursionError) as error:
            raise UnfitError(f"has what is no JSON: {error}") from None

    return fitted


def _text(value: Any) -> str:
    return value.hex() if isinstance(value, bytes | bytearray | memoryview) else str(value)


def _not(what: str, value: Any, of_type: str) -> UnfitError:
    shown = repr(value)
    shown = shown if len(shown) <= SHOWN else f"{shown[:SHOWN]}..."
    return UnfitError(f"{what or 'the payload'} is {shown}, and no {of_type}")


def _fit(of_type: DataType, what: str, of_json: bool) -> Fit:
    match of_type:
        case StructType():
            return _struct(of_type, what, of_json)
        case ArrayType():
            return _array(of_type, what, of_json)
        case MapType():
            return _map(of_type, what, of_json)
        case _:
            return _leaf(of_type, what, of_json)


def _struct(schema: StructType, what: str, of_json: bool) -> Fit:
    prefix = f"{what}." if what else ""
    fits = {field.name: _fit(field.dataType, prefix + field.name, of_json) for field in schema.fields}
    # Spark does not tell columns by capital letters.
    by_lower = {name.lower(): name for name in fits}
    needed = [field.name for field in schema.fields if not field.nullable]

    def fit(value: Any) -> Fitted:
        if not isinstance(value, dict):
            raise _not(what, value, "object")
        data: dict[str, Any] = {}
        rest: dict[str, Any] | None = None
        for key, each in value.items():
            name = key
            found = fits.get(key)
            if found is None:
                if not isinstance(key, str):
                    raise _not(f"a key of {what or 'the payload'}", key, "text")
                name = by_lower.get(key.lower(), "")
                found = fits.get(name)
                if found is None or name in value:
                    if found is not None:
                        raise UnfitError(f"{what or 'the payload'} has keys that differ in case only: {name}, {key}")
                    if each is not None:
                        rest = rest if rest is not None else {}
                        rest[key] = each
                    continue
                if name in data:
                    raise UnfitError(f"{what or 'the payload'} has keys that differ in case only, as {key}")
            if each is None:
                continue
            data[name], more = found(each)
            if more is not None:
                rest = rest if rest is not None else {}
                rest[key] = more
        for name in needed:
            if name not in data:
                raise UnfitError(f"{prefix}{name} is missing")
        return data, rest

    return fit


def _array(of_type: ArrayType, what: str, of_json: bool) -> Fit:
    fits = _fit(of_type.elementType, f"{what}[]", of_json)
    nullable = of_type.containsNull

    def fit(value: Any) -> Fitted:
        if not isinstance(value, list | tuple):
            raise _not(what, value, "array")
        data, rest = [], []
        for each in value:
            if each is None:
                if not nullable:
                    raise _not(f"{what}[]", each, of_type.elementType.simpleString())
                made, more = None, None
            else:
                made, more = fits(each)
            data.append(made)
            rest.append(more)
        return data, rest if any(each is not None for each in rest) else None

    return fit


def _map(of_type: MapType, what: str, of_json: bool) -> Fit:
    if not isinstance(of_type.keyType, StringType):
        raise ValueError(f"{what} is {of_type.simpleString()}: the keys of a map are string")
    fits = _fit(of_type.valueType, f"{what}{{}}", of_json)

    def fit(value: Any) -> Fitted:
        if not isinstance(value, dict):
            raise _not(what, value, "object")
        data, rest = [], {}
        for key, each in value.items():
            if not isinstance(key, str):
                raise _not(f"a key of {what}", key, "text")
            made, more = fits(each) if each is not None else (None, None)
            data.append((key, made))
            if more is not None:
                rest[key] = more
        return data, rest or None

    return fit


def _leaf(of_type: DataType, what: str, of_json: bool) -> Fit:
    name = of_type.simpleString()
    convert: Callable[[Any], Any]
    match of_type:
        case DoubleType():
            convert = _double
        case FloatType():
            convert = _float
        case ByteType() | ShortType() | IntegerType() | LongType():
            limit = 1 << (_BITS[type(of_type)] - 1)

            def convert(value: Any) -> Any:
                return _integer(value, limit)

        case BooleanType():
            convert = _boolean
        case StringType():
            convert = _string_of_json if of_json else _string
        case TimestampType():
            convert = _timestamp_of_json if of_json else _timestamp
        case TimestampNTZType():
            convert = _local_time_of_json if of_json else _local_time
        case DateType():
            convert = _date_of_json if of_json else _date
        case BinaryType():
            convert = _binary_of_json if of_json else _binary
        case DecimalType():
            step, most = Decimal(1).scaleb(-of_type.scale), Decimal(10) ** (of_type.precision - of_type.scale)

            def convert(value: Any) -> Any:
                return _decimal(value, step, most)

        case _:
            raise ValueError(f"{what} is {name}, which a decoder does not make")

    def fit(value: Any) -> Fitted:
        try:
            return convert(value), None
        except (ValueError, OverflowError, ArithmeticError):
            raise _not(what, value, name) from None

    return fit


def _double(value: Any) -> float:
    if type(value) is float:
        return value
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise ValueError
    return float(value)


def _float(value: Any) -> float:
    found = _double(value)
    if math.isfinite(found) and abs(found) > _FLOAT_MAX:
        raise ValueError
    return found


def _integer(value: Any, limit: int) -> int:
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool) or not -limit <= value < limit:
        raise ValueError
    return value


def _boolean(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError
    return value


def _string(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError
    if not value.isascii():
        value.encode()  # half of a surrogate pair is a ValueError, too
    return value


def _string_of_json(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _timestamp(value: Any) -> int:
    """Return µs since 1970; what has no time zone is UTC."""
    if not isinstance(value, datetime):
        raise ValueError
    return ((value if value.tzinfo is not None else value.replace(tzinfo=UTC)) - _EPOCH) // _MICROSECOND


def _timestamp_of_json(value: Any) -> int:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return timedelta(seconds=value) // _MICROSECOND  # since 1970, as Spark reads a number
    if not isinstance(value, str):
        raise ValueError
    return _timestamp(datetime.fromisoformat(value))


def _local_time(value: Any) -> datetime:
    if not isinstance(value, datetime) or value.tzinfo is not None:
        raise ValueError
    return value


def _local_time_of_json(value: Any) -> datetime:
    if not isinstance(value, str):
        raise ValueError
    return _local_time(datetime.fromisoformat(value))


def _date(value: Any) -> date:
    if not isinstance(value, date) or isinstance(value, datetime):
        raise ValueError
    return value


def _date_of_json(value: Any) -> date:
    if not isinstance(value, str):
        raise ValueError
    return date.fromisoformat(value)


def _binary(value: Any) -> bytes:
    if not isinstance(value, bytes | bytearray | memoryview):
        raise ValueError
    return bytes(value)


def _binary_of_json(value: Any) -> bytes:
    if not isinstance(value, str):
        raise ValueError
    try:
        return base64.b64decode(value, validate=True)
    except binascii.Error:
        raise ValueError from None


def _decimal(value: Any, step: Decimal, most: Decimal) -> Decimal:
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
        raise ValueError
    try:
        found = Decimal(repr(value) if isinstance(value, float) else value).quantize(step, ROUND_HALF_UP)
    except InvalidOperation:
        raise ValueError from None
    if abs(found) >= most:
        raise ValueError
    return found
