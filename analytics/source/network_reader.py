"""The source "shoal" over the network: what a running broker has stored, by `$replay`, to a client that may subscribe.

A place in the history is a position of the broker's, and what follows it is always the same messages in the same order:
so a micro-batch, which is so many messages behind a position, can be read again.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import LongType, StringType, StructField, StructType, TimestampType

from analytics.source.mqtt_client import Client, NetworkError, Received
from analytics.source.options import Options
from analytics.source.schema import MESSAGES
from router.log.record_scan import TIME_MIN
from router.log.replay_position import decode_position, encode_position, format_time

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

IDLE_S: Final = 1.0  # with nothing for so long, a replay has caught up
LOST_S: Final = 30.0  # with nothing for so long, what is still missing has expired
NEWEST_S: Final = 2.0
ACKNOWLEDGE_EVERY: Final = 1_000
RECEIVE_MAXIMUM: Final = 10_000
POSITION: Final = "shoal-position"
GAP: Final = "shoal-replay-gap"
TIME: Final = "shoal-time"

# As those of a folder, where a message that comes over the network has them.
NETWORK: Final = StructType([
    StructField("position", StringType(), nullable=False),
    StructField("received", TimestampType(), nullable=False),
    *(MESSAGES[name] for name in ("topic", "levels", "payload", "qos", "retain", "text", "content_type",
                                  "response_topic", "correlation_data")),
    StructField("expiry_s", LongType()),
    MESSAGES["user_properties"],
])  # fmt: skip

Offset = dict[str, Any]
Numbers = dict[str, int]  # worker -> the number of the last record of its log that has been read


@dataclass(frozen=True, slots=True)
class Between(InputPartition):
    """What one task reads: messages behind a position.

    Args:
        end: none that surely comes behind this position; None: there is no such bound.
        count: so many; None: until `end` is reached, or nothing comes for a while.
    """

    start: Numbers
    end: Numbers | None
    count: int | None = None


class Replay:
    """A replay from a position on, over a connection of its own.

    Args:
        place: begin there instead, as a replay is told it.

    Raises NetworkError.
    """

    def __init__(self, options: Options, start: Numbers, place: str = "") -> None:
        self.numbers = dict(start)
        self._place = place
        self._options = options
        self._client = Client(
            options.url, client_identifier=options.client_identifier, username=options.username,
            password=options.password, receive_maximum=RECEIVE_MAXIMUM,
        )  # fmt: skip
        topic_filter = (options.topic_filter or b"#").decode()
        try:
            self._client.subscribe(f"$replay/{self._start()}/{topic_filter}")
        except NetworkError:
            self._client.close()
            raise

    def _start(self) -> str:
        if self._place:
            return self._place
        if self.numbers:
            return encode_position({int(worker): number for worker, number in self.numbers.items()})
        if self._options.since_us == TIME_MIN:
            return "1970-01-01T00:00:00Z"
        return format_time(self._options.since_us)

    def close(self) -> None:
        """End the connection."""
        self._client.close()

    def messages(self, idle_s: float) -> Iterator[tuple[Received, Numbers]]:
        """Yield messages with the numbers by which each of them moves on, until none has come for so long."""
        unacknowledged: list[Received] = []
        for message in self._client.messages(idle_s):
            unacknowledged.append(message)
            if len(unacknowledged) >= ACKNOWLEDGE_EVERY:
                self._client.acknowledge(unacknowledged)
                unacknowledged.clear()
            moved = self._moved(message)
            self.numbers.update(moved)
            yield message, moved
        self._client.acknowledge(unacknowledged)

    def _moved(self, message: Received) -> Numbers:
        named = dict(message.user_properties[:2])  # the broker's stand first
        if self._options.fail_on_loss and GAP in named and self.numbers:
            raise NetworkError(
                f"{named[GAP]} records behind {self._start()} were removed from the log of {self._options.url} before"
                " they were read. With the option failOnDataLoss=false reading goes on"
            )
        if POSITION not in named:
            raise NetworkError(f"{self._options.url} is no broker that can replay: a message has no {POSITION}")
        position = decode_position(named[POSITION])
        return {str(worker): number for worker, number in position.items() if number > self.numbers.get(str(worker), 0)}


def between(options: Options, part: Between) -> Iterator[tuple[Received, Numbers]]:
    """Yield the messages of a part. Raises NetworkError."""
    end, left = part.end, part.count
    if left == 0 or (left is None and end is not None and _reached(part.start, end)):
        return
    replay = Replay(options, part.start)
    try:
        for message, moved in replay.messages(IDLE_S if left is None else LOST_S):
            # A number that is higher may be that of a log without such messages; the message's own is among them.
            if end is not None and moved and all(number > end.get(worker, 0) for worker, number in moved.items()):
                return  # some that were counted have expired meanwhile
            yield message, moved
            left = left - 1 if left is not None else None
            if left == 0 or (left is None and end is not None and _reached(replay.numbers, end)):
                return
    finally:
        replay.close()


def newest(options: Options) -> Numbers | None:
    """Return a position about the present; None if nothing comes: then a replay ends by being idle.

    Raises NetworkError.
    """
    replay = Replay(options, {}, "-1s")
    try:
        # What comes all the time would never end: whatever has come until then was there.
        until_s = time.monotonic() + NEWEST_S
        for _ in replay.messages(IDLE_S):
            if time.monotonic() > until_s:
                break
        return replay.numbers or None
    finally:
        replay.close()


def _reached(numbers: Numbers, end: Numbers) -> bool:
    return all(numbers.get(worker, 0) >= number for worker, number in end.items())


def _row(message: Received, position: Numbers, names: Sequence[str]) -> tuple[Any, ...]:
    properties = message.properties
    told = (POSITION, GAP, TIME)
    user = [pair for index, pair in enumerate(message.user_properties) if index > 2 or pair[0] not in told]
    values: dict[str, Any] = {
        "position": encode_position({int(worker): number for worker, number in position.items()}),
        "received": datetime.now(UTC),
        "topic": message.topic,
        "levels": message.topic.split("/"),
        "payload": message.payload,
        "qos": message.qos,
        "retain": message.retain,
        "text": properties[0x01] == 1 if 0x01 in properties else None,
        "content_type": properties[0x03].decode() if 0x03 in properties else None,
        "response_topic": properties[0x08].decode() if 0x08 in properties else None,
        "correlation_data": properties.get(0x09),
        "expiry_s": properties.get(0x02),
        "user_properties": user,
    }
    return tuple(values[name] for name in names)


class _Rows:
    options: Options
    columns: StructType

    def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
        """Yield the messages of a part as rows. Raises NetworkError."""
        assert isinstance(partition, Between), partition
        names = self.columns.fieldNames()
        numbers = dict(partition.start)
        for message, moved in between(self.options, partition):
            numbers.update(moved)
            yield _row(message, numbers, names)


class NetworkReader(_Rows, DataSourceReader):
    """A table of what a broker has stored, up to where a replay has caught up."""

    def __init__(self, options: Options, columns: StructType) -> None:
        self.options = options
        self.columns = columns

    def partitions(self) -> Sequence[InputPartition]:
        """Return the one part there is: a replay is one stream of messages."""
        return [Between({}, newest(self.options))]


class NetworkStreamReader(_Rows, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A stream of what a broker stores.

    An offset is {"numbers": {worker: number of the last record that was read}, "messages": how many have been read}.
    Each micro-batch is read twice: to see how far it goes, and to have its rows.
    """

    def __init__(self, options: Options, columns: StructType) -> None:
        self.options = options
        self.columns = columns
        self._end: Numbers | None = None

    def initialOffset(self) -> Offset:  # noqa: N802  (Spark's name)
        """Return where a stream that is new begins."""
        return {"numbers": {}, "messages": 0}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802  (Spark's name)
        """Return how many messages a micro-batch may have."""
        return ReadMaxRows(self.options.messages_max)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802  (Spark's name)
        """Remember how far the history goes now: the stream ends there."""
        self._end = newest(self.options)

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802  (Spark's name)
        """Return where the next micro-batch ends."""
        if isinstance(limit, ReadAllAvailable):
            return self._advance(start, None)
        return self._advance(start, limit.max_rows if isinstance(limit, ReadMaxRows) else self.options.messages_max)

    def _advance(self, start: Offset, most: int | None) -> Offset:
        numbers, count = dict(start["numbers"]), 0
        for _, moved in between(self.options, Between(start["numbers"], self._end)):
            numbers.update(moved)
            count += 1
            if count == most:
                break
        return {"numbers": numbers, "messages": start["messages"] + count} if count else start

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        """Return the one part there is."""
        count = end["messages"] - start["messages"]
        return [Between(start["numbers"], end["numbers"], count)] if count else []
