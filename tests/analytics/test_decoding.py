"""Payloads that no decoder foresaw: none stops a lake, and no value is lost without a word."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.log_folders import write_messages

pytest.importorskip("pyspark")

from analytics.cli.lake import sentence_of
from analytics.lake.fitting import UnfitError, fitter, parse
from analytics.lake.inference import FIELDS_MAX, extended, grown, inferred
from analytics.lake.lake import Lake, Plan, read_lake
from analytics.lake.payload_decoders import Payload
from analytics.source.column_types import fields_of, parse_ddl

values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=3),
    lambda held: st.lists(held, max_size=3) | st.dictionaries(st.sampled_from(["a", "A", "b`c", "", "d.e"]), held),
    max_leaves=12,
)


def fit(ddl: str, payload: bytes) -> Any:
    return fitter(parse_ddl(ddl), of_json=True)(parse(payload))


def rows(spark: Any, folder: Path, table: str) -> list[Any]:
    return list(read_lake(spark, str(folder / "lake"), table).collect())


def test_no_message_stops_a_lake_whose_schema_is_found_out(spark: Any, tmp_path: Path) -> None:
    deep = b'{"d":' * 300 + b"1" + b"}" * 300
    sent = [
        b'{"ok": 1, "meta": {}}', b'{"a`b": 2, "c.d": 3, "": 4}', deep, b'{"half": "\\ud800"}', b'{"ok": 5} {"ok": 6}',
        b'{"ok": 7, "OK": 8}', b'{"Ok": 9}', b"{}", b'{"ok": 1, "ok": 2}', b"[" * 100_000,
    ]  # fmt: skip
    write_messages(tmp_path / "data", *((number, "j", payload) for number, payload in enumerate(sent)))
    Lake(spark, Plan(str(tmp_path / "data"), str(tmp_path / "lake"), (Payload("j", "j"),))).start().awaitTermination()
    good = {(row.data.ok, row.data["a`b"], row.data["c.d"], row.rest) for row in rows(spark, tmp_path, "j")}
    assert good == {
        (1.0, None, None, '{"meta": {}}'), (None, 2.0, 3.0, '{"": 4}'), (9.0, None, None, None),
        (None, None, None, None),
    }  # fmt: skip
    bad = {bytes(row.payload)[:20]: row.reason for row in rows(spark, tmp_path, "quarantine")}
    assert bad == {
        deep[:20]: "is nested more than 64 levels deep",
        b'{"half": "\\ud800"}': "has half of a surrogate pair, which is no character",
        b'{"ok": 5} {"ok": 6}': "is not JSON: Extra data: line 1 column 11 (char 10)",
        b'{"ok": 7, "OK": 8}': "the payload has keys that differ in case only: ok, OK",
        b'{"ok": 1, "ok": 2}': "has the key 'ok' twice",
        b"[" * 20: "is nested more than 64 levels deep",
    }
    assert len(rows(spark, tmp_path, "messages")) == len(sent)


def test_what_a_python_decoder_returns_is_kept_or_quarantined(spark: Any, tmp_path: Path) -> None:
    answers = {
        b"1": {"n": 1.5}, b"2": {"n": "2"}, b"3": {"n": 3, "more": [1]}, b"4": {"n": 4, "at": "2026-01-01"},
        b"5": {"n": True}, b"6": {"n": 2**40}, b"7": {"n": 7, "at": datetime(2026, 1, 1, tzinfo=UTC)}, b"8": {8: 8},
    }  # fmt: skip

    def decode(topic: str, payload: bytes) -> dict[str, Any] | None:
        if payload == b"0":
            raise ValueError("\ud800")
        return answers[payload]

    write_messages(tmp_path / "data", *((number, "f", b"%d" % number) for number in range(9)))
    payload = Payload("f", "f", "python", "n int, at timestamp", decode)
    Lake(spark, Plan(str(tmp_path / "data"), str(tmp_path / "lake"), (payload,))).start().awaitTermination()
    good = {(row.data.n, row.data.at, row.rest) for row in rows(spark, tmp_path, "f")}
    assert good == {(3, None, '{"more": [1]}'), (7, datetime(2026, 1, 1), None)}
    bad = {bytes(row.payload): row.reason for row in rows(spark, tmp_path, "quarantine")}
    assert bad == {
        b"0": "ValueError: ?", b"1": "n is 1.5, and no int", b"2": "n is '2', and no int",
        b"4": "at is '2026-01-01', and no timestamp", b"5": "n is True, and no int",
        b"6": "n is 1099511627776, and no int", b"8": "a key of the payload is 8, and no text",
    }  # fmt: skip


VALUES: list[tuple[str, bytes, Any]] = [
    ("c double", b'{"c": 1, "x": {"y": null, "z": 2}, "n": null}', ({"c": 1.0}, '{"x": {"y": null, "z": 2}}')),
    ("s struct<a:int>", b'{"S": {"a": 1, "b": 2}}', ({"s": {"a": 1}}, '{"S": {"b": 2}}')),
    ("l array<struct<a:int>>", b'{"l": [{"a": 1}, {"b": 2}, null]}',
     ({"l": [{"a": 1}, {}, None]}, '{"l": [null, {"b": 2}, null]}')),
    ("m map<string,bigint>", b'{"m": {"a": 1, "A": 2}}', ({"m": [("a", 1), ("A", 2)]}, None)),
    ("t timestamp, d date", b'{"t": "1970-01-01T00:00:01Z", "d": "2026-11-22"}',
     ({"t": 1_000_000, "d": date(2026, 11, 22)}, None)),
    ("t timestamp", b'{"t": 1.5}', ({"t": 1_500_000}, None)),
    ("t timestamp", b'{"t": 1e300}', "t is 1e+300, and no timestamp"),
    ("s string", b'{"s": {"a": [1, null]}}', ({"s": '{"a": [1, null]}'}, None)),
    ("b binary", b'{"b": "AAE="}', ({"b": b"\0\1"}, None)),
    ("p decimal(5,2)", b'{"p": 1.005}', ({"p": Decimal("1.01")}, None)),
    ("p decimal(5,2)", b'{"p": 1000}', "p is 1000, and no decimal(5,2)"),
    ("i tinyint", b'{"i": 128}', "i is 128, and no tinyint"),
    ("i bigint", b'{"i": 7.0}', ({"i": 7}, None)),
    ("c double", b'{"c": "21.5"}', "c is '21.5', and no double"),
    ("c double", b'{"c": 1' + b"0" * 400 + b"}", "and no double"),
    ("c double", b'{"c": 1e400}', "has the number 1e400, which no double can be"),
    ("f float", b'{"f": 1e39}', "f is 1e+39, and no float"),
    ("c double not null", b'{"d": 1}', "c is missing"),
    ("c double", b"[1]", "is no JSON object, but an array"),
    ("c double", b"ERR 17", "is not JSON: Expecting value"),
    ("c double", b"\xff", "is not UTF-8"),
]  # fmt: skip


def test_a_value_is_in_its_field_or_beside_it_or_there_is_a_reason() -> None:
    for ddl, payload, expected in VALUES:
        if isinstance(expected, str):
            with pytest.raises(UnfitError) as raised:
                fit(ddl, payload)
            assert expected in str(raised.value), ddl
        else:
            assert fit(ddl, payload) == expected, ddl


@given(st.lists(st.dictionaries(st.sampled_from(["a", "A", "b`c", "d.e", "f"]), values, max_size=4), max_size=4))
def test_whatever_json_says_arrow_can_hold_in_the_schema_that_was_found_out(objects: list[dict[str, Any]]) -> None:
    import pyarrow

    payloads = [json.dumps(each).encode() for each in objects]
    schema = inferred(payloads)
    for payload in payloads:
        try:
            data, rest = fitter(schema, of_json=True)(parse(payload))
        except UnfitError:
            continue
        pyarrow.array([data], schema).validate(full=True)
        assert rest is None or json.loads(rest)


def test_keys_that_never_end_do_not_become_columns_without_end() -> None:
    many = [{f"k{number}": 1 for number in range(first, first + 400)} for first in (0, 300, 600, 900)]
    schema = inferred(json.dumps(each).encode() for each in many)
    assert schema.num_fields <= FIELDS_MAX
    more = grown(schema, inferred([b'{"k0": "text", "z": {"deep": 1}}']))
    assert fields_of(more)[: schema.num_fields] == fields_of(schema)
    assert extended(more, schema, keep=True) == more


@pytest.mark.parametrize(("text", "sentence"), [
    ("[STREAM_FAILED] Query x: Traceback (most recent call last):\n  File ...\nanalytics.state.LakeError: Oh.", "Oh."),
    ("An exception was raised by the Python Proxy. Return Message: Traceback (most recent call last):\n  File \"x\"\n"
     "    y()\nKeyError: 'z'\n", "KeyError: 'z'"),
    ("[Errno 111] Connection refused", "Spark's Java process has ended"),
    ("Answer from Java side is empty", "Spark's Java process has ended"),
    ("Job aborted: java.lang.OutOfMemoryError: Java heap space", "has not enough memory"),
])  # fmt: skip
def test_what_went_wrong_is_said_in_a_sentence(text: str, sentence: str) -> None:
    told = sentence_of(Exception(text))
    assert sentence in told
    assert "Traceback" not in told
    assert "refused" not in told
