"""The columns of a message as Spark has them, in the order of a row."""

from typing import Final

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

_PROPERTY: Final = StructType(
    [StructField("name", StringType(), nullable=False), StructField("value", StringType(), nullable=False)]
)

# docs/analytics.md says what each of them is.
MESSAGES: Final = StructType([
    StructField("time", TimestampType(), nullable=False),
    StructField("worker", LongType(), nullable=False),
    StructField("incarnation", LongType(), nullable=False),
    StructField("n", LongType(), nullable=False),
    StructField("node", StringType()),
    StructField("topic", StringType(), nullable=False),
    StructField("levels", ArrayType(StringType(), containsNull=False), nullable=False),
    StructField("payload", BinaryType(), nullable=False),
    StructField("qos", ByteType(), nullable=False),
    StructField("retain", BooleanType(), nullable=False),
    StructField("publisher", StringType()),
    StructField("will", BooleanType(), nullable=False),
    StructField("expires", TimestampType()),
    StructField("text", BooleanType()),
    StructField("content_type", StringType()),
    StructField("response_topic", StringType()),
    StructField("correlation_data", BinaryType()),
    StructField("user_properties", ArrayType(_PROPERTY, containsNull=False), nullable=False),
])  # fmt: skip

ID: Final = ("worker", "incarnation", "n")


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
