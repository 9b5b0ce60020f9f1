"""The lake without Spark: each message once, wherever its writer is stopped; decoders; readers of other libraries."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.log_folders import shoal, write_messages
from tests.support.process import ROOT
from tests.support.stopping_files import StoppedError, StoppingFiles

pytest.importorskip("pyarrow")
pytest.importorskip("numpy")

import pyarrow as pa
import pyarrow.dataset
import pyarrow.parquet as pq

from analytics.lake.arrow_delta import ArrowDeltaLake
from analytics.lake.arrow_lake import ArrowLake
from analytics.lake.arrow_reading import open_dataset, read_all
from analytics.lake.fitting import UnfitError, _parse_exactly, _parse_plain
from analytics.lake.history import decode_history
from analytics.lake.manifest import LakeError
from analytics.lake.payload_decoders import Payload, chosen, data_type
from analytics.lake.repair import repair
from analytics.lake.retention import forget
from analytics.lake.writer import Plan
from analytics.source.column_types import conformed, ddl_of, parse_ddl
from analytics.source.log_batches import read_log
from router.matching.topic_names import matches

DAY_US = 86_400_000_000
LAYOUTS = {"parquet": ArrowLake, "delta": ArrowDeltaLake}

layouts = pytest.mark.parametrize("layout", LAYOUTS)


def plan(folder: Path, *payloads: Payload, **options: Any) -> Plan:
    return Plan(str(folder / "data"), str(folder / "lake"), payloads, **options)


def fill(lake: ArrowLake) -> int:
    lake.end_here()
    messages = 0
    while found := lake.write():
        messages += found
    lake.close()
    return messages


def rows(folder: Path, table: str = "messages", **options: Any) -> list[dict[str, Any]]:
    return list(open_dataset(str(folder / "lake"), table, **options).to_table().to_pylist())


def payloads(folder: Path, table: str = "messages", **options: Any) -> list[bytes]:
    return sorted(row["payload"] for row in rows(folder, table, **options))


def test_messages_lie_in_the_day_in_which_they_were_accepted(tmp_path: Path) -> None:
    write_messages(
        tmp_path / "data", (DAY_US - 1, "a", b"1"), (DAY_US, "a", b"2"), (2 * DAY_US, "a", b"3"), (5, "late", b"4")
    )
    assert fill(ArrowLake(plan(tmp_path, messages_max=2))) == 4
    found = {(str(row["date"]), row["payload"]) for row in rows(tmp_path)}
    assert found == {("1970-01-01", b"1"), ("1970-01-02", b"2"), ("1970-01-03", b"3"), ("1970-01-01", b"4")}
    # Whoever knows nothing of the lake's state sees the same.
    plain = pa.dataset.dataset(tmp_path / "lake" / "messages", partitioning="hive").to_table()
    assert {(str(row["date"]), row["payload"]) for row in plain.to_pylist()} == found


def test_many_days_in_one_batch_hold_few_files_open(tmp_path: Path) -> None:
    write_messages(tmp_path / "data", *((day * DAY_US, "t", b"%d" % day) for _ in range(2) for day in range(40)))
    fill(ArrowLake(plan(tmp_path)))
    assert len(rows(tmp_path)) == 80
    assert len({row["date"] for row in rows(tmp_path)}) == 40


@layouts
def test_a_writer_that_is_stopped_at_any_step_makes_nothing_be_there_twice_or_missing(
    tmp_path: Path, layout: str
) -> None:
    payload = Payload("n", "t/1", "number")
    data = tmp_path / "data"
    write_messages(data, *((n, f"t/{n % 2}", b"%d" % n) for n in range(1, 5)), (9, "t/1", b"warm"))
    write_messages(data, (5, "t/1", b"5"), worker=1)
    # Between two changes of the lake's own files, a Delta table makes its own.
    for after in (False, True) if layout == "delta" else (False,):
        for step in range(1, 100):
            here = tmp_path / f"{step}-{after}"
            lake = LAYOUTS[layout](Plan(str(data), str(here / "lake"), (payload,), messages_max=4))
            lake.files = StoppingFiles(lake.files, step, after=after)
            try:
                fill(lake)
            except StoppedError:
                lake.close()
            else:
                break
            fill(LAYOUTS[layout](Plan(str(data), str(here / "lake"), (payload,), messages_max=5)))
            assert payloads(here) == [b"1", b"2", b"3", b"4", b"5", b"warm"], step
            assert sorted(row["data"] for row in rows(here, "n")) == [1, 3, 5], step
            assert payloads(here, "quarantine") == [b"warm"], step
        assert step > 8


def test_a_lake_goes_on_where_it_was_and_a_second_writer_is_told_so(tmp_path: Path) -> None:
    write_messages(tmp_path / "data", (1, "t", b"1"), (2, "t", b"2"))
    fill(ArrowLake(plan(tmp_path)))
    write_messages(tmp_path / "data", (3, "t", b"3"))
    lake = ArrowLake(plan(tmp_path))
    with pytest.raises(LakeError, match="somebody else writes to the lake"):
        ArrowLake(plan(tmp_path))
    assert fill(lake) == 1
    assert payloads(tmp_path) == [b"1", b"2", b"3"]


def test_what_does_not_decode_is_in_the_quarantine_with_the_reason_and_nothing_is_dropped(tmp_path: Path) -> None:
    def decode(topic: str, payload: bytes) -> dict[str, Any] | None:
        return {"length": len(payload), "more": topic} if payload != b"?" else None

    write_messages(
        tmp_path / "data",
        (1, "j/1", b'{"c": 1, "deep": {"x": [1]}}'), (2, "j/2", b"{"), (3, "j/3", b"\xff"), (4, "n", b" 21.5 "),
        (5, "n", b"warm"), (6, "f", b"abc"), (7, "f", b"?"), (8, "s", b"text"), (9, "s", b"\xff"),
        (10, "typed", b'{"c": "no number"}'), (11, "typed", b'{"c": 7, "d": "\xc3\xa9"}'), (12, "raw", b"\x00"),
        (13, "n", b"1_000"), (14, "n", b"1e999"), (15, "n", b"-Infinity"), (16, "n", b"21.5f"),
        (17, "typed", b'{"c": 1, "c": 2}'), (18, "n", b""), (19, "n", "\u0663".encode()),
    )  # fmt: skip
    fill(ArrowLake(plan(
        tmp_path, Payload("j", "j/#"), Payload("n", "n", "number"), Payload("s", "s", "text"),
        Payload("r", "raw", "raw"), Payload("f", "f", "python", "length int", decode),
        Payload("t", "typed", "json", "c double"),
    )))  # fmt: skip
    assert len(rows(tmp_path)) == 19
    assert [row["data"] for row in rows(tmp_path, "j")] == [{"c": 1.0, "deep": {"x": [1.0]}}]
    assert [row["data"] for row in rows(tmp_path, "n")] == [21.5, -float("inf")]
    assert [row["data"] for row in rows(tmp_path, "s")] == ["text"]
    assert [(row["data"], row["rest"]) for row in rows(tmp_path, "f")] == [({"length": 3}, '{"more": "f"}')]
    assert [(row["data"], row["rest"]) for row in rows(tmp_path, "t")] == [({"c": 7.0}, '{"d": "é"}')]
    assert [row["data"] for row in rows(tmp_path, "r")] == [b"\0"]
    reasons = {(row["table"], row["payload"]): row["reason"] for row in rows(tmp_path, "quarantine")}
    assert reasons == {
        ("j", b"{"): "is not JSON: Expecting property name enclosed in double quotes: line 1 column 2 (char 1)",
        ("j", b"\xff"): "is not UTF-8",
        ("f", b"?"): "the function returned NoneType", ("s", b"\xff"): "is not UTF-8",
        ("t", b'{"c": "no number"}'): "c is 'no number', and no double",
        ("t", b'{"c": 1, "c": 2}'): "has the key 'c' twice",
        **{("n", text): "is not a number" for text in (
            b"warm", b"1_000", b"1e999", b"21.5f", b"", "\u0663".encode())},
    }  # fmt: skip
    before = tmp_path / "lake" / "messages"
    for table in ("j", "n", "s", "f", "t", "r", "quarantine", "messages"):
        for path in (before.parent / table).rglob("*.parquet"):
            assert all(field.nullable for field in pq.read_schema(path)), path


def test_a_schema_that_is_found_out_grows_and_small_files_are_merged_with_it(tmp_path: Path) -> None:
    payload = Payload("j", "j")
    sent = [b'{"a": {"x": 1}}', b'{"a": {"y": [{"z": 1}], "x": 2}, "b": "text"}', b'{"a": 3}']
    sent += [b'{"a": {"x": %d}, "m%d": [{"z": 1, "k%d": true}]}' % (n, n % 2, n) for n in range(4, 12)]
    for number, content in enumerate(sent):
        write_messages(tmp_path / "data", (number, "j", content))
        fill(ArrowLake(plan(tmp_path, payload)))
    rests = {row["n"]: row["rest"] for row in rows(tmp_path, "j")}
    found = {row["n"]: row["data"] for row in rows(tmp_path, "j")}
    assert found[1]["a"]["x"] == 1
    assert found[1]["a"]["y"] is None
    assert (found[2]["a"]["y"], found[2]["b"]) == ([{"z": 1.0}], "text")
    assert (found[4]["m0"][0]["k4"], rests[6]) == (True, '{"m0": [{"k6": true}]}')
    assert [row["reason"] for row in rows(tmp_path, "quarantine")] == ["a is 3, and no object"]
    assert len(list((tmp_path / "lake" / "messages").rglob("*.parquet"))) < 8
    with pytest.raises(LakeError, match="a is struct<.*> there, and cannot become string"):
        ArrowLake(plan(tmp_path, Payload("j", "j", "json", "a string")))


def test_conditions_on_days_and_times_open_files_of_those_days_only(tmp_path: Path) -> None:
    write_messages(tmp_path / "data", *((day * DAY_US + 5, "t", b"%d" % day) for day in range(30)))
    fill(ArrowLake(plan(tmp_path)))
    whole = open_dataset(str(tmp_path / "lake"))
    field, at = pa.dataset.field, pa.scalar(7 * DAY_US, pa.timestamp("us", "UTC"))
    until = pa.scalar(8 * DAY_US, pa.timestamp("us", "UTC"))
    for condition in ((field("time") >= at) & (field("time") < until), field("date") == at.cast(pa.date32())):
        assert len(list(whole.get_fragments(condition))) == 1
        assert whole.to_table(filter=condition)["payload"].to_pylist() == [b"7"]
    day = open_dataset(str(tmp_path / "lake"), since="1970-01-08T00:00:00Z", until="1970-01-09T00:00:00Z")
    assert day.count_rows() == 1
    for path in (tmp_path / "lake" / "messages").rglob("*.parquet"):
        if "1970-01-08" not in str(path):
            path.write_bytes(b"nobody looks at this one")
    assert day.to_table()["payload"].to_pylist() == [b"7"]
    assert whole.to_table(filter=field("time") == at)["payload"].to_pylist() == []


def test_duckdb_polars_and_pandas_read_a_lake(tmp_path: Path) -> None:
    duckdb, polars, pandas = (pytest.importorskip(name) for name in ("duckdb", "polars", "pandas"))
    write_messages(tmp_path / "data", *((n * DAY_US, f"t/{n % 2}", b'{"c": %d}' % n) for n in range(10)))
    fill(ArrowLake(plan(tmp_path, Payload("j", "#", "json", "c double"))))
    climate = open_dataset(str(tmp_path / "lake"), "j")
    answer = duckdb.sql("select topic, sum(data.c) from climate where date >= '1970-01-05' group by 1 order by 1")
    assert answer.fetchall() == [("t/0", 18.0), ("t/1", 21.0)]
    lazy = polars.scan_pyarrow_dataset(climate).filter(polars.col("topic") == "t/1")
    assert lazy.select(polars.col("data").struct.field("c").sum()).collect().item() == 25.0
    frame = climate.to_table().to_pandas()
    assert isinstance(frame, pandas.DataFrame)
    assert frame["data"].map(lambda data: data["c"]).sum() == 45.0


@layouts
def test_lake_and_log_together_are_all_messages_and_each_once(tmp_path: Path, layout: str) -> None:
    data, lake = tmp_path / "data", str(tmp_path / "lake")
    write_messages(data, *((n, f"t/{n % 3}", b"%d" % n) for n in range(1, 31)))
    for last in (31, 36, 41):
        stopped = LAYOUTS[layout](plan(tmp_path))
        if layout == "delta":
            # In its table, and in no state: the first batch, and one behind it.
            stopped.files = StoppingFiles(stopped.files, 2 if last == 31 else 3, kind="write")
            with pytest.raises(StoppedError):
                fill(stopped)
            stopped.close()
        else:
            fill(stopped)
        if last < 41:
            write_messages(data, *((n, f"t/{n % 3}", b"%d" % n) for n in range(last, last + 5)))
        found = read_all(lake, str(data), columns=["payload"], topicFilter="t/0").read_all()["payload"].to_pylist()
        assert sorted(found, key=int) == [b"%d" % n for n in range(3, min(last + 5, 41), 3)], last
    assert read_all(lake, str(data), workers="7").read_all().num_rows == 0
    assert read_log(str(data), since="1970-01-01T00:00:00.000038Z").read_all().num_rows == 3
    with pytest.raises(ValueError, match="there is no column 'nothing'"):
        read_log(str(data), columns=["nothing"])


@layouts
def test_a_decoder_that_comes_later_decodes_what_is_there_and_what_it_could_not(tmp_path: Path, layout: str) -> None:
    def strict(topic: str, payload: bytes) -> dict[str, Any]:
        return {"n": int(payload)}

    def mended(topic: str, payload: bytes) -> dict[str, Any]:
        return {"n": 0 if payload == b"warm" else int(payload)}

    other = Payload("other", "#", "number")
    first, second = (Payload("f", "f", "python", "n int", each) for each in (strict, mended))
    write_messages(tmp_path / "data", (1, "f", b"1"), (DAY_US, "f", b"2"), (DAY_US, "f", b"warm"))
    fill(LAYOUTS[layout](plan(tmp_path, other)))
    lake = LAYOUTS[layout](plan(tmp_path, other, first))
    assert lake.new_tables() == ["f"]
    lake.close()
    with pytest.raises(LakeError, match="there is no decoder with the table 'g'; there are other, f"):
        decode_history(None, plan(tmp_path, other, first), "g")
    assert decode_history(None, plan(tmp_path, other, first), "f", since="1970-01-02T00:00:00Z") == (1, 1)
    assert {(row["table"], row["reason"][:10]) for row in rows(tmp_path, "quarantine")} == {
        ("other", "is not a n"), ("f", "ValueError")}  # fmt: skip
    told: list[Any] = []
    counted = decode_history(None, plan(tmp_path, other, second), "f", told=lambda *day: told.append(day))
    assert (counted, told) == ((2, 0), [("1970-01-01", 1, 0), ("1970-01-02", 1, 0)])
    assert sorted(row["data"]["n"] for row in rows(tmp_path, "f")) == [0, 1, 2]
    assert [row["table"] for row in rows(tmp_path, "quarantine")] == ["other"]
    write_messages(tmp_path / "data", (DAY_US + 5, "f", b"7"))
    fill(LAYOUTS[layout](plan(tmp_path, other, second)))
    assert sorted(row["data"]["n"] for row in rows(tmp_path, "f")) == [0, 1, 2, 7]


def test_what_a_lake_lost_comes_back_from_the_log_once(tmp_path: Path) -> None:
    for first in (1, 3):
        write_messages(tmp_path / "data", *((n * DAY_US, "t", b"%d" % n) for n in (first, first + 1)))
        fill(ArrowLake(plan(tmp_path)))
    write_messages(tmp_path / "data", (6, "t", b"6"))  # not in the lake yet: that is for its writer
    sorted((tmp_path / "lake" / "messages").rglob("b*.parquet"))[1].unlink()
    with pytest.raises(LakeError, match=r"1 file.*is missing.*shoal lake repair"):
        ArrowLake(plan(tmp_path))
    told = repair(None, str(tmp_path / "lake"), str(tmp_path / "data"))
    assert (told.missing, told.restored) == ({"messages": 1}, 1)
    assert payloads(tmp_path) == [b"1", b"2", b"3", b"4"]
    assert fill(ArrowLake(plan(tmp_path))) == 1
    assert repair(None, str(tmp_path / "lake"), str(tmp_path / "data")).restored == 0


@layouts
def test_days_that_were_forgotten_on_purpose_do_not_come_back(tmp_path: Path, layout: str) -> None:
    write_messages(tmp_path / "data", *((day * DAY_US, "n", b"%d" % day) for day in range(6)), (0, "n", b"warm"))
    number = Payload("n", "n", "number")
    fill(LAYOUTS[layout](plan(tmp_path, number)))
    lake = LAYOUTS[layout](plan(tmp_path))
    assert {table for table, files in forget(lake, "1970-01-04").items() if files} == {"messages", "n", "quarantine"}
    assert forget(lake, "1970-01-02") == {}  # which was forgotten already
    lake.close()
    assert payloads(tmp_path) == [b"3", b"4", b"5"]
    assert [row["data"] for row in rows(tmp_path, "n")] == [3, 4, 5]
    assert rows(tmp_path, "quarantine") == []
    if layout == "parquet":
        assert sorted(path.name for path in (tmp_path / "lake" / "messages").iterdir()) == [
            "date=1970-01-04", "date=1970-01-05", "date=1970-01-06"]  # fmt: skip
        next((tmp_path / "lake" / "messages").rglob("*.parquet")).unlink()
        assert repair(None, str(tmp_path / "lake"), str(tmp_path / "data")).restored == 1
    write_messages(tmp_path / "data", (6 * DAY_US, "n", b"6"))
    assert fill(LAYOUTS[layout](plan(tmp_path, number))) == 1
    assert payloads(tmp_path) == [b"3", b"4", b"5", b"6"]
    told = shoal("lake", "forget", tmp_path / "lake", "--keep-days", "2")
    assert (told.exit_code, "n: 4 files are gone" in told.output) == (0, True)
    assert payloads(tmp_path) == []


def test_the_commands_of_a_lake_import_no_spark(tmp_path: Path) -> None:
    write_messages(tmp_path / "data", (1, "j", b'{"c": 1}'), (2, "j", b"?"))
    decoders = tmp_path / "decoders.toml"
    decoders.write_text('[[decode]]\ntable = "j"\ntopic_filter = "j"\n')
    program = "import sys; sys.modules['pyspark'] = None; from broker.cli.main import main; main()"
    environment = {**os.environ, "SHOAL_DATA_DIR": str(tmp_path / "data")}

    def run(*arguments: str) -> str:
        command = [sys.executable, "-c", program, "lake", *arguments]
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    lake = str(tmp_path / "lake")
    assert "batch 0: 2 messages" in run(lake, "--once")
    told = run(lake, "--once", "--decoders", str(decoders))
    assert "j gets what comes from now on" in told
    assert "done: 1 decoded, 1 in the quarantine" in run("decode", lake, "j", "--decoders", str(decoders))
    assert "0 messages came back" in run("repair", lake)
    wrong = shoal("lake", tmp_path / "other", "--once", "--data-dir", tmp_path / "nothing")
    assert wrong.exit_code == 1
    assert "cannot be read: No such file or directory" in wrong.output


def test_what_is_published_through_kills_of_broker_and_writer_is_in_the_lake_once(tmp_path: Path) -> None:
    from tests.analytics.killing import run

    verdict = run(
        tmp_path, messages=3_000, workers=2, broker_kills=1, driver_kills=2, batch=300, every_s=0.1, writer=()
    )
    assert verdict.exactly_once, verdict


# What decoders are made of --------------------------------------------------------------------------------------------

json_texts = st.text(st.sampled_from('ab{}[]":,1.e-\\u0d8 \n\xe9tfn'), max_size=24)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=4),
    lambda held: st.lists(held, max_size=3) | st.dictionaries(st.text(max_size=3), held, max_size=3),
    max_leaves=8,
)


@given(json_texts | json_values.map(json.dumps) | json_values.map(lambda value: json.dumps(value, ensure_ascii=False)))
def test_what_is_parsed_quickly_is_what_is_parsed_exactly(text: str) -> None:
    try:
        payload = text.encode()
    except UnicodeEncodeError:
        return
    for each in (payload, b'{"a":' + payload + b"}", b'{"a": 1, "b" :' + payload + b', "a":2}'):
        quick = _parse_plain(each)
        if quick is not None:
            assert repr(quick) == repr(_parse_exactly(each))


@pytest.mark.parametrize("payload", [
    b'{"a": 1, "a": 2}', b'{"a" :"x", "a":"y"}', b'{"o": {"a": 1, "a": 1}}', b'{"l": [{"a": 1, "b": "a", "a": 2}]}',
])  # fmt: skip
def test_a_key_that_is_there_twice_is_noticed(payload: bytes) -> None:
    assert _parse_plain(payload) is None
    with pytest.raises(UnfitError, match="has the key 'a' twice"):
        _parse_exactly(payload)


@given(st.lists(st.sampled_from(["a/b", "a", "$SYS/x", "a/", "b/c/d"]), max_size=6), st.sampled_from(["#", "a/#", "+"]))
def test_messages_are_chosen_as_the_broker_would(topics: list[str], topic_filter: str) -> None:
    found = chosen(pa.array(topics, pa.string()), topic_filter).to_pylist()
    assert found == [matches(topic_filter.encode(), topic.encode()) for topic in topics]


@pytest.mark.parametrize(("text", "sentence"), [
    ("a", "a type should stand where there is the end"), ("a int,", "the name of a field should stand"),
    ("a int b", "a comma should stand where there is 'b'"), ("a array<int", "'>' should stand where there is the end"),
    ("a foo", "there is no type 'foo'"), ("a int, A int", "the field A is there twice"),
    ("d decimal(50,2)", "there is no decimal(50,2)"),
])  # fmt: skip
def test_what_a_schema_says_wrong_is_told(text: str, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence.replace("(", "\\(").replace(")", "\\)")):
        parse_ddl(text)
    with pytest.raises(LakeError, match="is no schema: "):
        data_type(Payload("t", "t", "json", text), None, pa.struct([]))


def test_a_schema_is_written_as_it_is_read() -> None:
    text = "struct<a:struct<b:int>,l:array<map<string,decimal(5,2)>>,t:timestamp,n:timestamp_ntz,d:date,x:binary>"
    assert ddl_of(parse_ddl(f"whole {text}").field(0).type) == text
    assert parse_ddl("`a b` bigint not null comment 'that''s it'").field(0).name == "a b"


def test_values_of_a_table_that_has_grown_keep_what_they_were() -> None:
    before, now = (parse_ddl(f"l array<struct<{inner}>>, m map<string,struct<{inner}>>, s struct<{inner}>{more}")
                   for inner, more in (("x:int", ""), ("x:int,y:string", ", new date")))  # fmt: skip
    values = [{"l": [{"x": 1}, None], "m": [("k", {"x": 2})], "s": {"x": 3}}, None, {"l": [], "m": None, "s": None}]
    array = pa.array(values, before)
    for part, expected in ((array, values), (array[1:], values[1:])):
        grown = conformed(part, now)
        grown.validate(full=True)
        for row, was in zip(grown.to_pylist(), expected, strict=True):
            assert (row is None) == (was is None)
            if was is not None and was["s"] is not None:
                assert row["l"] == [{"x": 1, "y": None}, None]
                assert (row["m"], row["s"]) == ([("k", {"x": 2, "y": None})], {"x": 3, "y": None})


def test_payloads_that_are_large_are_not_all_in_memory_at_once(tmp_path: Path) -> None:
    content = b'{"c": 1, "pad": "%s"}' % os.urandom(450_000).hex().encode()
    for _ in range(4):
        write_messages(tmp_path / "data", *((n, "j", content) for n in range(50)))
    (tmp_path / "decoders.toml").write_text('[[decode]]\ntable = "j"\ntopic_filter = "j"\n')
    program = (
        "import sys\nfrom analytics.cli.lake import lake\nlake(sys.argv[1:], standalone_mode=False)\n"
        # Its own peak: ru_maxrss would know of that of the process that began it.
        "print(next(line.split()[1] for line in open('/proc/self/status') if line.startswith('VmHWM')))\n"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "lake"), "--once", "--data-dir", str(tmp_path / "data"),
               "--decoders", str(tmp_path / "decoders.toml")]  # fmt: skip
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert len(rows(tmp_path, "j")) == 200
    assert int(done.stdout.splitlines()[-1]) < 450_000  # KiB; the messages are 180 MB, and what they say the same again
