"""`shoal backup` and `shoal restore`: what was there is there again, and nothing else is taken for it."""

from __future__ import annotations

import fcntl
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from broker.cli.main import main
from broker.storage import backup
from broker.storage.backup import ATTEMPTS, INCARNATIONS_SKIPPED, MANIFEST, BackupError, DamagedError, back_up, restore
from router.log.disk import Disk
from router.log.log_writer import Log
from router.log.segments import RECORDS_AT, segment_name
from tests.support.commit_logs import open_log, read_log, turn, whole

ROOT = Path(__file__).resolve().parents[2]
NOW_US = 1_795_258_800_000_000


def shoal(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def write(folder: Path, *turns: int, close: bool = True, **options: Any) -> Log:
    path = folder / "worker-0"
    path.mkdir(parents=True, exist_ok=True)
    (path / "incarnation").write_text("5\n")
    log, _ = open_log(Disk(str(path)), **{"incarnation": 5, "segment_bytes_max": RECORDS_AT + 1, **options})
    for number in turns:
        log.append(turn(log, number))
        assert log.commit()
    if close:
        assert log.close()
    return log


def records(folder: Path) -> list[int]:
    segments, found = read_log(Disk(str(folder / "worker-0")))
    assert segments.damages == []
    return whole(found)


def content(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def segment(folder: Path, number: int) -> Path:
    return folder / "worker-0" / segment_name(number)


def test_who_the_node_is_and_how_its_sessions_are_spread_is_backed_up_for_the_owner_only(tmp_path: Path) -> None:
    data, copy, new = (tmp_path / name for name in ("data", "copy", "new"))
    write(data, 3)
    (data / "node").write_text('{"secret": "00"}')
    (data / "workers").write_text("3\n")
    assert shoal("backup", copy, "--data-dir", data).exit_code == 0
    assert shoal("restore", copy, "--data-dir", new).exit_code == 0
    for name in ("node", "workers"):
        assert (new / name).read_bytes() == (data / name).read_bytes()
        assert {folder.joinpath(name).stat().st_mode & 0o777 for folder in (copy, new)} == {0o600}


def test_what_was_backed_up_is_there_again_with_a_higher_incarnation(tmp_path: Path) -> None:
    data, copy, new = (tmp_path / name for name in ("data", "copy", "new"))
    write(data, 3, 4, 5)
    (data / "worker-0" / "snapshot-000000000001.log").write_bytes(b"a snapshot")
    (data / "worker-0" / "segment-000000000001.log.torn-99").write_bytes(b"for people")
    (data / "lock").write_text("1\n")
    before = content(data)
    result = shoal("backup", copy, "--data-dir", data)
    assert result.exit_code == 0
    assert result.stdout.startswith(f"{copy}: worker 0 up to record 12; 5 files, ")
    assert content(data) == before
    assert content(copy).keys() == before.keys() - {"lock", "worker-0/segment-000000000001.log.torn-99"} | {MANIFEST}
    result = shoal("restore", copy, "--data-dir", new)
    assert result.exit_code == 0
    assert result.stdout.startswith(f"{new}: worker 0 up to record 12; 5 files, ")
    assert records(new) == list(range(1, 13))
    restored = content(new)
    assert restored.pop("worker-0/incarnation") == b"%d restored\n" % (5 + INCARNATIONS_SKIPPED)
    del restored["lock"]
    assert restored == {name: before[name] for name in restored}
    assert len(restored) == 4


def test_a_backup_can_be_looked_into_as_a_data_folder(tmp_path: Path) -> None:
    write(tmp_path / "data", 3, 4)
    back_up(tmp_path / "data", tmp_path / "copy", NOW_US)
    assert shoal("log", "verify", "--data-dir", tmp_path / "copy").exit_code == 0
    assert len(shoal("log", "cat", "--data-dir", tmp_path / "copy").stdout.splitlines()) == 7


def test_what_is_unfinished_at_the_end_is_not_copied(tmp_path: Path) -> None:
    data, copy = tmp_path / "data", tmp_path / "copy"
    write(data, 3, 4, close=False)
    with segment(data, 2).open("ab") as file:
        file.write(b"half a record")
    segment(data, 3).write_bytes(b"SHOALSEG")  # only begun
    manifest = back_up(data, copy, NOW_US)
    assert manifest.workers == {0: {"first_number": 1, "last_number": 7, "incarnation": 5}}
    assert records(copy) == list(range(1, 8))
    restore(copy, folder(tmp_path / "new"))
    assert records(tmp_path / "new") == list(range(1, 8))


def folder(path: Path) -> Path:
    path.mkdir()
    return path


def test_a_log_without_records_can_be_backed_up(tmp_path: Path) -> None:
    (tmp_path / "data" / "worker-0").mkdir(parents=True)
    manifest = back_up(tmp_path / "data", tmp_path / "copy", NOW_US)
    assert manifest.workers == {0: {"first_number": 0, "last_number": 0, "incarnation": 0}}
    restore(tmp_path / "copy", folder(tmp_path / "new"))
    assert (tmp_path / "new" / "worker-0" / "incarnation").read_text() == f"{INCARNATIONS_SKIPPED} restored\n"


def test_everything_that_was_durable_before_is_in_a_backup_of_a_log_that_is_written(tmp_path: Path) -> None:
    data = tmp_path / "data"
    log = write(data, 3, close=False, durability="os", segment_bytes_max=20_000)
    ended = threading.Event()

    def work() -> None:
        while not ended.is_set():
            log.append(turn(log, 20))
            log.commit()

    thread = threading.Thread(target=work)
    thread.start()
    try:
        for number in range(5):
            copy = tmp_path / f"copy-{number}"
            durable = log.durable
            manifest = back_up(data, copy, NOW_US)
            found = records(copy)
            assert found == list(range(1, manifest.workers[0]["last_number"] + 1))
            assert len(found) >= durable
            restore(copy, folder(tmp_path / f"new-{number}"))
            assert records(tmp_path / f"new-{number}") == found
    finally:
        ended.set()
        thread.join()
        log.close()


def after(count: int, change: Callable[[], None]) -> Callable[[int], None]:
    """Return a progress that changes something when it is called for so many times."""
    calls = 0

    def progress(length: int) -> None:
        nonlocal calls
        calls += 1
        if calls == count:
            change()

    return progress


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_segments_that_are_removed_meanwhile_are_not_in_the_backup(tmp_path: Path, count: int) -> None:
    data, copy = tmp_path / "data", tmp_path / "copy"
    log = write(data, 3, 4, 5, 6, close=False)

    def remove() -> None:
        log.discard(3)
        log.commit()
        log.append(turn(log, 2))
        log.commit()

    manifest = back_up(data, copy, NOW_US, after(count, remove))
    log.close()
    assert manifest.workers[0] == {"first_number": 8, "last_number": 20, "incarnation": 5}
    assert records(copy) == list(range(8, 21))
    assert sorted(manifest.files) == [
        "worker-0/incarnation",
        *(f"worker-0/{segment_name(number)}" for number in (3, 4, 5)),
    ]
    restore(copy, folder(tmp_path / "new"))
    assert records(tmp_path / "new") == list(range(8, 21))


def test_a_broker_that_removes_files_faster_than_they_are_copied_ends_it(tmp_path: Path) -> None:
    data, copy = tmp_path / "data", tmp_path / "copy"
    log = write(data, 1, 1, 1, close=False)

    def progress(length: int) -> None:
        log.discard(log.headers[1].segment)
        log.commit()
        log.append(turn(log, 1))
        log.commit()

    with pytest.raises(BackupError, match=f"faster than they were copied, {ATTEMPTS} times over"):
        back_up(data, copy, NOW_US, progress)
    assert content(copy) == {}
    log.close()


def test_an_error_leaves_no_half_backup(tmp_path: Path) -> None:
    write(tmp_path / "data", 3, 4)

    def fail() -> None:
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space left"):
        back_up(tmp_path / "data", tmp_path / "copy", NOW_US, after(2, fail))
    assert list((tmp_path / "copy").iterdir()) == []
    back_up(tmp_path / "data", tmp_path / "copy", NOW_US)
    with pytest.raises(OSError, match="No space left"):
        restore(tmp_path / "copy", folder(tmp_path / "new"), after(2, fail))
    assert list((tmp_path / "new").iterdir()) == []


def test_what_an_interrupted_restore_has_left_is_in_nobodys_way(tmp_path: Path) -> None:
    write(tmp_path / "data", 3, 4)
    back_up(tmp_path / "data", tmp_path / "copy", NOW_US)
    left = tmp_path / "new" / "restore-unfinished" / "worker-0"
    left.mkdir(parents=True)
    (left / segment_name(9)).write_bytes(b"left")
    restore(tmp_path / "copy", tmp_path / "new")
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == ["worker-0"]
    assert records(tmp_path / "new") == list(range(1, 8))


# What is refused -----------------------------------------------------------------------------------------------------


def backed_up(tmp_path: Path) -> Path:
    write(tmp_path / "data", 3, 4)
    back_up(tmp_path / "data", tmp_path / "copy", NOW_US)
    return tmp_path / "copy"


def refused(tmp_path: Path, exit_code: int, sentence: str) -> None:
    result = shoal("restore", tmp_path / "copy", "--data-dir", tmp_path / "new")
    assert (result.exit_code, result.stdout) == (exit_code, "")
    assert sentence in result.stderr
    assert "\n" not in result.stderr.strip()
    assert not (tmp_path / "new" / "worker-0").exists()
    assert not (tmp_path / "new" / "restore-unfinished").exists()


def test_a_damaged_file_is_named_and_nothing_is_restored(tmp_path: Path) -> None:
    path = segment(backed_up(tmp_path), 2)
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(bytes(data))
    refused(tmp_path, 1, f"shoal: {path} is damaged: its check sum is ")
    path.write_bytes(bytes(data[:-1]))
    refused(tmp_path, 1, f"shoal: {path} is damaged: its length is {len(data) - 1:,} bytes, not {len(data):,}.")
    path.unlink()
    refused(tmp_path, 1, f"shoal: {path} is missing.")


def test_a_folder_without_a_manifest_is_no_backup(tmp_path: Path) -> None:
    copy = backed_up(tmp_path)
    (copy / MANIFEST).unlink()
    refused(tmp_path, 2, f"shoal: {copy} is not a backup: it has no manifest.json")
    result = shoal("restore", tmp_path / "nowhere", "--data-dir", tmp_path / "new")
    assert (result.exit_code, "is not a backup" in result.stderr) == (2, True)


def change(manifest: dict[str, Any], *path: Any, to: Any) -> None:
    for step in path[:-1]:
        manifest = manifest[step]
    manifest[path[-1]] = to


@pytest.mark.parametrize(
    ("path", "to", "exit_code", "sentence"),
    [
        (["shoal_backup"], 2, 2, "the backup has version 2; this version of Shoal reads 1"),
        (["files", 0, "name"], "../escaped", 1, "manifest.json is damaged"),
        (["files", 0, "name"], "worker-0/../../escaped", 1, "manifest.json is damaged"),
        (["files", 0, "name"], "/etc/escaped", 1, "manifest.json is damaged"),
        (["files", 0, "name"], f"worker-0/{segment_name(1)}", 1, "manifest.json is damaged"),
        (["files", 0, "bytes"], "2", 1, "manifest.json is damaged"),
        (["files", 0, "crc32c"], "none", 1, "manifest.json is damaged"),
        (["files"], None, 1, "manifest.json is damaged"),
        (["workers"], {}, 1, "it does not say which records there are"),
        (["workers"], {"0": {}}, 1, "manifest.json is damaged"),
        (["made_us"], None, 1, "manifest.json is damaged"),
    ],
)
def test_a_manifest_is_checked_before_it_is_followed(
    tmp_path: Path, path: list[Any], to: Any, exit_code: int, sentence: str
) -> None:
    file = backed_up(tmp_path) / MANIFEST
    manifest = json.loads(file.read_text())
    change(manifest, *path, to=to)
    file.write_text(json.dumps(manifest))
    refused(tmp_path, exit_code, sentence)
    for text in ("", "[]", "[" * 100_000, "\xff", "{"):
        file.write_text(text, encoding="latin-1")
        refused(tmp_path, 1, "manifest.json is damaged")


def test_a_folder_that_is_not_empty_is_left_alone(tmp_path: Path) -> None:
    copy = backed_up(tmp_path)
    result = shoal("backup", copy, "--data-dir", tmp_path / "data")
    assert (result.exit_code, result.stderr) == (2, f"shoal: {copy} is not empty.\n")
    new = folder(tmp_path / "new")
    (new / "mine").write_text("mine")
    result = shoal("restore", copy, "--data-dir", new)
    assert (result.exit_code, result.stderr) == (2, f"shoal: the data folder {new} is not empty: it has mine.\n")
    with pytest.raises(BackupError, match="is not empty: it has mine"):
        restore(copy, new)
    assert content(new) == {"mine": b"mine"}


def test_a_data_folder_that_is_in_use_is_left_alone(tmp_path: Path) -> None:
    copy = backed_up(tmp_path)
    new = folder(tmp_path / "new")
    with open(new / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        result = shoal("restore", copy, "--data-dir", new)
    assert result.exit_code == 2
    assert f"shoal: The data folder {new} is in use by the broker with process id " in result.stderr
    assert list(new.iterdir()) == [new / "lock"]


def test_a_backup_needs_a_log(tmp_path: Path) -> None:
    result = shoal("backup", tmp_path / "copy", "--data-dir", tmp_path / "nowhere")
    assert (result.exit_code, "there is no data folder" in result.stderr) == (2, True)
    result = shoal("backup", tmp_path / "copy", "--data-dir", folder(tmp_path / "data"))
    assert (result.exit_code, "there is no log in" in result.stderr) == (2, True)
    assert not (tmp_path / "copy").exists()


def test_an_incarnation_that_is_no_number_is_damage(tmp_path: Path) -> None:
    write(tmp_path / "data", 3)
    (tmp_path / "data" / "worker-0" / "incarnation").write_text("five")
    with pytest.raises(DamagedError, match="worker-0/incarnation does not hold the number of the worker's last run"):
        back_up(tmp_path / "data", tmp_path / "copy", NOW_US)


# Retained messages ---------------------------------------------------------------------------------------------------

FILL = """
import sys
from router.core.message import message
from router.retained.lmdb_index import RetainedIndex
index = RetainedIndex(sys.argv[1])
for number in range(1, 1001):
    index.store(message(b"%d" % number, b"value" * 20, retain=True), stamp_us=number, now_ms=0, record=number)
    assert index.commit(number)
    if number == 500:
        print("ready", flush=True)
print("done", flush=True)
sys.stdin.read()
"""


def test_the_retained_messages_are_copied_while_they_are_written(tmp_path: Path) -> None:
    lmdb = pytest.importorskip("lmdb")
    data, copy, new = tmp_path / "data", tmp_path / "copy", folder(tmp_path / "new")
    write(data, 3)
    folder(data / "retained")
    command = [sys.executable, "-c", FILL, str(data / "retained")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == b"ready\n"
        back_up(data, copy, NOW_US)
        assert writer.stdout.readline() == b"done\n"
        writer.communicate()
    restore(copy, new)
    with lmdb.open(str(new / "retained"), max_dbs=2) as environment, environment.begin() as transaction:
        topics = environment.open_db(b"topics", txn=transaction, create=False)
        found = {bytes(key) for key, _ in transaction.cursor(topics)}
    assert len(found) >= 500
    assert found == {b"%d" % number for number in range(1, len(found) + 1)}


@pytest.mark.parametrize("damage", ["page", "value", "found while it was used"])
def test_damaged_retained_messages_are_named_and_no_copy_is_made(tmp_path: Path, damage: str) -> None:
    pytest.importorskip("lmdb")
    data = tmp_path / "data"
    write(data, 3)
    folder(data / "retained")
    subprocess.run(
        [sys.executable, "-c", FILL, str(data / "retained")],
        cwd=ROOT,
        check=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
    )
    path = data / "retained" / "data.mdb"
    content = bytearray(path.read_bytes())
    if damage == "value":
        for at in [found.start() for found in re.finditer(b"valuevalue", content)]:
            content[at] ^= 1
    elif damage == "page":
        for page in range(2, len(content) // 4096):
            content[page * 4096 + 12] ^= 0x80  # where its entries end
    else:
        (data / "retained" / "damaged").touch()
    path.write_bytes(content)
    before = path.read_bytes()
    for command in (["backup", tmp_path / "copy"], ["log", "verify"]):
        # In a process of its own: LMDB may end who reads a damaged page.
        done = subprocess.run(
            [sys.executable, "-m", "broker.cli.main", *map(str, command), "--data-dir", str(data)],
            cwd=ROOT,
            check=False,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 1, done
        assert f"{data / 'retained'} is damaged: " in done.stdout + done.stderr
    assert list((tmp_path / "copy").iterdir()) == []
    assert path.read_bytes() == before


def test_damaged_retained_messages_are_one_sentence(tmp_path: Path) -> None:
    pytest.importorskip("lmdb")
    write(tmp_path / "data", 3)
    folder(tmp_path / "data" / "retained")
    (tmp_path / "data" / "retained" / "data.mdb").write_bytes(os.urandom(8192))
    result = shoal("backup", tmp_path / "copy", "--data-dir", tmp_path / "data")
    assert result.exit_code == 1
    assert f"shoal: {tmp_path / 'data' / 'retained'} is damaged: MDB_INVALID" in result.stderr
    assert list((tmp_path / "copy").iterdir()) == []


def test_a_segment_that_goes_while_the_retained_messages_are_copied_has_them_copied_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What the index has not applied is in the log: were a segment removed after the index was copied and before the
    # log was listed, it might be in neither.
    log = write(tmp_path / "data", 3, 4, 5, close=False)
    copied = []

    def copy_retained(*arguments: Any) -> None:
        copied.append(arguments)
        if len(copied) == 1:
            log.discard(2)
            log.commit()

    monkeypatch.setattr(backup, "_copy_retained", copy_retained)
    manifest = back_up(tmp_path / "data", tmp_path / "copy", NOW_US)
    log.close()
    assert len(copied) == 2
    assert manifest.workers[0]["first_number"] == 4
