"""Payload decoders: what the bytes of messages mean, by topic filter.

Each has a table of its own, with a row for each message that it decoded. What it could not decode is in the table
`quarantine`, with the reason. All messages are in the table `messages`, whatever becomes of them here.
"""

from __future__ import annotations

import importlib
import json
import re
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from router.topics import check_topic_filter

from analytics.state import LakeError, check_table_name

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType, StructType

KINDS: Final = ("json", "text", "number", "raw", "python")
MESSAGES: Final = "messages"
QUARANTINE: Final = "quarantine"
CORRUPT: Final = "_not_decoded"
# What a row of a decoded table says of its message, beside `data`.
KEPT: Final = ("time", "worker", "incarnation", "n", "node", "topic", "publisher", "qos", "retain", "date")

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
        function: for `python`: gets topic and payload, returns the fields as a dict; what it raises is the reason why
            not.
    """

    table: str
    topic_filter: str
    kind: str = "json"
    schema: str | None = None
    function: Function | None = None

    def __post_init__(self) -> None:
        check_table_name(self.table)
        wrong = check_topic_filter(self.topic_filter.encode())
        if wrong is not None:
            raise LakeError(f"table {self.table}: topic_filter {self.topic_filter!r}: {wrong}")
        if self.table in (MESSAGES, QUARANTINE):
            raise LakeError(f"{self.table} is not a name for the table of a decoder")
        if self.kind not in KINDS:
            raise LakeError(f"table {self.table}: a decoder is one of {', '.join(KINDS)}, and not {self.kind!r}")
        if (self.kind == "python") != (self.function is not None):
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
    known = {"table", "topic_filter", "as", "schema", "function"}
    found = []
    for entry in content.get("decode", []):
        wrong = sorted(set(entry) - known)
        if wrong or not {"table", "topic_filter"} <= set(entry):
            what = f"there is no {wrong[0]!r}" if wrong else "table and topic_filter are needed"
            raise LakeError(f"{path}: {what} in [[decode]]")
        function = _function(entry["function"]) if "function" in entry else None
        found.append(
            Payload(entry["table"], entry["topic_filter"], entry.get("as", "json"), entry.get("schema"), function)
        )
    if len({payload.table for payload in found}) != len(found):
        raise LakeError(f"{path}: two decoders have the same table")
    return found


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


def decoded(messages: DataFrame, payload: Payload, schema: DataType) -> DataFrame:
    """Return the messages of a decoder with two more columns: `data`, and `reason`, null if it was decoded.

    Args:
        schema: of `data`.
    """
    from pyspark.sql import functions as f

    chosen = messages.where(f.col("topic").rlike(filter_pattern(payload.topic_filter)))
    text = f.col("payload").cast("string")
    is_text = f.is_valid_utf8(text)
    if payload.kind == "raw":
        return chosen.withColumn("data", f.col("payload")).withColumn("reason", f.lit(None).cast("string"))
    if payload.kind == "text":
        return _with(chosen, f.when(is_text, text), f.when(~is_text, f.lit("is not UTF-8")))
    if payload.kind == "number":
        number = f.when(is_text, text.try_cast("double"))
        return _with(chosen, number, f.when(number.isNull(), f.lit("is not a number")))
    if payload.kind == "python":
        assert payload.function is not None, payload
        return _by_function(chosen, payload.function, schema)
    from pyspark.sql.types import StringType, StructType

    assert isinstance(schema, StructType), schema
    with_corrupt = StructType([*schema.fields]).add(CORRUPT, StringType())
    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": CORRUPT}
    parsed = chosen.withColumn("_parsed", f.when(is_text, f.from_json(text, with_corrupt, options)))
    reason = (
        f.when(f.col("_parsed").isNull(), f.when(is_text, f.lit("is not JSON")).otherwise(f.lit("is not UTF-8")))
        .when(f.col(f"_parsed.{CORRUPT}").isNotNull(), f.lit("is no JSON object, or does not fit the schema"))
    )  # fmt: skip
    fields = [f.col(f"_parsed.`{name}`").alias(name) for name in schema.fieldNames()]
    return _with(parsed, f.struct(*fields) if fields else f.lit(None), reason).drop("_parsed")


def _with(frame: DataFrame, data: Column, reason: Column) -> DataFrame:
    return frame.withColumn("data", data).withColumn("reason", reason)


def _by_function(frame: DataFrame, function: Function, schema: DataType) -> DataFrame:
    from pyspark.sql import functions as f
    from pyspark.sql.types import StringType, StructField, StructType

    result = StructType([StructField("data", schema), StructField("reason", StringType())])

    def call(topic: str, payload: bytearray) -> tuple[Any, str | None]:
        try:
            found = function(topic, bytes(payload))
        except Exception as error:
            return None, f"{type(error).__name__}: {error}"
        return (found, None) if isinstance(found, dict) else (None, f"the function returned {type(found).__name__}")

    called = frame.withColumn("_called", f.udf(call, result, useArrow=False)("topic", "payload"))
    return _with(called, f.col("_called.data"), f.col("_called.reason")).drop("_called")


# Schemas that are found out -----------------------------------------------------------------------------------------


def inferred(payloads: list[bytes]) -> StructType:
    """Return a schema that JSON objects fit: numbers are double, what differs from message to message is text."""
    from pyspark.sql.types import StructType

    found: DataType | None = None
    for payload in payloads:
        try:
            value = json.loads(payload)
        except ValueError:
            continue
        if isinstance(value, dict):
            found = _wider(found, _type_of(value))
    return found if isinstance(found, StructType) else StructType([])


def _type_of(value: Any) -> DataType | None:
    from pyspark.sql.types import ArrayType, BooleanType, DoubleType, StringType, StructField, StructType

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
            for each in value:
                held = _wider(held, _type_of(each))
            return ArrayType(held) if held is not None else None
        case _:
            fields = [(name, _type_of(each)) for name, each in value.items()]
            return StructType([StructField(name, of_type) for name, of_type in fields if of_type is not None])


def _wider(one: DataType | None, other: DataType | None) -> DataType | None:
    """Return a type that values of both fit: text, if there is nothing better."""
    from pyspark.sql.types import ArrayType, StringType, StructType

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
    from pyspark.sql.types import StructField, StructType

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
