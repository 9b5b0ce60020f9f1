"""The sink "shoal" of Spark: rows become messages, published over MQTT 5.0 at QoS 1, each at least once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSourceStreamWriter, DataSourceWriter, WriterCommitMessage

from analytics.source.mqtt_client import Client, NetworkError, publish_properties

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pyspark.sql import Row
    from pyspark.sql.types import StructType

ROW_PROPERTY: Final = "shoal-row"
# Columns that a row may have, beside topic and payload: name -> types, as Spark calls them.
COLUMNS: Final = {
    "topic": {"string"},
    "payload": {"binary", "string"},
    "qos": {"tinyint", "smallint", "int", "bigint"},
    "retain": {"boolean"},
    "text": {"boolean"},
    "content_type": {"string"},
    "response_topic": {"string"},
    "correlation_data": {"binary"},
    "expiry_s": {"int", "bigint"},
    "user_properties": {"map<string,string>", "array<struct<name:string,value:string>>"},
}
_OPTIONS: Final = {"url", "username", "password", "qos", "rowids"}
_OF_SPARK: Final = {"checkpointlocation", "path", "queryname"}  # those of a stream's writer come here, too


@dataclass(frozen=True, slots=True)
class Target:
    """Where rows go.

    Args:
        qos: of rows that have no column of this name; 0 to 2.
        row_ids: give each message the user property `shoal-row`, the same one when a task is repeated.
    """

    url: str
    username: str | None
    password: str | None
    qos: int
    row_ids: bool


@dataclass
class Published(WriterCommitMessage):
    """How many messages a task has published."""

    messages: int


def parse_target(given: Mapping[str, str], schema: StructType) -> Target:
    """Return what the options of a writer say. Raises ValueError with one sentence."""
    options = {name.lower(): value for name, value in given.items()}
    unknown = sorted(set(options) - _OPTIONS - _OF_SPARK)
    if unknown:
        raise ValueError(
            f"there is no option {unknown[0]!r} of the sink shoal; there are {', '.join(sorted(_OPTIONS))}"
        )
    if "url" not in options:
        raise ValueError("name the broker with the option url, like tcp://127.0.0.1:1883")
    columns = {field.name: field.dataType.simpleString() for field in schema}
    for needed in ("topic", "payload"):
        if needed not in columns:
            raise ValueError(f"rows need the columns topic and payload, and have {', '.join(columns)}")
    for name, of_type in columns.items():
        if name not in COLUMNS:
            raise ValueError(f"there is no place in a message for column {name!r}; there are {', '.join(COLUMNS)}")
        if of_type not in COLUMNS[name]:
            raise ValueError(f"column {name!r} is {of_type}, and can be {' or '.join(sorted(COLUMNS[name]))}")
    qos = options.get("qos", "1")
    if qos not in ("0", "1", "2"):
        raise ValueError(f"qos is 0, 1 or 2, and not {qos!r}")
    row_ids = options.get("rowids", "false").lower()
    if row_ids not in ("true", "false"):
        raise ValueError(f"rowIds is true or false, and not {row_ids!r}")
    return Target(options["url"], options.get("username"), options.get("password"), int(qos), row_ids == "true")


def publish(rows: Iterator[Row], target: Target) -> Published:
    """Publish rows over one connection; returns when all of them are acknowledged. Raises NetworkError."""
    prefix = _task() if target.row_ids else None
    count = 0
    with Client(target.url, username=target.username, password=target.password) as client:
        for row in rows:
            fields = row.asDict()
            topic, payload, qos = fields.pop("topic"), fields.pop("payload"), fields.pop("qos", None)
            if topic is None or payload is None:
                raise NetworkError(f"row {count} has no {'topic' if topic is None else 'payload'}")
            retain = bool(fields.pop("retain", False))
            row_id = f"{prefix}/{count}" if prefix is not None else None
            client.publish(
                topic, payload.encode() if isinstance(payload, str) else bytes(payload),
                target.qos if qos is None else qos, retain, _properties(fields, row_id),
            )  # fmt: skip
            count += 1
        client.flush()
        if client.refused:
            codes = ", ".join(f"{code:#04x}" for code in sorted(set(client.refused)))
            raise NetworkError(f"{target.url} refused {len(client.refused)} of {count} messages: reason code {codes}")
    return Published(count)


def _properties(fields: dict[str, Any], row_id: str | None) -> bytes:
    pairs = fields.get("user_properties") or []
    named = list(pairs.items()) if isinstance(pairs, dict) else [(pair["name"], pair["value"]) for pair in pairs]
    if row_id is not None:
        named.append((ROW_PROPERTY, row_id))
    text = fields.get("text")
    return publish_properties({
        "payload_format_indicator": int(text) if text is not None else None,
        "message_expiry_interval": fields.get("expiry_s"),
        "content_type": fields.get("content_type"),
        "response_topic": fields.get("response_topic"),
        "correlation_data": fields.get("correlation_data"),
        "user_properties": named,
    })  # fmt: skip


def _task() -> str:
    """Return a name of this task's part of the rows that a repeated one has again: query, batch, partition."""
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None, "rows are published in tasks"
    # Those of a stream stay over a restart; a table's job has an id of its own.
    query = context.getLocalProperty("sql.streaming.queryId") or f"job-{context.stageId()}"
    batch = context.getLocalProperty("streaming.sql.batchId") or "0"
    return f"{query}/{batch}/{context.partitionId()}"


class Sink(DataSourceWriter):
    """Publishes a table. A task that fails is repeated, and so is what it had published."""

    def __init__(self, target: Target) -> None:
        self.target = target

    def write(self, iterator: Iterator[Row]) -> WriterCommitMessage:
        """Publish a partition's rows."""
        return publish(iterator, self.target)


class StreamSink(DataSourceStreamWriter):
    """Publishes a stream, batch by batch."""

    def __init__(self, target: Target) -> None:
        self.target = target

    def write(self, iterator: Iterator[Row]) -> WriterCommitMessage:
        """Publish a partition's rows."""
        return publish(iterator, self.target)
