"""A data folder in which one file was exchanged with another broker's: that is noticed, and none of it counts."""

from __future__ import annotations

import shutil
from pathlib import Path

import lmdb
import pytest

from router.log.crc32c import checksum
from router.log.segments import HEADER_COPY_AT
from router.retained.lmdb_environment import NODE_KEY
from tests.processes.test_lost_files import SMALL, lacking, options, write
from tests.support.log_folders import shoal
from tests.support.process import BrokerProcess

FOREIGN = "belongs to another broker's data folder"


@pytest.mark.parametrize(("workers", "compacted"), [(1, False), (1, True), (2, False)])
async def test_every_file_exchanged_in_turn(tmp_path: Path, workers: int, compacted: bool) -> None:
    folders = {}
    for mark in (b"", b"other "):
        folder = tmp_path / f"written {mark.decode()}"
        folder.mkdir()
        with BrokerProcess(folder, *options(workers), environment=SMALL) as broker:
            await write(broker, compacted=compacted, mark=mark)
        folders[mark] = folder / "data"
    mine, other = folders.values()
    files = sorted(
        str(path.relative_to(mine))
        for path in mine.rglob("*")
        if path.is_file() and (other / path.relative_to(mine)).is_file()
    )
    assert {Path(name).name.partition("-")[0] for name in files} >= {"segment", "node", "data.mdb"}
    assert any("snapshot" in name for name in files) == compacted
    wrong, refused, named_by_verify = [], set(), set()
    for name in files:
        folder = tmp_path / "copy"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        shutil.copytree(mine, folder / "data")
        path = folder / "data" / name
        shutil.copyfile(other / name, path)
        verdict = shoal("log", "verify", "--data-dir", folder / "data")
        if FOREIGN in verdict.stdout:
            assert verdict.exit_code == 1
            assert (path.parent.name if path.name == "data.mdb" else path.name) in verdict.stdout
            named_by_verify.add(path.name.partition("-")[0])
        broker = BrokerProcess(folder, *options(workers), environment=SMALL)
        try:
            broker.start()
        except AssertionError as error:
            refused.add(path.name.partition("-")[0])
            if f"{path.name} {FOREIGN}" not in str(error) or "--accept-loss" not in str(error):
                wrong.append(f"{name}: refused with {error}")
            for accepting in (["--accept-loss"], []):
                with BrokerProcess(folder, *options(workers), *accepting, environment=SMALL):
                    pass
            assert FOREIGN not in shoal("log", "verify", "--data-dir", folder / "data").stdout
            continue
        missing = await lacking(broker)
        broker.stop()
        if missing:
            wrong.append(f"{name}: started without {missing}")
    assert not wrong, "\n".join(wrong)
    assert refused == {"segment", "node"} | ({"snapshot"} if compacted else set())
    assert named_by_verify == refused | {"data.mdb"}


async def test_a_folder_whose_files_do_not_say_whose_they_are_opens_and_says_so_from_then_on(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path, *options(1), environment=SMALL) as broker:
        await write(broker, compacted=True)
        broker.stop()
        data = tmp_path / "data"
        (data / "node").unlink()
        # As the versions before wrote them.
        for path in (data / "worker-0").glob("*-*.log"):
            content = bytearray(path.read_bytes())
            for at in (0, HEADER_COPY_AT):
                content[at + 8 : at + 10] = b"\1\0"
                content[at + 48 : at + 60] = bytes(12)
                content[at + 60 : at + 64] = checksum(bytes(content[at : at + 60])).to_bytes(4, "little")
            path.write_bytes(content)
        with lmdb.open(str(data / "retained"), max_dbs=4) as environment:
            meta = environment.open_db(b"meta")
            with environment.begin(write=True, db=meta) as transaction:
                assert transaction.delete(NODE_KEY)
        assert shoal("log", "verify", "--data-dir", data).exit_code == 0
        broker.start()
        assert not await lacking(broker)
        broker.stop()
        assert (data / "node").exists()
        (data / "node").unlink()
        with pytest.raises(AssertionError, match=r"node is missing.*--accept-loss"):
            broker.start()


async def test_a_backup_that_is_restored_is_the_same_node(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    second.mkdir()
    with BrokerProcess(first, *options(1), environment=SMALL) as broker:
        await write(broker, compacted=True)
        assert shoal("backup", tmp_path / "copy", "--data-dir", first / "data").exit_code == 0
    assert shoal("log", "verify", "--data-dir", tmp_path / "copy").exit_code == 0
    assert shoal("restore", tmp_path / "copy", "--data-dir", second / "data").exit_code == 0
    # What was written before the backup may lie beside what was written after it.
    with BrokerProcess(second, *options(2), environment=SMALL) as broker:
        assert not await lacking(broker)
    assert shoal("log", "verify", "--data-dir", second / "data").exit_code == 0
