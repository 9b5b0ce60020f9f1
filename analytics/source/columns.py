"""The columns of a message, of events and of deliveries, as Arrow has them, in the order of a row.

docs/analytics.md says what each of them is.
"""

from typing import Final

import pyarrow as pa

from analytics.source.column_types import array_of

TIMESTAMP: Final = pa.timestamp("us", "UTC")
ID: Final = ("worker", "incarnation", "n")

_PROPERTY: Final = pa.struct([("name", pa.string()), ("value", pa.string())])

# All may be null, although some never are: Spark reads Parquet files so, and the log, the files of a batch and
# those that they are merged to are of one schema.
MESSAGES: Final = pa.schema([
    ("time", TIMESTAMP),
    ("worker", pa.int64()),
    ("incarnation", pa.int64()),
    ("n", pa.int64()),
    ("node", pa.string()),
    ("topic", pa.string()),
    ("levels", array_of(pa.string())),
    ("payload", pa.binary()),
    ("qos", pa.int8()),
    ("retain", pa.bool_()),
    ("publisher", pa.string()),
    ("will", pa.bool_()),
    ("expires", TIMESTAMP),
    ("text", pa.bool_()),
    ("content_type", pa.string()),
    ("response_topic", pa.string()),
    ("correlation_data", pa.binary()),
    ("user_properties", array_of(_PROPERTY)),
])  # fmt: skip

EVENTS: Final = pa.schema([
    pa.field("time", TIMESTAMP, nullable=False),
    pa.field("worker", pa.int64(), nullable=False),
    pa.field("incarnation", pa.int64(), nullable=False),
    pa.field("number", pa.int64(), nullable=False),
    pa.field("kind", pa.string(), nullable=False),
    pa.field("client", pa.string(), nullable=False),
    pa.field("topic_filter", pa.string()),
    pa.field("reason", pa.string()),
    pa.field("expiry_interval_s", pa.int64()),
])  # fmt: skip

DELIVERIES: Final = pa.schema([
    pa.field("time", TIMESTAMP, nullable=False),
    pa.field("worker", pa.int64(), nullable=False),
    pa.field("client", pa.string(), nullable=False),
    pa.field("record", pa.int64(), nullable=False),
    pa.field("qos", pa.int8(), nullable=False),
    pa.field("accepted", TIMESTAMP, nullable=False),
    pa.field("latency_us", pa.int64(), nullable=False),
])  # fmt: skip
