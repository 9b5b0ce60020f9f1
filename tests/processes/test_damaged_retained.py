"""A broker whose index of retained messages, or its second copy, was damaged while it was away."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest
import trio

from tests.processes.test_retained import client, publish
from tests.support.process import BrokerProcess

TOPICS = 4000
MEBIBYTE = 1_048_576
SMALL = {"SHOAL_STORAGE__SEGMENT_BYTES_MAX": str(MEBIBYTE), "SHOAL_STORAGE__COMPACT_BYTES": str(MEBIBYTE)}
PAGE = 4096


def payload(number: int) -> bytes:
    return b"payload of %d " % number * (200 if number % 100 == 0 else 20)


KEPT = {b"site/%d/device/%d" % (number % 7, number): payload(number) for number in range(TOPICS)}
CLEARED = [b"cleared/%d" % number for number in range(50)]
LATER = {b"later/%d" % number: b"still in the log" for number in range(10)}
EXPECTED = {**KEPT, **LATER}


async def retained(broker: BrokerProcess, count: int, topic_filter: bytes = b"#") -> dict[bytes, bytes]:
    """Return what a new subscriber gets until it is so much; less, if no more comes."""
    found = {}
    async with client(broker, b"reader") as reader:
        await reader.subscribe(topic_filter)
        with trio.move_on_after(20):
            while len(found) < count:
                packet = await reader.receive()
                assert packet.retain
                found[packet.topic] = packet.payload
    return found


async def until(happened: Callable[[], object]) -> None:
    with trio.fail_after(60):
        while not happened():  # noqa: ASYNC110  (a broker's log lines and files: nothing to await)
            await trio.sleep(0.05)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the data folder of a broker that has ended, whose log begins behind most of its retained messages."""
    folder = tmp_path_factory.mktemp("written")

    async def write() -> None:
        with BrokerProcess(folder, environment=SMALL) as broker:
            await publish(broker, dict.fromkeys(CLEARED, b"once") | KEPT)
            await publish(broker, dict.fromkeys(CLEARED, b""))
            await publish(broker, {b"filling/%d" % number: bytes(100_000) for number in range(21)})
            await publish(broker, {b"filling/%d" % number: b"" for number in range(21)})
            await until(lambda: not (folder / "data/worker-0/segment-000000000001.log").exists())
            await publish(broker, LATER)

    trio.run(write)
    return folder / "data"


@pytest.fixture
def data(written: Path, tmp_path: Path) -> Path:
    return shutil.copytree(written, tmp_path / "data", symlinks=True)


def change(path: Path, changing: Callable[[bytearray], None]) -> None:
    content = bytearray(path.read_bytes())
    changing(content)
    path.write_bytes(content)


def pages_with(content: bytearray, text: bytes) -> list[int]:
    return [page for page in range(2, len(content) // PAGE) if text in content[page * PAGE : (page + 1) * PAGE]]


def in_page(text: bytes, fill: Callable[[Random], bytes]) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        def changing(content: bytearray) -> None:
            for page in pages_with(content, text)[3:6]:
                content[page * PAGE : (page + 1) * PAGE] = fill(Random(page))

        change(folder / "retained/data.mdb", changing)

    return damage


def every_page(folder: Path) -> None:
    """Zero each seventh page, the meta pages not."""

    def changing(content: bytearray) -> None:
        for page in range(2, len(content) // PAGE, 7):
            content[page * PAGE : (page + 1) * PAGE] = bytes(PAGE)

    change(folder / "retained/data.mdb", changing)


def flipped(text: bytes, at: int) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        def changing(content: bytearray) -> None:
            place = content.find(text)
            assert place > 0
            while place > 0:  # in pages that are free now, too
                content[place + at] ^= 0x04
                place = content.find(text, place + 1)

        change(folder / "retained/data.mdb", changing)

    return damage


DAMAGES: dict[str, Callable[[Path], None]] = {
    "zeroed": in_page(b"payload of", lambda random: bytes(PAGE)),
    "random": in_page(b"payload of", lambda random: random.randbytes(PAGE)),
    "random behind a header": in_page(
        b"payload of", lambda random: bytes(8) + b"\0\0\2\0" + random.randbytes(PAGE - 12)
    ),
    "every seventh page zeroed": every_page,
    "first meta page": lambda folder: change(
        folder / "retained/data.mdb", lambda content: content.__setitem__(slice(0, PAGE), bytes(PAGE))
    ),
    "cut in the middle": lambda folder: os.truncate(
        folder / "retained/data.mdb", (folder / "retained/data.mdb").stat().st_size // 2
    ),
    "cut within a page": lambda folder: os.truncate(folder / "retained/data.mdb", PAGE + 100),
    "emptied": lambda folder: os.truncate(folder / "retained/data.mdb", 0),
    "deleted": lambda folder: os.unlink(folder / "retained/data.mdb"),
    "folder deleted": lambda folder: shutil.rmtree(folder / "retained"),
    "bit of a value": flipped(b"payload of 1717 payload", 3),
    "bit of a key": flipped(b"site\0003\0device\0003020", 18),
    "bit of a stamp": flipped(b"site/3/device/3020", -20),
    "lock file": lambda folder: (folder / "retained/lock.mdb").write_bytes(Random(1).randbytes(8192)) and None,
}


@pytest.mark.parametrize("damage", DAMAGES)
async def test_whatever_is_damaged_in_the_index_every_retained_message_is_there(data: Path, damage: str) -> None:
    DAMAGES[damage](data)
    with BrokerProcess(data.parent, environment=SMALL) as broker:
        assert await retained(broker, len(EXPECTED)) == EXPECTED
        await publish(broker, {b"later/1": b"new", b"site/1/device/1": b""})
        broker.stop()
        broker.start()
        expected = EXPECTED | {b"later/1": b"new"}
        del expected[b"site/1/device/1"]
        assert await retained(broker, len(expected)) == expected
        assert broker.events("retained_damaged") or damage == "lock file"


COPY_DAMAGES: dict[str, Callable[[Path], None]] = {
    "folder deleted": lambda folder: shutil.rmtree(folder / "retained-copy"),
    "manifest deleted": lambda folder: os.unlink(folder / "retained-copy/manifest"),
    "manifest emptied": lambda folder: os.truncate(folder / "retained-copy/manifest", 0),
    "run deleted": lambda folder: min((folder / "retained-copy").glob("run-*")).unlink(),
    "run emptied": lambda folder: os.truncate(min((folder / "retained-copy").glob("run-*")), 0),
    "bit of a run": lambda folder: change(
        min((folder / "retained-copy").glob("run-*")), lambda content: content.__setitem__(5000, content[5000] ^ 1)
    ),
}


@pytest.mark.parametrize("damage", COPY_DAMAGES)
async def test_a_start_without_index_and_copy_is_refused_unless_the_loss_is_accepted(data: Path, damage: str) -> None:
    COPY_DAMAGES[damage](data)
    DAMAGES["zeroed"](data)
    before = {path: path.read_bytes() for path in sorted((data / "retained").rglob("*")) if path.name != "lock.mdb"}
    broker = BrokerProcess(data.parent, environment=SMALL)
    for _ in range(2):
        with pytest.raises(AssertionError, match=r"retained messages are lost.*page.*--accept-loss"):
            broker.start()
        assert {path: path.read_bytes() for path in before} == before
    with BrokerProcess(data.parent, "--accept-loss", environment=SMALL) as broker:
        assert await retained(broker, len(LATER), b"later/#") == LATER
    with BrokerProcess(data.parent, environment=SMALL) as broker:
        assert await retained(broker, len(LATER), b"later/#") == LATER


@pytest.mark.parametrize("damage", COPY_DAMAGES)
async def test_a_damaged_copy_is_made_anew_of_the_index(data: Path, damage: str) -> None:
    COPY_DAMAGES[damage](data)
    more = {b"more/%d" % number: bytes(100_000) for number in range(25)}
    with BrokerProcess(data.parent, environment=SMALL) as broker:
        if damage == "bit of a run":  # found when it is read, by the next that makes a snapshot
            await publish(broker, more)
        await until(lambda: broker.events("retained_copied_anew"))
        broker.stop()
        DAMAGES["zeroed"](data)
        broker.start()
        expected = EXPECTED | (more if damage == "bit of a run" else {})
        assert await retained(broker, len(expected)) == expected
