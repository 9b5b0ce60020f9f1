"""The lake: each message once, wherever its driver is stopped; decoders, days, schemas, small files."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.matching.topic_names import matches
from tests.support.log_folders import write_messages
from tests.support.stopping_files import StoppingFiles

pytest.importorskip("pyspark")

from analytics.lake import manifest as states
from analytics.lake.compaction import tiers
from analytics.lake.file_stores import open_files
from analytics.lake.inference import inferred
from analytics.lake.lake import Lake, Plan, read_all, read_lake
from analytics.lake.manifest import LakeError
from analytics.lake.payload_decoders import Payload, filter_pattern, load_payloads
from analytics.source.column_types import ddl_of

DAY_US = 86_400_000_000


def plan(folder: Path, *payloads: Payload, **options: Any) -> Plan:
    return Plan(str(folder / "data"), str(folder / "lake"), payloads, **options)


def fill(lake: Lake) -> None:
    query = lake.start()
    query.awaitTermination()


def rows(spark: Any, folder: Path, table: str = "messages") -> list[Any]:
    return list(read_lake(spark, str(folder / "lake"), table).collect())


def files_of(folder: Path, table: str = "messages") -> list[str]:
    root = folder / "lake" / table
    return sorted(str(path.relative_to(root)) for path in root.rglob("*.parquet"))


def assert_all_may_be_null(table: Path) -> None:
    """Files of one table are of one schema, batches and merged ones."""
    import pyarrow.parquet

    schemas = [pyarrow.parquet.read_schema(path) for path in table.rglob("*.parquet")]
    assert all(schema.equals(schemas[0]) for schema in schemas), schemas
    assert all(field.nullable for field in schemas[0]), schemas[0]
    assert "not null" not in str(schemas[0])


def test_messages_lie_in_the_day_in_which_they_were_accepted(spark: Any, tmp_path: Path) -> None:
    data = tmp_path / "data"
    write_messages(data, (DAY_US - 1, "a", b"1"), (DAY_US, "a", b"2"), (2 * DAY_US, "a", b"3"), (5, "late", b"4"))
    fill(Lake(spark, plan(tmp_path, messages_max=2)))
    found = {(str(row.date), bytes(row.payload)) for row in rows(spark, tmp_path)}
    assert found == {
        ("1970-01-01", b"1"), ("1970-01-02", b"2"), ("1970-01-03", b"3"), ("1970-01-01", b"4"),
    }  # fmt: skip
    assert {name.split("/")[0] for name in files_of(tmp_path)} == {
        "date=1970-01-01", "date=1970-01-02", "date=1970-01-03"}  # fmt: skip


def test_lake_and_tail_together_are_all_messages_and_each_once(spark: Any, tmp_path: Path) -> None:
    data = tmp_path / "data"
    write_messages(data, *((number, f"t/{number % 3}", b"%d" % number) for number in range(1, 31)))
    fill(Lake(spark, plan(tmp_path)))
    write_messages(data, *((number, f"t/{number % 3}", b"%d" % number) for number in range(31, 41)))
    write_messages(data, (7, "t/0", b"other"), worker=1)
    query = "topic = 't/0'"
    lake = read_lake(spark, str(tmp_path / "lake")).where(query)
    both = read_all(spark, str(tmp_path / "lake"), str(data)).where(query)
    log = spark.read.format("shoal").load(str(data)).where(query)
    expected = sorted([b"%d" % number for number in range(3, 41, 3)] + [b"other"])
    assert sorted(bytes(row.payload) for row in log.collect()) == expected
    assert sorted(bytes(row.payload) for row in both.collect()) == expected
    assert lake.count() == 10


def test_a_lake_whose_checkpoint_is_lost_goes_on_where_it_was(spark: Any, tmp_path: Path) -> None:
    write_messages(tmp_path / "data", (1, "t", b"1"), (2, "t", b"2"))
    fill(Lake(spark, plan(tmp_path)))
    shutil.rmtree(tmp_path / "lake" / "_shoal" / "checkpoint")
    write_messages(tmp_path / "data", (3, "t", b"3"))
    fill(Lake(spark, plan(tmp_path)))
    assert sorted(bytes(row.payload) for row in rows(spark, tmp_path)) == [b"1", b"2", b"3"]


@pytest.mark.parametrize(("change", "after"), [
    (2, True),  # a file has its name, and no state names it
    (3, True),  # the state is written, and Spark does not know that the batch is done
])  # fmt: skip
def test_a_driver_that_is_stopped_at_any_step_makes_nothing_be_there_twice_or_missing(
    spark: Any, tmp_path: Path, change: int, after: bool
) -> None:
    write_messages(tmp_path / "data", *((number, "t", b"%d" % number) for number in range(1, 4)))
    lake = Lake(spark, plan(tmp_path))
    lake.files = StoppingFiles(lake.files, change, after=after)
    query = lake.start()
    with pytest.raises(Exception, match="Stopped"):
        query.awaitTermination()
    fill(Lake(spark, plan(tmp_path)))
    import pyarrow.dataset

    # Whoever knows nothing of the lake's state sees the same: nothing unfinished is left.
    plain = pyarrow.dataset.dataset(tmp_path / "lake" / "messages", partitioning="hive").to_table(columns=["payload"])
    assert sorted(plain["payload"].to_pylist()) == [b"1", b"2", b"3"]
    assert len(rows(spark, tmp_path)) == 3


def test_what_does_not_decode_is_in_the_quarantine_with_the_reason_and_nothing_is_dropped(
    spark: Any, tmp_path: Path
) -> None:
    def decode(topic: str, payload: bytes) -> dict[str, Any] | None:
        return {"length": len(payload)} if payload != b"?" else None

    write_messages(
        tmp_path / "data",
        (1, "j/1", b'{"c": 1, "deep": {"x": [1]}}'), (2, "j/2", b"{"), (3, "j/3", b"\xff"),
        (4, "n", b"21.5"), (5, "n", b"warm"), (6, "f", b"abc"), (7, "f", b"?"), (8, "s", b"text"), (9, "s", b"\xff"),
        (10, "typed", b'{"c": "no number"}'), (11, "typed", b'{"c": 7}'), (12, "raw", b"\x00"),
    )  # fmt: skip
    fill(Lake(spark, plan(
        tmp_path, Payload("j", "j/#"), Payload("n", "n", "number"), Payload("s", "s", "text"),
        Payload("r", "raw", "raw"),
        Payload("f", "f", "python", "length int", decode), Payload("t", "typed", "json", "c double"),
    )))  # fmt: skip
    assert len(rows(spark, tmp_path)) == 12
    assert [row.data.deep.x for row in rows(spark, tmp_path, "j")] == [[1.0]]
    assert [row.data for row in rows(spark, tmp_path, "n")] == [21.5]
    assert [row.data for row in rows(spark, tmp_path, "s")] == ["text"]
    assert [row.data.length for row in rows(spark, tmp_path, "f")] == [3]
    assert [row.data.c for row in rows(spark, tmp_path, "t")] == [7.0]
    assert [bytes(row.data) for row in rows(spark, tmp_path, "r")] == [b"\0"]
    for table in ("j", "n", "s", "f", "t", "r", "quarantine"):
        assert_all_may_be_null(tmp_path / "lake" / table)
    reasons = {(row.table, bytes(row.payload), row.reason) for row in rows(spark, tmp_path, "quarantine")}
    assert reasons == {
        ("j", b"{", "is not JSON: Expecting property name enclosed in double quotes: line 1 column 2 (char 1)"),
        ("j", b"\xff", "is not UTF-8"),
        ("n", b"warm", "is not a number"), ("f", b"?", "the function returned NoneType"),
        ("s", b"\xff", "is not UTF-8"),
        ("t", b'{"c": "no number"}', "c is 'no number', and no double"),
    }  # fmt: skip


def test_a_schema_that_is_found_out_grows_and_keeps_what_it_has(spark: Any, tmp_path: Path) -> None:
    payload = Payload("j", "j")
    write_messages(tmp_path / "data", (1, "j", b'{"a": 1}'))
    fill(Lake(spark, plan(tmp_path, payload)))
    write_messages(tmp_path / "data", (2, "j", b'{"b": "x", "a": 2}'), (3, "j", b'{"a": "text now"}'))
    fill(Lake(spark, plan(tmp_path, payload)))
    found = {(row.data.a, row.data.b) for row in rows(spark, tmp_path, "j")}
    assert found == {(1.0, None), (2.0, "x")}
    assert [bytes(row.payload) for row in rows(spark, tmp_path, "quarantine")] == [b'{"a": "text now"}']
    with pytest.raises(LakeError, match="a is double there, and cannot become string"):
        Lake(spark, plan(tmp_path, Payload("j", "j", "json", "a string")))


def test_small_files_are_merged_and_old_ones_go(spark: Any, tmp_path: Path) -> None:
    write_messages(tmp_path / "data", *((number, "t", b"%d" % number) for number in range(1, 10)))
    fill(Lake(spark, plan(tmp_path, messages_max=1)))
    assert len(files_of(tmp_path)) == 2
    assert_all_may_be_null(tmp_path / "lake" / "messages")
    assert sorted(int(bytes(row.payload)) for row in rows(spark, tmp_path)) == [*range(1, 10)]


def test_two_writers_of_one_lake_do_not_go_unnoticed(spark: Any, tmp_path: Path) -> None:
    files = open_files(spark, str(tmp_path))
    one, other = states.load(files), states.load(files)
    states.commit(files, one)
    with pytest.raises(LakeError, match="somebody else has written"):
        states.commit(files, other)


def test_files_of_a_day_are_merged_by_eights_up_to_the_size_that_is_wanted() -> None:
    few = {f"{index}": 1_000 for index in range(7)}
    assert tiers(few, 10**8) == []
    assert tiers({**few, "7": 60_000}, 10**8) == [[str(index) for index in range(8)]]
    assert tiers({**few, "large": 10**8}, 10**8) == []
    assert [len(group) for group in tiers({f"{index:02}": 10**7 for index in range(20)}, 10**8)] == [10, 10]


@given(
    st.lists(st.sampled_from(["a", "b.", "+", "$S"]), min_size=1, max_size=3), st.booleans(),
    st.lists(st.sampled_from(["a", "b.", "bx", "", "$S"]), min_size=1, max_size=4),
)  # fmt: skip
def test_the_pattern_of_a_topic_filter_matches_what_the_filter_does(
    levels: list[str], hash_: bool, name: list[str]
) -> None:
    import re

    topic_filter, topic = "/".join(levels + ["#"] * hash_), "/".join(name) or "a"
    assert bool(re.search(filter_pattern(topic_filter), topic)) == matches(topic_filter.encode(), topic.encode())


def test_what_a_decoder_file_says_wrong_is_told(tmp_path: Path) -> None:
    file = tmp_path / "decoders.toml"

    def load(text: str) -> list[Payload]:
        file.write_text(text)
        return load_payloads(str(file))

    good = '[[decode]]\ntable = "t"\ntopic_filter = "a/#"\nas = "python"\nschema = "x int"\nfunction = "json:loads"\n'
    assert load(good)[0].function is json.loads
    for change, sentence in [
        (('as = "python"', 'as = "perl"'), "a decoder is one of json, text, number, raw, python"),
        (("json:loads", "json:nothing"), "there is no function 'json:nothing'"),
        (('"a/#"', '"a/#/b"'), "topic_filter 'a/#/b'"),
        (('table = "t"', 'table = "messages"'), "messages is not a name for the table of a decoder"),
        (('table = "t"', 'table = "T"'), "'T' is no name of a table"),
        (('schema = "x int"\n', ""), "say with schema what the function returns"),
        (("topic_filter", "topicfilter"), "there is no 'topicfilter'"),
        (("[[decode]]", "[[decode"), "is no TOML"),
    ]:
        with pytest.raises(LakeError, match=sentence.replace("(", "\\(")):
            load(good.replace(*change))


def test_types_that_differ_from_message_to_message_become_text() -> None:
    schema = inferred([b'{"a": 1, "b": null}', b'{"a": "x", "c": [1, "y"]}', b"no", b"[1]"])
    assert ddl_of(schema) == "struct<a:string,c:array<string>>"


def test_what_is_published_through_kills_of_broker_and_driver_is_in_the_lake_once(spark: Any, tmp_path: Path) -> None:
    from tests.analytics.killing import run

    def finish(data: Path, lake: Path) -> None:
        fill(Lake(spark, Plan(str(data), str(lake))))

    verdict = run(
        tmp_path, messages=3_000, workers=3, broker_kills=1, driver_kills=1, batch=500, every_s=0.2, finish=finish
    )
    assert verdict.exactly_once, verdict


def test_spark_and_arrow_write_one_lake_in_turns_and_read_the_same(spark: Any, tmp_path: Path) -> None:
    import pyarrow.parquet

    from analytics.lake.arrow_lake import ArrowLake
    from analytics.lake.arrow_reading import open_dataset

    payload = Payload("j", "j", "json", "c double, l array<struct<x:int>>, m map<string,date>, t timestamp")

    def write(number: int) -> Plan:
        content = {"c": number, "l": [{"x": number}], "m": {"k": "2026-11-22"}, "t": number, "more": "\u00e9"}
        write_messages(tmp_path / "data", (number, "j", json.dumps(content).encode()), (number, "j", b"?"))
        return plan(tmp_path, payload)

    for number in range(4):
        if number % 2:
            fill(Lake(spark, write(number)))
        else:
            lake = ArrowLake(write(number))
            assert lake.write() == 2
            lake.close()
    for table in ("messages", "j", "quarantine"):
        schemas = [pyarrow.parquet.read_schema(path) for path in (tmp_path / "lake" / table).rglob("*.parquet")]
        assert len(schemas) == 4
        assert all(schema.equals(schemas[0]) for schema in schemas), schemas
        of_spark = sorted(row.asDict(recursive=True).items() for row in rows(spark, tmp_path, table))
        by_n = {row["n"]: row for row in open_dataset(str(tmp_path / "lake"), table).to_table().to_pylist()}
        assert len(of_spark) == len(by_n) == (8 if table == "messages" else 4)
    decoded = {row.n: row.data.asDict(recursive=True) for row in rows(spark, tmp_path, "j")}
    arrow = open_dataset(str(tmp_path / "lake"), "j").to_table().to_pylist()
    for row in arrow:
        row["data"]["m"] = dict(row["data"]["m"])
        row["data"]["t"] = row["data"]["t"].replace(tzinfo=None)
        assert row["data"] == decoded[row["n"]]
        assert row["rest"] == '{"more": "\u00e9"}'


def test_a_batch_is_in_a_delta_table_once_however_often_it_is_written(spark: Any, tmp_path: Path) -> None:
    deltalake = pytest.importorskip("deltalake")
    from analytics.lake.delta import DeltaLake

    write_messages(tmp_path / "data", (1, "n", b"21.5"), (2, "n", b"warm"))
    lake = DeltaLake(spark, plan(tmp_path, Payload("n", "n", "number")))
    lake.files = StoppingFiles(lake.files, 2, after=False)  # the tables are written, and the state is not
    query = lake.start()
    with pytest.raises(Exception, match="Stopped"):
        query.awaitTermination()
    fill(DeltaLake(spark, plan(tmp_path, Payload("n", "n", "number"))))

    def count(table: str) -> int:
        return int(deltalake.DeltaTable(str(tmp_path / "lake" / table)).to_pyarrow_table().num_rows)

    assert (count("messages"), count("n"), count("quarantine")) == (2, 1, 1)


def in_delta(folder: Path, table: str = "messages") -> list[int]:
    import deltalake

    found = deltalake.DeltaTable(str(folder / "lake" / table)).to_pyarrow_table()
    return sorted(int(payload) for payload in found["payload"].to_pylist())


def test_delta_tables_whose_checkpoint_is_lost_miss_nothing_and_have_nothing_twice(spark: Any, tmp_path: Path) -> None:
    pytest.importorskip("deltalake")
    from analytics.lake.delta import DeltaLake

    def written(*numbers: int) -> DeltaLake:
        write_messages(tmp_path / "data", *((number, "t", b"%d" % number) for number in numbers))
        return DeltaLake(spark, plan(tmp_path))

    fill(written(1, 2))
    fill(written(3))
    # The table has a batch that no state knows when the checkpoint goes.
    lake = written(4)
    lake.files = StoppingFiles(lake.files, 2, kind="write")
    with pytest.raises(Exception, match="Stopped"):
        fill(lake)
    assert in_delta(tmp_path) == [1, 2, 3, 4]
    shutil.rmtree(tmp_path / "lake" / "_shoal" / "checkpoint")
    fill(written(5, 6))
    assert in_delta(tmp_path) == [1, 2, 3, 4, 5, 6]


def test_a_batch_that_is_larger_than_what_spark_lets_a_driver_collect_gets_into_a_delta_table(
    spark: Any, tmp_path: Path
) -> None:
    pytest.importorskip("deltalake")
    from analytics.lake.delta import DeltaLake

    write_messages(tmp_path / "data", *((number, "t", b"%d" % number) for number in range(1, 2_001)))
    limit = spark.sparkContext._jsc.sc().conf().get("spark.driver.maxResultSize", "1g")
    assert limit == "1m"
    write_messages(tmp_path / "data", *((number, "t", b"%01000d" % number) for number in range(2_001, 4_001)))
    fill(DeltaLake(spark, plan(tmp_path)))
    assert in_delta(tmp_path) == [*range(1, 4_001)]
