"""The columns of a message as Spark has them, in the order of a row."""

from typing import Any, Final

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

_PROPERTY: Final = StructType([StructField("name", StringType()), StructField("value", StringType())])

# docs/analytics.md says what each of them is. All may be null, although some never are: Spark reads Parquet files so,
# and the log, the files of a batch and those that they are merged to are of one schema.
MESSAGES: Final = StructType([
    StructField("time", TimestampType()),
    StructField("worker", LongType()),
    StructField("incarnation", LongType()),
    StructField("n", LongType()),
    StructField("node", StringType()),
    StructField("topic", StringType()),
    StructField("levels", ArrayType(StringType())),
    StructField("payload", BinaryType()),
    StructField("qos", ByteType()),
    StructField("retain", BooleanType()),
    StructField("publisher", StringType()),
    StructField("will", BooleanType()),
    StructField("expires", TimestampType()),
    StructField("text", BooleanType()),
    StructField("content_type", StringType()),
    StructField("response_topic", StringType()),
    StructField("correlation_data", BinaryType()),
    StructField("user_properties", ArrayType(_PROPERTY)),
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


def nullable(of_type: DataType) -> Any:
    """Return a type whose values may all be null, on every level."""
    match of_type:
        case StructType():
            return StructType([StructField(each.name, nullable(each.dataType)) for each in of_type.fields])
        case ArrayType():
            return ArrayType(nullable(of_type.elementType))
        case MapType():
            return MapType(of_type.keyType, nullable(of_type.valueType))
        case _:
            return of_type
