"""Payload decoders in Spark's tasks: what analytics.lake.payload_decoders makes of arrays, of DataFrames."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import functions as f

from analytics.lake.inference import extended, inferred
from analytics.lake.payload_decoders import INFERENCE_ROWS, Payload, decoder, filter_pattern, result_type
from analytics.source.column_types import fields_of, from_json, json_of
from analytics.source.schema import of_arrow

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType


def decoded(messages: DataFrame, payload: Payload, data: pa.DataType) -> DataFrame:
    """Return the messages of a decoder with `data`, with `reason`, null if it was decoded, and where `data` is a struct
    with `rest`: the JSON of what the schema has no field for.

    Args:
        data: the type of `data`.
    """
    chosen = messages.where(f.col("topic").rlike(filter_pattern(payload.topic_filter)))
    if payload.kind == "raw":
        return chosen.withColumn("data", f.col("payload")).withColumn("reason", f.lit(None).cast("string"))
    made = result_type(data)
    result = of_arrow(made)
    if pa.types.is_struct(data) and not data.num_fields:
        # No column can be a struct without fields; every message has a reason then.
        made = pa.struct([each for each in fields_of(made) if each.name != "data"])
        result = of_arrow(made)
    decode = _of_arrays(_only(decoder(payload, data), made), result)
    called = chosen.withColumn("_decoded", decode("topic", "payload"))
    parts = {each.name: f.col(f"_decoded.{each.name}") for each in fields_of(made)}
    if "data" not in parts:
        parts["data"] = f.lit(None).cast("string")
    return called.withColumns(parts).drop("_decoded")


def _only(decode: Callable[[pa.Array, pa.Array], pa.StructArray], made: pa.StructType) -> Callable[..., pa.Array]:
    names = [each.name for each in fields_of(made)]

    def some(topics: pa.Array, payloads: pa.Array) -> pa.Array:
        whole = decode(topics, payloads)
        return pa.StructArray.from_arrays([whole.field(name) for name in names], fields=fields_of(made))

    return some


def _of_arrays(function: Callable[..., Any], result: StructType | str) -> Any:
    """Return a function of Spark's that gets Arrow arrays and returns one."""
    from pyspark.sql.pandas.functions import arrow_udf

    # Spark goes by the annotations, which are text in this module.
    function.__annotations__ = dict.fromkeys(function.__annotations__, pa.Array)
    make: Any = arrow_udf
    return make(function, result)


def found_out(messages: DataFrame, payload: Payload, not_in_names: str) -> pa.StructType:
    """Return what fields the messages of a decoder have. Payloads stay where they are: only schemas come here.

    Args:
        not_in_names: characters that the name of a field cannot have.
    """

    def schemas(payloads: pa.Array) -> pa.Array:
        found = inferred((content.as_py() for content in payloads.slice(0, INFERENCE_ROWS)), not_in_names)
        return pa.array([json.dumps(json_of(found)), *[None] * (len(payloads) - 1)], pa.string())

    chosen = messages.where(f.col("topic").rlike(filter_pattern(payload.topic_filter)))
    # Else Spark calls it twice: once for the condition.
    find_out = _of_arrays(schemas, "string").asNondeterministic()
    called = chosen.select(find_out("payload").alias("schema"))
    whole = pa.struct([])
    for row in called.where("schema is not null").collect():
        whole = extended(whole, from_json(json.loads(row.schema)))
    return whole
