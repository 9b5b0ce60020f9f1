"""The columns of the source as Spark has them."""

from typing import Final

import pyarrow as pa
from pyspark.sql.types import StructType

from analytics.source import columns
from analytics.source.column_types import from_json, json_of, struct_of


def of_arrow(fields: pa.Schema | pa.StructType) -> StructType:
    """Return Spark's type for Arrow's."""
    return StructType.fromJson(json_of(struct_of(fields)))


def to_arrow(schema: StructType) -> pa.StructType:
    """Return Arrow's type for Spark's. Raises ValueError for one that no table here has."""
    return from_json(schema.jsonValue())


MESSAGES: Final = of_arrow(columns.MESSAGES)
EVENTS: Final = of_arrow(columns.EVENTS)
DELIVERIES: Final = of_arrow(columns.DELIVERIES)


def checked(schema: StructType, table: StructType = MESSAGES) -> StructType:
    """Return the schema that a caller asked for, of columns of a table. Raises ValueError for others."""
    known = {field.name: field for field in table}
    wrong = [field.name for field in schema if field.name not in known]
    if wrong:
        raise ValueError(f"there is no column {wrong[0]!r}; there are {', '.join(known)}")
    for field in schema:
        if field.dataType.simpleString() != known[field.name].dataType.simpleString():
            raise ValueError(f"column {field.name!r} is {known[field.name].dataType.simpleString()}")
    return schema
