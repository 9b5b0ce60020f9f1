"""A lake has one writer: who comes second, what a commit says that is not the next one, what repair brings back."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tests.support.log_folders import write_messages
from tests.support.process import ROOT

pytest.importorskip("pyspark")

from analytics.lake import manifest as states
from analytics.lake.file_store import LocalFiles
from analytics.lake.hadoop import HadoopFiles
from analytics.lake.lake import Lake, Plan, read_lake
from analytics.lake.manifest import LakeError, State, Table
from analytics.lake.payload_decoders import Payload
from analytics.lake.repair import repair

HOLDER = """
import sys
from analytics.lake.lock import WriterLock
from analytics.lake.file_store import LocalFiles
lock = WriterLock(LocalFiles(sys.argv[1]))
print("held", flush=True)
sys.stdin.read()
"""


def plan(folder: Path, *payloads: Payload, **options: Any) -> Plan:
    return Plan(str(folder / "data"), str(folder / "lake"), payloads, **options)


def fill(lake: Lake) -> None:
    lake.start().awaitTermination()


def payloads_in(spark: Any, folder: Path) -> list[int]:
    return sorted(int(bytes(row.payload)) for row in read_lake(spark, str(folder / "lake")).collect())


def write_numbers(folder: Path, *numbers: int) -> None:
    write_messages(folder / "data", *((number, "t", b"%d" % number) for number in numbers))


def test_a_second_writer_is_told_so_and_one_that_was_killed_leaves_the_lake_free(spark: Any, tmp_path: Path) -> None:
    write_numbers(tmp_path, 1, 2)
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path / "lake")], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == b"held\n"
    with pytest.raises(LakeError, match=r"somebody else writes to the lake .*lake: one at a time may"):
        Lake(spark, plan(tmp_path))
    holder.send_signal(signal.SIGKILL)
    holder.communicate()
    lake = Lake(spark, plan(tmp_path))
    with pytest.raises(LakeError, match="somebody else writes"):
        Lake(spark, plan(tmp_path))
    fill(lake)
    fill(Lake(spark, plan(tmp_path)))  # the one before is over
    assert payloads_in(spark, tmp_path) == [1, 2]


def test_a_writer_without_locks_that_was_overtaken_changes_nothing(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As on HDFS or an object store, where no lock dies with its holder.
    monkeypatch.setattr("analytics.lake.lake.open_files", HadoopFiles)
    write_numbers(tmp_path, 1)
    fill(Lake(spark, plan(tmp_path)))
    write_numbers(tmp_path, 2, 3)

    class Overtaken(HadoopFiles):
        """Another writer begins after files of a batch have their names, and before a state names them."""

        def write(self, name: str, text: str) -> bool:
            Lake(spark, plan(tmp_path)).close()
            return super().write(name, text)

    first = Lake(spark, plan(tmp_path))
    first.files = Overtaken(spark, str(tmp_path / "lake"))
    with pytest.raises(Exception, match="somebody else has written to the lake"):
        fill(first)
    assert payloads_in(spark, tmp_path) == [1]
    fill(Lake(spark, plan(tmp_path)))
    assert payloads_in(spark, tmp_path) == [1, 2, 3]


def test_of_two_states_that_are_written_at_once_one_is_the_next(tmp_path: Path) -> None:
    for number in range(40):
        files = LocalFiles(str(tmp_path / str(number)))
        begin = threading.Barrier(2)
        outcomes: list[str] = []

        def commit(
            batch: int, files: LocalFiles = files, begin: threading.Barrier = begin, outcomes: list[str] = outcomes
        ) -> None:
            state = State(batch=batch)
            begin.wait()
            try:
                states.commit(files, state)
            except LakeError as error:
                outcomes.append(str(error))
            else:
                outcomes.append(f"batch {batch}")

        threads = [threading.Thread(target=commit, args=(batch,)) for batch in (1, 2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        won = [text for text in outcomes if text.startswith("batch")]
        assert won == [f"batch {states.load(files).batch}"], outcomes


def test_what_a_lake_lost_comes_back_from_the_log_once(spark: Any, tmp_path: Path) -> None:
    from analytics.cli.lake import lake as command

    for numbers in ((1, 2), (3, 4)):
        write_numbers(tmp_path, *numbers)
        fill(Lake(spark, plan(tmp_path, Payload("n", "t", "number"))))
    write_numbers(tmp_path, 6)  # not in the lake yet: that is for the stream
    files = sorted((tmp_path / "lake" / "messages").rglob("b*.parquet"))
    files[1].unlink()
    with pytest.raises(LakeError, match=r"1 file.*is missing.*shoal lake repair"):
        Lake(spark, plan(tmp_path))
    told = repair(spark, str(tmp_path / "lake"), str(tmp_path / "data"))
    assert (told.missing, told.restored) == ({"messages": 1}, 2)
    assert payloads_in(spark, tmp_path) == [1, 2, 3, 4]
    fill(Lake(spark, plan(tmp_path, Payload("n", "t", "number"))))
    assert payloads_in(spark, tmp_path) == [1, 2, 3, 4, 6]
    assert read_lake(spark, str(tmp_path / "lake"), "n").count() == 5
    assert repair(spark, str(tmp_path / "lake"), str(tmp_path / "data")).restored == 0
    assert "repair" in CliRunner().invoke(command, ["--help"]).output


def test_a_lake_is_of_one_format(spark: Any, tmp_path: Path) -> None:
    pytest.importorskip("deltalake")
    from analytics.lake.delta import DeltaLake

    write_numbers(tmp_path, 1)
    fill(Lake(spark, plan(tmp_path)))
    with pytest.raises(LakeError, match="has Parquet files, and is no lake of Delta tables"):
        DeltaLake(spark, plan(tmp_path))
    assert payloads_in(spark, tmp_path) == [1]


@pytest.mark.parametrize("number", [1, 2])
def test_a_state_of_a_format_before_is_read(tmp_path: Path, number: int) -> None:
    files = LocalFiles(str(tmp_path))
    before = {
        "format": number, "batch": 4, "query": "q", "position": {"0": {"incarnation": 1, "number": 9}},
        "tables": {"messages": {"schema": {"type": "struct", "fields": []}, "files": {"messages/date=x/b": 7}}},
    }  # fmt: skip
    assert files.write(f"{states.FOLDER}/000000000003.json", json.dumps(before))
    found = states.load(files)
    assert (found.version, found.batch, found.layout, found.pending) == (3, 4, "parquet", None)
    assert found.since == ""
    assert found.tables["messages"] == Table({"type": "struct", "fields": []}, {"messages/date=x/b": 7})
    states.commit(files, found)
    assert states.load(files) == found
