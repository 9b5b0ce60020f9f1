"""A data folder of which one file was lost: all is there, or the start is refused and says what is lost."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
import trio

from broker.wire.packets import Ack, Connect, Publish
from broker.wire.properties import PacketType
from broker.wire.reasons import Reason
from router.log.crc32c import checksum
from router.log.segments import HEADER_COPY_AT
from tests.processes.test_damaged_retained import SMALL, until
from tests.support.embedded import Device
from tests.support.process import BrokerProcess

SESSIONS = [b"session %d" % number for number in range(6)]
QUEUED = [b"queued %d" % number for number in range(5)]
RETAINED = {b"r/%d" % number: b"kept %d" % number for number in range(20)}
TIMEOUT_S = 60


async def connect(
    broker: BrokerProcess, name: bytes, *, clean: bool = False, expiry_s: int = 9999
) -> tuple[Device, bool]:
    device = Device(await trio.open_tcp_stream("127.0.0.1", broker.port), 5)
    await device.send(Connect(5, name, clean, properties={"session_expiry_interval": expiry_s}))
    connack = await device.receive()
    assert connack.reason == Reason.SUCCESS
    return device, connack.session_present


async def write(broker: BrokerProcess, *, compacted: bool, mark: bytes = b"") -> None:
    """Leave sessions that are owed messages, and retained messages, each with a mark in front."""
    with trio.fail_after(TIMEOUT_S):
        for name in SESSIONS:
            session, _ = await connect(broker, name)
            await session.subscribe(b"q/" + name, 1)
            await session.client.stream.aclose()
        publisher, _ = await connect(broker, b"publisher", clean=True, expiry_s=0)
        for topic_name, payload in RETAINED.items():
            await publisher.publish(topic_name, mark + payload, 1, True)
        if compacted:
            for number in range(25):
                await publisher.publish(b"big/%d" % number, bytes(100_000), 1, True)
                await publisher.publish(b"big/%d" % number, b"", 1, True)
            await until(lambda: broker.events("log_compacted"))
        for name in SESSIONS:
            for payload in QUEUED:
                await publisher.publish(b"q/" + name, mark + payload, 1)
        await publisher.client.stream.aclose()


async def lacking(broker: BrokerProcess) -> list[str]:
    """Return what is not there of all that was written."""
    missing = []
    for name in SESSIONS:
        with trio.fail_after(TIMEOUT_S):
            session, present = await connect(broker, name)
        if not present:
            missing.append(f"{name!r}")
        got = []
        with trio.move_on_after(3):
            while present and len(got) < len(QUEUED):
                packet = await session.receive()
                got.append(packet.payload)
                await session.send(Ack(PacketType.PUBACK, packet.packet_identifier))
        if got != QUEUED:
            missing.append(f"{name!r}: {got}")
        await session.client.stream.aclose()
    with trio.fail_after(TIMEOUT_S):
        reader, _ = await connect(broker, b"reader", clean=True, expiry_s=0)
        await reader.subscribe(b"r/#")
    found = {}
    with trio.move_on_after(3):
        while len(found) < len(RETAINED):
            packet = await reader.receive()
            assert isinstance(packet, Publish)
            found[packet.topic] = packet.payload
    if found != RETAINED:
        missing.append(f"{len(found)} retained")
    await reader.client.stream.aclose()
    return missing


def options(workers: int) -> tuple[str, ...]:
    return ("--workers", str(workers))


@pytest.mark.parametrize("empty", [False, True], ids=["deleted", "emptied"])
@pytest.mark.parametrize(("workers", "compacted"), [(1, False), (1, True), (2, False)])
async def test_every_file_lost_in_turn(tmp_path: Path, workers: int, compacted: bool, empty: bool) -> None:
    written = tmp_path / "written"
    written.mkdir()
    with BrokerProcess(written, *options(workers), environment=SMALL) as broker:
        await write(broker, compacted=compacted)
    files = sorted(
        str(path.relative_to(written / "data"))
        for path in (written / "data").rglob("*")
        if path.is_file() or path.is_symlink()
    )
    assert len(files) >= 7, files
    wrong = []
    refused = 0
    for name in files:
        folder = tmp_path / "copy"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        shutil.copytree(written / "data", folder / "data", symlinks=True)
        path = folder / "data" / name
        if empty:
            os.truncate(path, 0)
        else:
            path.unlink()
        broker = BrokerProcess(folder, *options(workers), environment=SMALL)
        try:
            broker.start()
        except AssertionError as error:
            refused += 1
            named = path.name in str(error) or (
                "snapshot" in name and "no snapshot stands for what came before" in str(error)
            )
            if not named or "--accept-loss" not in str(error) or "Traceback" in str(error):
                wrong.append(f"{name}: refused with {error}")
            for accepting in (["--accept-loss"], []):
                with BrokerProcess(folder, *options(workers), *accepting, environment=SMALL):
                    pass
            continue
        missing = await lacking(broker)
        broker.stop()
        if missing:
            wrong.append(f"{name}: started without {missing}")
    assert not wrong, "\n".join(wrong)
    assert refused >= 2


async def test_worker_folders_that_are_gone_or_of_other_workers_are_named(tmp_path: Path) -> None:
    written = tmp_path / "written"
    written.mkdir()
    with BrokerProcess(written, *options(2), environment=SMALL) as broker:
        await write(broker, compacted=False)
    data = written / "data"
    broker = BrokerProcess(written, *options(2), environment=SMALL)
    (data / "worker-0").rename(data / "aside")
    with pytest.raises(AssertionError, match=r"worker-0 is missing.*--accept-loss"):
        broker.start()
    (data / "worker-1").rename(data / "worker-0")
    (data / "aside").rename(data / "worker-1")
    with pytest.raises(AssertionError, match="belongs to worker"):
        broker.start()
    (data / "worker-0").rename(data / "aside")
    (data / "worker-1").rename(data / "worker-0")
    (data / "aside").rename(data / "worker-1")
    with BrokerProcess(written, *options(2), environment=SMALL) as broker:
        assert not await lacking(broker)


async def test_a_folder_of_the_version_before_opens(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path, *options(1), environment=SMALL) as broker:
        await write(broker, compacted=True)
        broker.kill()
        incarnation = tmp_path / "data/worker-0/incarnation"
        number, durability, _, _ = incarnation.read_text().split()
        incarnation.write_text(f"{number} {durability}\n")
        shutil.rmtree(tmp_path / "data/retained-copy")
        broker.start()
        assert not await lacking(broker)
        await until(lambda: broker.events("retained_copied_anew"))


async def test_what_a_newer_version_wrote_is_called_that_without_a_hint_to_lose_it(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path, *options(1)) as broker:
        await write(broker, compacted=False)
    path = tmp_path / "data/worker-0/segment-000000000001.log"
    content = bytearray(path.read_bytes())
    for at in (0, HEADER_COPY_AT):
        content[at + 8] += 1
        content[at + 60 : at + 64] = checksum(bytes(content[at : at + 60])).to_bytes(4, "little")
    path.write_bytes(content)
    with pytest.raises(AssertionError, match="A newer version of Shoal wrote this") as refused:
        BrokerProcess(tmp_path, *options(1)).start()
    assert "--accept-loss" not in str(refused.value)
