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

from analytics.lake.fitting import UnfitError, fitter, parse
from analytics.lake.inference import extended, inferred
from analytics.lake.manifest import LakeError, check_table_name
from analytics.source.schema import nullable
from router.matching.topic_names import check_topic_filter

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType, StructType

KINDS: Final = ("json", "text", "number", "raw", "python")
MESSAGES: Final = "messages"
QUARANTINE: Final = "quarantine"
NOTHING: Final = "_nothing"  # stands for the fields of a schema that has none
INFERENCE_ROWS: Final = 1_000  # of each 10,000 or so that Spark gives a task are looked at to find out a schema
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
    """Return the messages of a decoder with `data`, with `reason`, null if it was decoded, and where `data` is a struct
    with `rest`: the JSON of what the schema has no field for.

    Args:
        schema: of `data`.
    """
    from pyspark.sql import functions as f
    from pyspark.sql.types import StructType

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
    assert isinstance(schema, StructType), schema
    return _fitted(chosen, payload, schema)


def _with(frame: DataFrame, data: Column, reason: Column) -> DataFrame:
    return frame.withColumn("data", data).withColumn("reason", reason)


def _fitted(frame: DataFrame, payload: Payload, schema: StructType) -> DataFrame:
    from pyspark.sql import functions as f
    from pyspark.sql.types import StringType, StructField, StructType

    held = nullable(schema) if schema.fields else StructType([StructField(NOTHING, StringType())])
    result = StructType([StructField("data", held)]).add("rest", StringType()).add("reason", StringType())
    decode = _of_arrays(decoder(payload, schema, result), result)
    called = frame.withColumn("_decoded", decode("topic", "payload"))
    parts = {name: f.col(f"_decoded.{name}") for name in ("data", "rest", "reason")}
    return called.withColumns(parts).drop("_decoded")


def _of_arrays(function: Callable[..., Any], result: StructType | str) -> Any:
    """Return a function of Spark's that gets Arrow arrays and returns one."""
    import pyarrow
    from pyspark.sql.pandas.functions import arrow_udf

    # Spark goes by the annotations, which are text in this module.
    function.__annotations__ = dict.fromkeys(function.__annotations__, pyarrow.Array)
    make: Any = arrow_udf
    return make(function, result)


def decoder(payload: Payload, schema: StructType, result: StructType) -> Callable[[Any, Any], Any]:
    """Return what makes an Arrow array of `result` (data, rest, reason) from arrays of topics and payloads.

    Raises LakeError if the schema has a type that no decoder makes.
    """
    import pyarrow

    kind, function = payload.kind, payload.function
    try:
        fit = fitter(schema, of_json=kind == "json")
    except ValueError as error:
        raise LakeError(f"table {payload.table}: {error}") from error
    empty = not schema.fields

    def one(topic: str, content: bytes) -> dict[str, Any]:
        try:
            value = parse(content) if function is None else function(topic, content)
            if not isinstance(value, dict):
                raise UnfitError(f"the function returned {type(value).__name__}")
            if empty:
                raise UnfitError("has no value that a column can have")
            data, rest = fit(value)
        except UnfitError as error:
            return _refused(str(error))
        except (Exception, SystemExit) as error:
            return _refused(f"{type(error).__name__}: {error}")
        return {"data": data, "rest": rest}

    def decode(topics: pyarrow.Array, payloads: pyarrow.Array) -> pyarrow.Array:
        from pyspark.sql.pandas.types import to_arrow_type

        of_type = to_arrow_type(result, timezone="UTC")
        rows = [one(topic.as_py(), content.as_py()) for topic, content in zip(topics, payloads, strict=True)]
        try:
            return pyarrow.array(rows, of_type)
        except (pyarrow.ArrowException, ValueError, TypeError, OverflowError):
            # Whatever it is that Arrow does not take, it is for one message to bear.
            return pyarrow.array([_checked(row, of_type) for row in rows], of_type)

    return decode


def _refused(reason: str) -> dict[str, Any]:
    return {"reason": reason.encode("utf-8", "replace").decode()}


def _checked(row: dict[str, Any], of_type: Any) -> dict[str, Any]:
    import pyarrow

    try:
        pyarrow.array([row], of_type)
    except (pyarrow.ArrowException, ValueError, TypeError, OverflowError) as error:
        return _refused(f"{type(error).__name__}: {error}")
    return row


def found_out(messages: DataFrame, payload: Payload, not_in_names: str) -> StructType:
    """Return what fields the messages of a decoder have. Payloads stay where they are: only schemas come here.

    Args:
        not_in_names: characters that the name of a field cannot have.
    """
    import pyarrow
    from pyspark.sql import functions as f
    from pyspark.sql.types import StructType

    def schemas(payloads: pyarrow.Array) -> pyarrow.Array:
        found = inferred((content.as_py() for content in payloads.slice(0, INFERENCE_ROWS)), not_in_names)
        return pyarrow.array([found.json(), *[None] * (len(payloads) - 1)], pyarrow.string())

    chosen = messages.where(f.col("topic").rlike(filter_pattern(payload.topic_filter)))
    # Else Spark calls it twice: once for the condition.
    find_out = _of_arrays(schemas, "string").asNondeterministic()
    called = chosen.select(find_out("payload").alias("schema"))
    whole = StructType([])
    for row in called.where("schema is not null").collect():
        whole = extended(whole, StructType.fromJson(json.loads(row.schema)))
    return whole
