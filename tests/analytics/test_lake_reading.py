"""A lake that is read: by days, without a job for its files, while files are merged; and decoded afterwards."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.log_folders import write_messages

pytest.importorskip("pyspark")

from analytics.lake import manifest as states
from analytics.lake.compaction import compact
from analytics.lake.file_store import LocalFiles
from analytics.lake.history import decode_history
from analytics.lake.lake import Lake, Plan, read_all, read_lake
from analytics.lake.manifest import LakeError, State, Table
from analytics.lake.payload_decoders import Payload

DAY_US = 86_400_000_000
DAYS = ("1970-01-01", "1970-01-02", "1970-01-03")
SCHEMA = {
    "type": "struct",
    "fields": [
        {"name": "time", "type": "timestamp", "nullable": True, "metadata": {}},
        {"name": "n", "type": "long", "nullable": True, "metadata": {}},
    ],
}


class WatchedFiles(LocalFiles):
    """Files of which every change is looked at; a driver ends behind the first exchange if `stop` says so."""

    def __init__(self, folder: str, look: Any, *, stop: bool = False) -> None:
        super().__init__(folder)
        self.look = look
        self.stop = stop
        self.exchanges = 0

    def write(self, name: str, text: str) -> bool:
        written = super().write(name, text)
        self.look()
        return written

    def rename(self, name: str, new_name: str) -> None:
        super().rename(name, new_name)
        self.look()

    def remove(self, name: str) -> None:
        super().remove(name)
        self.look()

    def exchange(self, folder: str, other: str) -> bool:
        exchanged = super().exchange(folder, other)
        self.look()
        self.exchanges += 1
        if self.stop:
            raise KeyboardInterrupt
        return exchanged


def write_files(folder: Path, days: tuple[str, ...], files_a_day: int) -> State:
    """Write a lake by hand, with a row in each file."""
    import pyarrow
    import pyarrow.parquet

    state, number = State(batch=1, layout="parquet"), 0
    state.tables["messages"] = Table(SCHEMA)
    for index, day in enumerate(days):
        (folder / "messages" / f"date={day}").mkdir(parents=True)
        for _ in range(files_a_day):
            number += 1
            name = f"messages/date={day}/b{number:012d}-00000-{number:08x}.parquet"
            row = {"time": [index * DAY_US + number], "n": [number]}
            of_types = pyarrow.schema([("time", pyarrow.timestamp("us", "UTC")), ("n", pyarrow.int64())])
            pyarrow.parquet.write_table(pyarrow.table(row, of_types), folder / name)
            state.tables["messages"].files[name] = 500
    states.commit(LocalFiles(str(folder)), state)
    return state


def numbers_in_folder(folder: Path) -> list[int]:
    """Return what somebody reads who knows no state."""
    import pyarrow.dataset

    found = pyarrow.dataset.dataset(folder / "messages", partitioning="hive").to_table(columns=["n"])
    return sorted(found["n"].to_pylist())


def test_who_reads_the_folders_while_files_are_merged_sees_each_row_once(spark: Any, tmp_path: Path) -> None:
    state = write_files(tmp_path, DAYS[:1], 9)
    (tmp_path / "messages" / "date=1970-01-01" / "_notes.txt").write_text("somebody else's")
    seen: list[list[int]] = []
    watched = WatchedFiles(str(tmp_path), lambda: seen.append(numbers_in_folder(tmp_path)), stop=True)
    with pytest.raises(KeyboardInterrupt):
        compact(watched, state, 10**8)
    # The day has its new file, and the state does not know it: whoever writes next takes that back.
    watched.stop = False
    state = states.load(watched)
    assert states.tidy(watched, state) == []
    assert sorted(row.n for row in read_lake(spark, str(tmp_path)).collect()) == [*range(1, 10)]
    assert compact(watched, state, 10**8) == 8
    assert watched.exchanges == 3
    assert len(seen) > 5
    assert all(each == [*range(1, 10)] for each in seen), seen
    left = [path.name for path in (tmp_path / "messages" / "date=1970-01-01").iterdir() if path.suffix == ".parquet"]
    assert len(left) == 1
    assert (tmp_path / "messages" / "date=1970-01-01" / "_notes.txt").exists()
    assert states.load(watched).tables["messages"].files == state.tables["messages"].files


def test_files_are_looked_up_without_a_job_and_those_of_other_days_not_at_all(spark: Any, tmp_path: Path) -> None:
    write_files(tmp_path, DAYS, 12)
    spark.sparkContext.setJobGroup("looking up", "files")
    whole = read_lake(spark, str(tmp_path))
    day = read_lake(spark, str(tmp_path), since="1970-01-02T00:00:00Z", until="1970-01-03T00:00:00Z")
    assert list(spark.sparkContext.statusTracker().getJobIdsForGroup("looking up")) == []
    assert (len(whole.inputFiles()), len(day.inputFiles())) == (36, 12)
    assert sorted(row.n for row in day.collect()) == [*range(13, 25)]
    assert spark.conf.get("spark.sql.sources.parallelPartitionDiscovery.threshold") == "32"


def test_lake_and_log_are_asked_for_the_same_time_and_topics(spark: Any, tmp_path: Path) -> None:
    lake, data = str(tmp_path / "lake"), str(tmp_path / "data")
    write_messages(tmp_path / "data", (1, "a", b"1"), (DAY_US, "a", b"2"), (DAY_US, "b", b"3"))
    Lake(spark, Plan(data, lake)).start().awaitTermination()
    write_messages(tmp_path / "data", (2, "a", b"4"), (DAY_US + 1, "a", b"5"))
    found = read_all(spark, lake, data, since="1970-01-02T00:00:00Z", topicFilter="a/#")
    assert sorted(bytes(row.payload) for row in found.collect()) == [b"2", b"5"]


@pytest.mark.parametrize("layout", ["parquet", "delta"])
def test_a_decoder_that_comes_later_decodes_what_is_there_and_what_it_could_not(
    spark: Any, tmp_path: Path, layout: str
) -> None:
    if layout == "delta":
        pytest.importorskip("deltalake")
        from analytics.lake.delta import DeltaLake

        made_by: type[Lake] = DeltaLake
    else:
        made_by = Lake

    def strict(topic: str, payload: bytes) -> dict[str, Any]:
        return {"n": int(payload)}

    def mended(topic: str, payload: bytes) -> dict[str, Any]:
        return {"n": 0 if payload == b"warm" else int(payload)}

    def plan(*payloads: Payload) -> Plan:
        return Plan(str(tmp_path / "data"), lake, payloads)

    def in_table(table: str) -> list[Any]:
        return list(read_lake(spark, lake, table).collect())

    lake = str(tmp_path / "lake")
    other = Payload("other", "#", "number")
    first, second = (Payload("f", "f", "python", "n int", each) for each in (strict, mended))
    write_messages(tmp_path / "data", (1, "f", b"1"), (DAY_US, "f", b"2"), (DAY_US, "f", b"warm"))
    made_by(spark, plan(other)).start().awaitTermination()
    made = made_by(spark, plan(other, first))
    assert made.new_tables() == ["f"]
    made.close()
    with pytest.raises(LakeError, match="there is no decoder with the table 'g'; there are other, f"):
        decode_history(spark, plan(other, first), "g")
    assert decode_history(spark, plan(other, first), "f", since="1970-01-02T00:00:00Z") == (1, 1)
    assert {(row.table, row.reason[:10]) for row in in_table("quarantine")} == {
        ("other", "is not a n"), ("f", "ValueError")}  # fmt: skip
    told: list[Any] = []
    counted = decode_history(spark, plan(other, second), "f", told=lambda *day: told.append(day))
    assert (counted, told) == ((2, 0), [("1970-01-01", 1, 0), ("1970-01-02", 1, 0)])
    assert sorted(row.data.n for row in in_table("f")) == [0, 1, 2]
    assert [row.table for row in in_table("quarantine")] == ["other"]
    write_messages(tmp_path / "data", (DAY_US + 5, "f", b"7"))
    made_by(spark, plan(other, second)).start().awaitTermination()
    assert sorted(row.data.n for row in in_table("f")) == [0, 1, 2, 7]
    assert read_all(spark, lake, str(tmp_path / "data")).count() == 4
