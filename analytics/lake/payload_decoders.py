"""Payload decoders: what the bytes of messages mean, by topic filter.

Each has a table of its own, with a row for each message that it decoded. What it could not decode is in the table
`quarantine`, with the reason. All messages are in the table `messages`, whatever becomes of them here.
"""

from __future__ import annotations

import importlib
import math
import re
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from analytics.lake.fitting import UnfitError, fitter, parse
from analytics.lake.inference import extended, grown
from analytics.lake.manifest import LakeError, check_table_name
from analytics.lake.wire_formats import AvroFunction, JsonSchema, ProtobufFunction, SparkplugFunction, read_description
from analytics.source.column_types import ddl_of, fields_of, nullable, parse_ddl
from router.matching.topic_names import check_topic_filter, matches

KINDS: Final = ("json", "text", "number", "raw", "python", "avro", "protobuf", "sparkplug")
_OF_FUNCTIONS: Final = ("python", "avro", "protobuf", "sparkplug")
MESSAGES: Final = "messages"
QUARANTINE: Final = "quarantine"
INFERENCE_ROWS: Final = 1_000  # of each 10,000 or so are looked at to find out a schema
INFERENCE_EVERY: Final = 10_000
_FIXED: Final = {"raw": pa.binary(), "text": pa.string(), "number": pa.float64()}
# What a row of a decoded table says of its message, beside `data`.
KEPT: Final = ("time", "worker", "incarnation", "n", "node", "topic", "publisher", "qos", "retain", "date")

# What an entry in a file of decoders has beside table, topic_filter, as and schema.
_OWN_SETTINGS: Final = {
    "python": ("function",), "avro": ("schema_file",), "protobuf": ("descriptors", "message"), "json": ("json_schema",),
}  # fmt: skip
_SPACES: Final = b" \t\r\n\f\v"
_NUMBER: Final = re.compile(rb"[+-]?(?:((?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?)|inf(?:inity)?|nan)", re.IGNORECASE)

# What Arrow says of values that it cannot hold.
NOT_ARROW: Final = (pa.ArrowException, ValueError, TypeError, OverflowError)

Function = Callable[[str, bytes], dict[str, Any] | None]


@dataclass(frozen=True, slots=True)
class Payload:
    """A payload decoder.

    Args:
        table: the name of its table.
        topic_filter: whose messages it decodes.
        kind: one of KINDS.
        schema: of `data`, as DDL (`celsius double, at timestamp`): needed for `python`; for `json` None means that it
            is found out from the messages.
        function: for `python` and the formats that are not text: gets topic and payload, returns the fields as a dict;
            what it raises is the reason why not.
        type: of `data`, where a format knows it and no schema says otherwise.
        check: of `json`: raises UnfitError for an object that is not what is wanted.
    """

    table: str
    topic_filter: str
    kind: str = "json"
    schema: str | None = None
    function: Function | None = None
    type: pa.StructType | None = None
    check: Callable[[dict[str, Any]], None] | None = None

    @property
    def finds_out(self) -> bool:
        """Whether the schema is found out from the messages."""
        return self.kind == "json" and self.schema is None and self.type is None

    def __post_init__(self) -> None:
        check_table_name(self.table)
        wrong = check_topic_filter(self.topic_filter.encode())
        if wrong is not None:
            raise LakeError(f"table {self.table}: topic_filter {self.topic_filter!r}: {wrong}")
        if self.table in (MESSAGES, QUARANTINE):
            raise LakeError(f"{self.table} is not a name for the table of a decoder")
        if self.kind not in KINDS:
            raise LakeError(f"table {self.table}: a decoder is one of {', '.join(KINDS)}, and not {self.kind!r}")
        if (self.kind in _OF_FUNCTIONS) != (self.function is not None):
            raise LakeError(f"table {self.table}: a function belongs to a decoder that is python, and only there")
        if self.kind == "python" and self.schema is None:
            raise LakeError(f"table {self.table}: say with schema what the function returns")
        if self.kind in ("text", "number", "raw") and self.schema is not None:
            raise LakeError(f"table {self.table}: there is no schema where a decoder is {self.kind}")


def load_payloads(path: str) -> list[Payload]:
    """Return the decoders that a TOML file names. Raises LakeError."""
    try:
        content = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise LakeError(f"{path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise LakeError(f"{path} is no TOML: {error}") from error
    found = []
    for entry in content.get("decode", []):
        kind = entry.get("as", "json")
        if kind not in KINDS:
            raise LakeError(
                f"{path}: table {entry.get('table', '?')}: a decoder is one of {', '.join(KINDS)}, and not {kind!r}"
            )
        own = _OWN_SETTINGS.get(kind, ())
        wrong = sorted(set(entry) - {"table", "topic_filter", "as", "schema", *own})
        if wrong:
            known = any(wrong[0] in settings for settings in _OWN_SETTINGS.values())
            what = f"there is no {wrong[0]!r} where a decoder is {kind}" if known else f"there is no {wrong[0]!r}"
            raise LakeError(f"{path}: {what} in [[decode]]")
        if not {"table", "topic_filter"} <= set(entry):
            raise LakeError(f"{path}: table and topic_filter are needed in [[decode]]")
        needed = [name for name in own if name not in entry and kind != "json"]
        if needed:
            raise LakeError(f"{path}: table {entry['table']}: {needed[0]} is needed where a decoder is {kind}")
        function, of_type, check = _format(entry, kind, Path(path).parent)
        found.append(
            Payload(entry["table"], entry["topic_filter"], kind, entry.get("schema"), function, of_type, check)
        )
    if len({payload.table for payload in found}) != len(found):
        raise LakeError(f"{path}: two decoders have the same table")
    return found


def _format(entry: dict[str, str], kind: str, folder: Path) -> tuple[Function | None, Any, Any]:
    """Return function, type of the data, and check of a decoder, by its entry in a file in a folder."""
    if kind == "python":
        return _function(entry["function"]), None, None
    if kind == "avro":
        avro = AvroFunction(folder / entry["schema_file"])
        return avro, avro.type, None
    if kind == "protobuf":
        descriptors = folder / entry["descriptors"]
        protobuf = ProtobufFunction(read_description(descriptors, "the set of descriptors"), entry["message"],
                                    str(descriptors))  # fmt: skip
        return protobuf, protobuf.type, None
    if kind == "sparkplug":
        sparkplug = SparkplugFunction()
        return sparkplug, sparkplug.type, None
    if "json_schema" in entry:
        json_schema = JsonSchema(folder / entry["json_schema"])
        return None, json_schema.type, json_schema
    return None, None, None


def _function(text: str) -> Function:
    module, colon, name = text.partition(":")
    try:
        function: Function = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise LakeError(f"there is no function {text!r}, which is written MODULE:NAME: {error}") from error
    if not colon or not callable(function):
        raise LakeError(f"{text!r} is no function, which is written MODULE:NAME")
    return function


def filter_pattern(topic_filter: str) -> str:
    """Return the regular expression that matches what a topic filter does."""
    parts = []
    levels = topic_filter.split("/")
    for index, level in enumerate(levels):
        separator = "/" if index else ""
        if level == "#":
            parts.append(".*" if not index else "(/.*)?")
        elif level == "+":
            parts.append(f"{separator}[^/]*")
        else:
            parts.append(separator + re.escape(level))
    # A leading wildcard does not reach into $SYS and friends [MQTT-4.7.2-1].
    guard = r"(?!\$)" if levels[0] in ("+", "#") else ""
    # `$` would match before a newline at the end, too.
    return f"(?s)^{guard}{''.join(parts)}(?!.)"


def data_type(payload: Payload, known: pa.DataType | None, found: pa.StructType) -> pa.DataType:
    """Return the type of a decoder's `data`: what its table has, and what is new. Raises LakeError.

    Args:
        known: what the table has; None: there is none yet.
        found: the fields that were found out, where no schema is given.
    """
    wanted = _FIXED.get(payload.kind)
    if wanted is None and payload.schema is not None:
        try:
            wanted = parse_ddl(payload.schema)
        except ValueError as error:
            raise LakeError(f"table {payload.table}: {payload.schema!r} is no schema: {error}") from error
    elif wanted is None:
        wanted = payload.type if payload.type is not None else grown(pa.struct([]), found)
    if known is None:
        return wanted
    if pa.types.is_struct(known) and pa.types.is_struct(wanted):
        if payload.finds_out:
            return grown(known, found)
        _check_additive(payload.table, known, wanted)
        return extended(known, wanted, keep=True)
    if known != wanted:
        raise LakeError(
            f"table {payload.table} has data of type {ddl_of(known)}, and its decoder now makes {ddl_of(wanted)}: use"
            " another table"
        )
    return wanted


def _check_additive(table: str, had: pa.StructType, wanted: pa.StructType) -> None:
    known = {each.name.lower(): each for each in fields_of(had)}
    for each in fields_of(wanted):
        before = known.get(each.name.lower())
        if before is None or before.type == each.type:
            continue
        if pa.types.is_struct(before.type) and pa.types.is_struct(each.type):
            _check_additive(table, before.type, each.type)
            continue
        raise LakeError(
            f"table {table}: {each.name} is {ddl_of(before.type)} there, and cannot become {ddl_of(each.type)}:"
            " a schema can only be added to"
        )


def is_struct(data: pa.DataType) -> bool:
    """Return whether the rows of a decoder have `rest`."""
    return bool(pa.types.is_struct(data))


def check_decoder(payload: Payload, data: pa.DataType) -> None:
    """Raise LakeError if a schema has a type that no decoder makes."""
    if is_struct(data):
        _fitter(payload, data)


def result_type(data: pa.DataType) -> pa.StructType:
    """Return the type of what a decoder makes of a message: data, rest if that is a struct, reason."""
    rest = [pa.field("rest", pa.string())] if is_struct(data) else []
    return pa.struct([pa.field("data", nullable(data)), *rest, pa.field("reason", pa.string())])


def decoder(payload: Payload, data: pa.DataType) -> Callable[[pa.Array, pa.Array], pa.StructArray]:
    """Return what makes an array of result_type() from arrays of topics and payloads.

    Raises LakeError if the schema has a type that no decoder makes.
    """
    if payload.kind == "raw":
        return lambda topics, payloads: _with_reasons(payloads, pa.nulls(len(payloads), pa.string()))
    if payload.kind == "text":
        return _texts
    if payload.kind == "number":
        return _numbers
    return _fitted(payload, data)


def _with_reasons(data: pa.Array, reasons: pa.Array) -> pa.StructArray:
    return pa.StructArray.from_arrays([data, reasons], fields=fields_of(result_type(data.type)))


def _texts(topics: pa.Array, payloads: pa.Array) -> pa.StructArray:
    try:
        return _with_reasons(payloads.cast(pa.string()), pa.nulls(len(payloads), pa.string()))
    except pa.ArrowInvalid:
        pass  # one of them, or more
    found: list[str | None] = []
    reasons: list[str | None] = []
    for content in payloads.to_pylist():
        try:
            found.append(content.decode())
            reasons.append(None)
        except UnicodeDecodeError:
            found.append(None)
            reasons.append("is not UTF-8")
    return _with_reasons(pa.array(found, pa.string()), pa.array(reasons, pa.string()))


def _numbers(topics: pa.Array, payloads: pa.Array) -> pa.StructArray:
    found: list[float | None] = []
    for content in payloads.to_pylist():
        # float() takes more than numbers: 1_000, and digits of other scripts.
        known = _NUMBER.fullmatch(content.strip(_SPACES))
        number = float(known[0]) if known is not None else math.nan
        found.append(number if known is not None and not (math.isinf(number) and known[1]) else None)
    data = pa.array(found, pa.float64())
    return _with_reasons(data, pc.if_else(data.is_null(), "is not a number", pa.scalar(None, pa.string())))


def _fitter(payload: Payload, data: pa.StructType) -> Callable[[Any], tuple[dict[str, Any], str | None]]:
    try:
        return fitter(data, of_json=payload.kind == "json")
    except ValueError as error:
        raise LakeError(f"table {payload.table}: {error}") from error


def _fitted(payload: Payload, data: pa.StructType) -> Callable[[pa.Array, pa.Array], pa.StructArray]:
    fit, function, check, empty = _fitter(payload, data), payload.function, payload.check, not data.num_fields
    of_type = result_type(data)
    of_data = of_type.field("data").type

    def value_of(topic: str, content: bytes) -> dict[str, Any]:
        value = parse(content) if function is None else function(topic, content)
        if not isinstance(value, dict):
            raise UnfitError(f"the function returned {type(value).__name__}")
        if empty:
            raise UnfitError("has no value that a column can have")
        if check is not None:
            check(value)
        return value

    def decode(topics: pa.Array, payloads: pa.Array) -> pa.StructArray:
        rows, rests, reasons = _Column(), _Column(), _Column()
        names = topics.to_pylist() if function is not None else payloads
        for row, (topic, content) in enumerate(zip(names, payloads.to_pylist(), strict=True)):
            try:
                fitted, rest = fit(value_of(topic, content))
                rows.append(fitted)
                if rest is not None:
                    rests.put(row, rest)
            except UnfitError as error:
                rows.append(None)
                reasons.put(row, _reason(str(error)))
            except (Exception, SystemExit) as error:
                rows.append(None)
                reasons.put(row, _reason(f"{type(error).__name__}: {error}"))
        try:
            found = pa.array(rows, of_data)
        except NOT_ARROW:
            # Whatever it is that Arrow does not take, it is for one message to bear.
            for row, fitted in enumerate(rows):
                try:
                    pa.array([fitted], of_data)
                except NOT_ARROW as error:
                    rows[row] = None
                    rests.put(row, None)
                    reasons.put(row, _reason(f"{type(error).__name__}: {error}"))
            found = pa.array(rows, of_data)
        columns = [found, rests.texts(len(rows)), reasons.texts(len(rows))]
        return pa.StructArray.from_arrays(columns, fields=fields_of(of_type))

    return decode


class _Column(list[Any]):
    """Values of a column; of one in which few rows have a value, only as many as there are up to the last of those."""

    def put(self, row: int, value: Any) -> None:
        self.extend([None] * (row + 1 - len(self)))
        self[row] = value

    def texts(self, rows: int) -> pa.Array:
        return pa.concat_arrays([pa.array(self, pa.string()), pa.nulls(rows - len(self), pa.string())])


def _reason(text: str) -> str:
    return text.encode("utf-8", "replace").decode()


def chosen(topics: pa.Array, topic_filter: str) -> pa.Array:
    """Return which topics a filter matches. Cost: one look at each different one."""
    coded = topics.dictionary_encode()
    wanted = topic_filter.encode()
    found = [matches(wanted, name.encode()) for name in coded.dictionary.to_pylist()]
    return pa.array(found, pa.bool_()).take(coded.indices)
