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

import pyarrow as pa

from analytics.source.column_types import ddl_of, fields_of

try:
    import msgspec
except ImportError:  # in a task on a cluster that has no more than PySpark
    msgspec = None  # type: ignore[assignment,unused-ignore]

DEPTH_MAX: Final = 64  # levels of a JSON object
SHOWN: Final = 40  # characters of a value that a reason shows
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
_FLOAT_MAX: Final = 3.4028234663852886e38
_KINDS: Final = {dict: "an object", list: "an array", str: "text", bool: "true or false", int: "a number",
                 float: "a number", type(None): "null"}  # fmt: skip

# A value that fits, and what of it has no field: None if there is nothing.
Fitted = tuple[Any, Any]
Fit = Callable[[Any], Fitted]


class UnfitError(Exception):
    """Why a payload is not in the table: words that go on from `the payload`, or from the name of a field."""


def parse(payload: bytes) -> dict[str, Any]:
    """Return the JSON object that a payload is, all of it. Raises UnfitError."""
    found = _parse_plain(payload) if msgspec is not None else None
    return found if found is not None else _parse_exactly(payload)


def _parse_plain(payload: bytes) -> dict[str, Any] | None:
    """Return the object of JSON that has nothing unusual; None: look at it exactly. Three times as fast as that."""
    try:
        found = msgspec.json.decode(payload)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None
    if type(found) is not dict or b"\\" in payload:
        return None
    # Without escapes, each text and each key has two quotation marks: if there are more, a key was there twice.
    quoted, held = len(found), None
    for each in found.values():
        of_type = type(each)
        if of_type is str:
            quoted += 1
        elif of_type is dict or of_type is list:
            held = [each] if held is None else [*held, each]
    if held is not None:
        counted = _quoted(held)
        if counted is None:
            return None
        quoted += counted
    return found if payload.count(b'"') == 2 * quoted else None


def _quoted(level: list[Any]) -> int | None:
    """Return how many texts and keys there are in objects and arrays; None if they lie too deep."""
    count = 0
    for _ in range(DEPTH_MAX - 1):
        deeper: list[Any] = []
        for each in level:
            values = each
            if type(each) is dict:
                count += len(each)
                values = each.values()
            for value in values:
                of_type = type(value)
                if of_type is str:
                    count += 1
                elif of_type is dict or of_type is list:
                    deeper.append(value)
        if not deeper:
            return count
        level = deeper
    return None


def _parse_exactly(payload: bytes) -> dict[str, Any]:
    """Return the JSON object that a payload is. Raises UnfitError with what is wrong with it."""
    try:
        text = payload.decode()
    except UnicodeDecodeError:
        raise UnfitError("is not UTF-8") from None
    try:
        found = json.loads(text, object_pairs_hook=_object, parse_float=_number)
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


def _number(text: str) -> float:
    found = float(text)
    if math.isinf(found):
        raise UnfitError(f"has the number {text[:SHOWN]}, which no double can be")
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


def fitter(schema: pa.StructType, *, of_json: bool) -> Callable[[Any], tuple[dict[str, Any], str | None]]:
    """Return what makes values of a schema: (fields, the JSON text of what has no field, or None).

    Args:
        schema: of `data`.
        of_json: values come from JSON, where a time is text; else from Python.

    The one that is returned raises UnfitError; this raises ValueError for a type that it cannot make.
    """
    return _struct(schema, "", of_json, whole=True)


def _json_text(rest: Any) -> str:
    try:
        text = json.dumps(rest, ensure_ascii=False, default=_text)
        return text if text.isascii() else text.encode().decode()  # half of a surrogate pair is a ValueError, too
    except (TypeError, ValueError, RecursionError) as error:
        raise UnfitError(f"has what is no JSON: {error}") from None


def _text(value: Any) -> str:
    return value.hex() if isinstance(value, bytes | bytearray | memoryview) else str(value)


def _not(what: str, value: Any, of_type: str) -> UnfitError:
    shown = repr(value)
    shown = shown if len(shown) <= SHOWN else f"{shown[:SHOWN]}..."
    return UnfitError(f"{what or 'the payload'} is {shown}, and no {of_type}")


def _fit(of_type: pa.DataType, what: str, of_json: bool) -> Fit:
    if pa.types.is_struct(of_type):
        return _struct(of_type, what, of_json)
    if pa.types.is_list(of_type):
        return _array(of_type, what, of_json)
    if pa.types.is_map(of_type):
        return _map(of_type, what, of_json)
    convert, name = _conversion(of_type, what, of_json), ddl_of(of_type)

    def fit(value: Any) -> Fitted:
        try:
            return convert(value), None
        except (ValueError, OverflowError, ArithmeticError):
            raise _not(what, value, name) from None

    return fit


def _is_nested(of_type: pa.DataType) -> bool:
    return bool(pa.types.is_nested(of_type))


def _struct(schema: pa.StructType, what: str, of_json: bool, *, whole: bool = False) -> Fit:
    prefix = f"{what}." if what else ""
    fields = fields_of(schema)
    # What makes a value, with the class of those that are good as they are; and what may have something beside it.
    leaves = {
        each.name: (_AS_THEY_ARE.get(each.type) if of_json else None,
                    _conversion(each.type, prefix + each.name, of_json))
        for each in fields if not _is_nested(each.type)
    }  # fmt: skip
    nested = {each.name: _fit(each.type, prefix + each.name, of_json) for each in fields if _is_nested(each.type)}
    types = {each.name: each.type for each in fields}
    # Spark does not tell columns by capital letters.
    by_lower = {name.lower(): name for name in types}
    needed = [each.name for each in fields if not each.nullable]

    def fit(value: Any) -> Fitted:
        if not isinstance(value, dict):
            raise _not(what, value, "object")
        data: dict[str, Any] = {}
        rest: dict[str, Any] | None = None
        for key, each in value.items():
            leaf = leaves.get(key)
            if leaf is not None and type(each) is leaf[0]:
                data[key] = each
                continue
            name = key
            if leaf is None and key not in nested:
                if not isinstance(key, str):
                    raise _not(f"a key of {what or 'the payload'}", key, "text")
                name = by_lower.get(key.lower(), "")
                if name not in types or name in value:
                    if name in types:
                        raise UnfitError(f"{what or 'the payload'} has keys that differ in case only: {name}, {key}")
                    if each is not None:
                        rest = rest if rest is not None else {}
                        rest[key] = each
                    continue
                if name in data:
                    raise UnfitError(f"{what or 'the payload'} has keys that differ in case only, as {key}")
                leaf = leaves.get(name)
            if each is None:
                continue
            if leaf is not None:
                try:
                    data[name] = leaf[1](each)
                except (ValueError, OverflowError, ArithmeticError):
                    raise _not(prefix + name, each, ddl_of(types[name])) from None
                continue
            data[name], more = nested[name](each)
            if more is not None:
                rest = rest if rest is not None else {}
                rest[key] = more
        for name in needed:
            if name not in data:
                raise UnfitError(f"{prefix}{name} is missing")
        return data, _json_text(rest) if whole and rest is not None else rest

    return fit


def _array(of_type: pa.ListType, what: str, of_json: bool) -> Fit:
    held = of_type.value_field
    fits = _fit(held.type, f"{what}[]", of_json)

    def fit(value: Any) -> Fitted:
        if not isinstance(value, list | tuple):
            raise _not(what, value, "array")
        data, rest = [], []
        for each in value:
            if each is None:
                if not held.nullable:
                    raise _not(f"{what}[]", each, ddl_of(held.type))
                made, more = None, None
            else:
                made, more = fits(each)
            data.append(made)
            rest.append(more)
        return data, rest if any(each is not None for each in rest) else None

    return fit


def _map(of_type: pa.MapType, what: str, of_json: bool) -> Fit:
    if not pa.types.is_string(of_type.key_type):
        raise ValueError(f"{what} is {ddl_of(of_type)}: the keys of a map are string")
    fits = _fit(of_type.item_type, f"{what}{{}}", of_json)

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


def _conversion(of_type: pa.DataType, what: str, of_json: bool) -> Callable[[Any], Any]:
    """Return what makes values of a type that holds no others; it raises ValueError and the like."""
    if pa.types.is_decimal(of_type):
        step, most = Decimal(1).scaleb(-of_type.scale), Decimal(10) ** (of_type.precision - of_type.scale)
        return lambda value: _decimal(value, step, most)
    if pa.types.is_signed_integer(of_type):
        limit = 1 << (of_type.bit_width - 1)
        return lambda value: _integer(value, limit)
    if of_type not in _OF_JSON:
        raise ValueError(f"{what} is {ddl_of(of_type)}, which a decoder does not make")
    return (_OF_JSON if of_json else _OF_PYTHON)[of_type]


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
    since = (value if value.tzinfo is not None else value.replace(tzinfo=UTC)) - _EPOCH
    return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds


def _timestamp_of_json(value: Any) -> int:
    if type(value) is str:
        return _timestamp(datetime.fromisoformat(value))
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise ValueError
    return timedelta(seconds=value) // _MICROSECOND  # since 1970, as Spark reads a number


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


# Of JSON, where no text has half a character in it: parse() has seen to that.
_AS_THEY_ARE: Final[dict[pa.DataType, type]] = {pa.float64(): float, pa.bool_(): bool, pa.string(): str}
_ALIKE: Final[dict[pa.DataType, Callable[[Any], Any]]] = {
    pa.float64(): _double, pa.float32(): _float, pa.bool_(): _boolean,
}  # fmt: skip
_OF_JSON: Final = {
    **_ALIKE, pa.string(): _string_of_json, pa.binary(): _binary_of_json, pa.date32(): _date_of_json,
    pa.timestamp("us", "UTC"): _timestamp_of_json, pa.timestamp("us"): _local_time_of_json,
}  # fmt: skip
_OF_PYTHON: Final = {
    **_ALIKE, pa.string(): _string, pa.binary(): _binary, pa.date32(): _date, pa.timestamp("us", "UTC"): _timestamp,
    pa.timestamp("us"): _local_time,
}  # fmt: skip
