"""The compiled decoder against the records that were written, for any message there can be."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.core.message import message
from router.log.record_buffer import RecordBuffer
from router.log.record_cursor import Cursor
from router.log.record_scan import TIME_MAX, TIME_MIN
from router.matching.topic_names import matches

pyarrow = pytest.importorskip("pyarrow")
pytest.importorskip("pyspark")

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

levels = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0+#/"), max_size=4)
topics = st.lists(levels, min_size=1, max_size=4).map("/".join).filter(lambda topic: topic and topic[0] != "$")
texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=6)
properties = st.fixed_dictionaries({}, optional={
    "text": st.booleans(),
    "content_type": texts,
    "response_topic": topics,
    "correlation_data": st.binary(max_size=6),
    "user_properties": st.lists(st.tuples(texts, texts), min_size=1, max_size=3),
})  # fmt: skip
messages = st.tuples(topics, st.binary(max_size=20), st.integers(0, 2), properties, st.integers(0, 2**50))


def encoded(has: dict[str, Any]) -> bytes:
    """Return properties as a PUBLISH has them."""

    def pair(data: bytes) -> bytes:
        return len(data).to_bytes(2, "big") + data

    parts = b""
    if "text" in has:
        parts += bytes([1, has["text"]])
    for name, number in (("content_type", 3), ("response_topic", 8)):
        if name in has:
            parts += bytes([number]) + pair(has[name].encode())
    if "correlation_data" in has:
        parts += b"\x09" + pair(has["correlation_data"])
    for name, value in has.get("user_properties", ()):
        parts += b"\x26" + pair(name.encode()) + pair(value.encode())
    return parts


def rows(written: list[tuple[str, bytes, int, dict[str, Any], int]], **wanted: Any) -> list[dict[str, Any]]:
    """Write messages to a log, decode them, and return the rows that Arrow makes of it."""
    from pyspark.sql.pandas.types import to_arrow_schema

    from analytics.source.batches import record_batch
    from analytics.source.decoder import COLUMNS, Decoder
    from analytics.source.schema import MESSAGES

    buffer = RecordBuffer(0)
    for number, (topic, payload, qos, has, time_us) in enumerate(written, 1):
        buffer.add_accepted(time_us, number, message(topic.encode(), payload, qos, properties=encoded(has)), b"c", 0)
        buffer.add_released(time_us, b"c", 1)
    buffer.stamp(7)
    cursor = Cursor(bytes(buffer), 0, 7, 0)
    decoder = Decoder(
        tuple(COLUMNS), **{"worker": 3, "node": b"n", "since_us": TIME_MIN, "until_us": TIME_MAX, **wanted}
    )
    found = []
    while True:
        fed = decoder.feed(cursor, 2, 0, 2**64 - 1, 2, 2**20)
        count = decoder.rows
        batch = record_batch(to_arrow_schema(MESSAGES, timezone="UTC"), decoder.take(), count)
        batch.validate(full=True)
        found += batch.to_pylist()
        if fed == 0:
            return found


@given(st.lists(messages, max_size=5))
def test_a_row_has_what_its_record_says(written: list[Any]) -> None:
    found = rows(written)
    assert len(found) == len(written)
    for number, (row, (topic, payload, qos, has, time_us)) in enumerate(zip(found, written, strict=True), 1):
        assert row == {
            "time": EPOCH + timedelta(microseconds=time_us), "worker": 3, "incarnation": 2, "n": number, "node": "n",
            "topic": topic, "levels": topic.split("/"), "payload": payload, "qos": qos, "retain": False,
            "publisher": "c", "will": False, "expires": None, "text": has.get("text"),
            "content_type": has.get("content_type"), "response_topic": has.get("response_topic"),
            "correlation_data": has.get("correlation_data"),
            "user_properties": [{"name": name, "value": value} for name, value in has.get("user_properties", ())],
        }  # fmt: skip


@given(st.lists(messages, max_size=8), st.sampled_from(["#", "+", "+/#", "a/+"]), st.integers(0, 2**50))
def test_what_is_not_wanted_makes_no_row(written: list[Any], topic_filter: str, since_us: int) -> None:
    def topics_of(**wanted: Any) -> list[str]:
        return [row["topic"] for row in rows(written, **wanted)]

    names = [(topic, time_us) for topic, _, _, _, time_us in written]
    assert topics_of(topic_filter=topic_filter.encode()) == [
        topic for topic, _ in names if matches(topic_filter.encode(), topic.encode())
    ]
    assert topics_of(since_us=since_us) == [topic for topic, time_us in names if time_us >= since_us]
    assert topics_of(until_us=since_us) == [topic for topic, time_us in names if time_us < since_us]


def test_a_batch_ends_where_it_is_full_and_the_next_one_goes_on() -> None:
    assert [row["n"] for row in rows([("t", b"x", 1, {}, 5)] * 5)] == [1, 2, 3, 4, 5]


def test_what_workers_keep_for_one_another_makes_no_row() -> None:
    written = [(topic, b"x", 1, {}, 5) for topic in ("a", "$shoal/bans/x", "$shoal", "$shoals", "$SYS")]
    assert [row["topic"] for row in rows(written)] == ["a", "$shoals", "$SYS"]
    assert [row["topic"] for row in rows(written, topic_filter=b"$shoal/#")] == []
