"""docs/formats.md is true: its tables are those of the code, and its words are enough to read what was ever written."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgpack
import pytest

from router.core.message import message
from router.log.crc32c import checksum
from router.log.record_buffer import RecordBuffer, sealed
from router.log.record_kinds import FORMAT_VERSION, KINDS
from router.log.segments import HEADER as LAYOUT
from router.log.segments import RECORDS_AT, Header, segment_name
from tests.support.commit_logs import read_log
from tests.support.disk import SimulatedDisk

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "formats.md").read_text(encoding="utf-8")
# What each version wrote. These files are never made again: they are what is on somebody's disk.
SEGMENTS = {version: ROOT / "tests" / "data" / f"segment-v{version}.bin" for version in (1, 2, 3, 4, 5)}
HEADERS = {1: Header(worker=3, incarnation=7, mark=0xC0FFEE42, segment=5, first_number=2**32 - 3,
                     created_us=1_795_250_000_000_000, rules=1, version=1)}  # fmt: skip
HEADERS[2] = replace(HEADERS[1], version=2, owner=0xA1B2C3D4E5F60718)
HEADERS[3] = replace(HEADERS[2], version=3)
HEADERS[4] = replace(HEADERS[3], version=4)
HEADERS[5] = replace(HEADERS[4], version=5)
HEADER = HEADERS[FORMAT_VERSION]
TIME_US = 1_795_250_000_000_000

# What the bytes hold, in their order.
MESSAGES = [
    {
        "n": 2**32 - 3, "topic_name": b"a/b", "publisher": b"", "packet_identifier": 0, "qos": 0, "retain": True,
        "will": False, "picked": False, "expires_us": 0, "expiry_offset": -1, "peers": (), "properties": b"",
        "payload": b"",
    },
    {
        "n": 2**32 - 2, "topic_name": "t/é".encode(), "publisher": b"client", "packet_identifier": 513, "qos": 2,
        "retain": False, "will": False, "picked": False, "expires_us": TIME_US + 5_000_001, "expiry_offset": 1,
        "peers": (1, 2**32 - 1),
        "properties": b"\x02\x00\x00\x00\x05", "payload": b"\x00\xffpayload",
    },
    {
        "n": 2**32 - 1, "topic_name": b"gone", "publisher": b"client", "packet_identifier": 0, "qos": 2,
        "retain": True, "will": True, "picked": False, "expires_us": 0, "expiry_offset": -1, "peers": (),
        "properties": b"\x01\x01", "payload": b"\x00",
    },
]  # fmt: skip
OTHERS: list[tuple[str, list[Any]]] = [
    ("session", [b"client", 3600]),
    ("detached", [b"client", 4_294_967_295, 2**40]),
    ("ended", [b"client"]),
    ("subscribe", [b"client", b"$share/g/a/#", 0x2E, 268_435_455]),
    ("unsubscribe", [b"client", b"a/+"]),
    ("will", [b"client", b"gone", b"\x00", b"\x01\x01", 2, True, 30, -1, -1, b"ann", False]),
    ("will_removed", [b"client"]),
    ("dropped", [b"client", 2**40, "queue_full"]),
    ("shared_pick", [b"g/a/#", b"client"]),
    ("peer", [1, b"node-a/12", 2**40]),
    ("delivery", [b"client", 2**40, 268_435_456, 1, True, b"\x0b\x01", b"g/a/#", b"other", 7]),
    ("skipped", [b"client", "queue_full"]),
    ("replay", [b"client", b"$replay/-1h/a/#", 1, 268_435_455, 2**40, -1]),
    ("shifted", [b"client", 2**40, 32_767]),
    ("renumbered", [b"client", 2**40, 2**33]),
    ("peer_acknowledged", [9, 2**40]),
    ("snapshot", [2**40, TIME_US]),
    (
        "deliveries",
        [
            b"client",
            7,
            9,
            [
                [4, 0, 3, 2, 3, False, b"", b""],
                [6, 2**40, 12, 1, 2, True, b"\x0b\x01\x0b\x02", b""],
                [8, 2**40 + 1, 268_435_456, 2, 1, False, b"", b"g/a/#"],
            ],
        ],
    ),
    ("incoming", [b"client", [1, 65535]]),
    ("replay_in_logs", [b"client", b"$replay/-1h/a/#", 1, 268_435_455, -1, [0, 2**40, 7, 0]]),
    ("peer_heard", [1, 7, 2**40]),
    ("incoming_messages", [b"client", [[1, 0], [65535, 16383]]]),
    ("snapshot_end", [4, struct.pack("<4Q", 2**40, 4160, 2**40 + 1, 4260)]),
    ("fenced", [b"client", b"a/+", [1, 7, 2**40, 12, 2**32 - 1, 1]]),
    ("mounted", [b"client", b"plant/"]),
    ("principal", [b"client", msgpack.packb(["ann", "192.0.2.1", 0, None, ["a"], False, None])]),
    ("readers", [[b"client", b"other"]]),
]
# Kinds that there are from a later version on; they come last.
SINCE = {"fenced": 3, "mounted": 4, "principal": 5, "readers": 5}


def make_segment() -> bytes:
    """Return a segment with a record of every kind, as today's code writes it."""
    buffer = RecordBuffer(HEADER.first_number - 1)
    plain, full, will = MESSAGES
    buffer.add_accepted(TIME_US, plain["n"], message(plain["topic_name"], b"", 0, True))
    buffer.add_accepted(
        TIME_US + 1, full["n"], message(full["topic_name"], full["payload"], 2, False, full["properties"], 1, 0, 5_000),
        full["publisher"], full["packet_identifier"], full["peers"], 0,
    )  # fmt: skip
    buffer.add_accepted(
        TIME_US + 2, will["n"], message(will["topic_name"], will["payload"], 2, True, will["properties"]),
        will["publisher"], will=True,
    )  # fmt: skip
    copied = SimulatedDisk()
    first = RecordBuffer(HEADER.first_number - 1)
    first.take(buffer)
    first.stamp(HEADER.mark)
    copied.put(HEADER.name, whole_segment(bytes(memoryview(first))))
    segments, _ = read_log(copied, worker=3)
    for cursor in segments.cursors():
        while cursor.step():
            if cursor.fields()["n"] == full["n"]:
                buffer.add_copy(cursor, TIME_US + 3, 9, 6)
                buffer.add_stored(cursor, 6)
    buffer.add_acknowledged(TIME_US + 5, b"client", 4, 65535, 0x80)
    buffer.add_released(TIME_US + 6, b"client", 513)
    buffer.add_forwarded(TIME_US + 7, message(plain["topic_name"], b"", 0, True), 9, 6, 2**40, True)
    for index, (kind, values) in enumerate(OTHERS):
        buffer.add(kind, TIME_US + 8 + index, *values)
    last_number = buffer.last_number
    first = RecordBuffer(MESSAGES[-1]["n"])
    first.take(buffer)
    seal = sealed(last_number, TIME_US, last_us(FORMAT_VERSION), [[HEADER.first_number, RECORDS_AT, TIME_US]])
    for part in (first, seal):
        part.stamp(HEADER.mark)
    return copied.content(HEADER.name) + bytes(memoryview(first)) + bytes(memoryview(seal))


def whole_segment(records: bytes) -> bytes:
    encoded = HEADER.encode()
    return encoded.ljust(RECORDS_AT - len(encoded), b"\0") + encoded + records


def last_us(version: int) -> int:
    """Return the time of the last record among the bytes of a version."""
    return TIME_US + len(list(expected(version))) - 1


def expected(version: int = FORMAT_VERSION) -> Iterator[tuple[str, int, dict[str, Any]]]:
    copied = {**MESSAGES[1], "origin": 9, "incarnation": 6, "accepted_us": TIME_US + 1}
    stored = {**copied, "record": MESSAGES[1]["n"], "origin": 0}
    acknowledged = {"packet_type": 4, "reason": 0x80, "packet_identifier": 65535, "client_identifier": b"client"}
    released = {"packet_identifier": 513, "client_identifier": b"client"}
    fixed = [*(("accepted", fields) for fields in MESSAGES), ("copy", copied), ("stored", stored)]
    forwarded = {**MESSAGES[0], "origin": 9, "incarnation": 6, "accepted_us": TIME_US + 7, "n": 2**40, "picked": True}
    fixed += [("acknowledged", acknowledged), ("released", released), ("forwarded", forwarded)]
    names = {kind.name: [name for name, _ in kind.fields] for kind in KINDS}
    others = [
        (kind, dict(zip(names[kind], values, strict=True)))
        for kind, values in OTHERS if SINCE.get(kind, 1) <= version
    ]  # fmt: skip
    for index, (kind, fields) in enumerate(fixed + others):
        yield kind, fields["accepted_us"] if kind == "stored" else TIME_US + index, fields


def tables(page: str) -> list[list[list[str]]]:
    """Return the page's tables: rows of cells, without the heads."""
    found = re.findall(r"(?:^\|.*\|\n)+", page, re.MULTILINE)
    return [[[cell.strip() for cell in row.strip("|").split("|")] for row in table.splitlines()[2:]] for table in found]


def by_the_page(body: bytes, described: list[str]) -> dict[str, Any]:
    """Decode a body by nothing but what the page says."""
    pairs = [field.split() for field in described[3].split(", ")]
    if described[2] == "msgpack":
        return dict(zip((name for name, _ in pairs), msgpack.unpackb(body), strict=True))
    codes = {"u8": "B", "u16": "H", "u32": "I", "u64": "Q", "i64": "q"}
    found: dict[str, Any] = {}
    at = 0
    for name, of_type in pairs:
        flags = found.get("flags", 0)
        if name in ("expires_us", "expiry_offset") and not flags & 8:
            continue
        if name in ("peer_count", "peers") and not flags & 16:
            continue
        if name == "peers":
            found[name] = struct.unpack_from(f"<{found['peer_count']}I", body, at)
            at += 4 * found["peer_count"]
        elif of_type == "bytes":
            length = found.get({"topic_name": "topic_length"}.get(name, f"{name}_length"), len(body) - at)
            found[name] = body[at : at + length]
            at += length
        else:
            (found[name],) = struct.unpack_from(f"<{codes[of_type]}", body, at)
            at += struct.calcsize(codes[of_type])
    assert at == len(body)
    if "flags" in found:
        flags = found["flags"]
        found = {"expires_us": 0, "peers": (), **found}
        found.update(qos=flags & 3, retain=bool(flags & 4), will=bool(flags & 32), picked=bool(flags & 64))
        found["expiry_offset"] = {4294967295: -1}.get(found.get("expiry_offset", -1), found.get("expiry_offset", -1))
        for name in ("flags", "peer_count", "topic_length", "publisher_length", "properties_length"):
            found.pop(name, None)
    return found


def test_the_kinds_on_the_page_are_those_of_the_code() -> None:
    rows = next(table for table in tables(PAGE) if table[0][:2] == ["1", "accepted"])
    assert rows == [
        [
            str(kind.number), kind.name, "fixed" if kind.fixed else "msgpack",
            ", ".join(f"{name} {of_type}" for name, of_type in kind.fields),
        ]
        for kind in KINDS
    ]  # fmt: skip


def test_the_page_is_about_the_newest_version_and_every_version_has_its_bytes() -> None:
    assert f"in format version {FORMAT_VERSION}." in PAGE
    assert sorted(SEGMENTS) == list(range(1, FORMAT_VERSION + 1))


def test_the_header_on_the_page_is_that_of_the_code() -> None:
    header, record = (table for table in tables(PAGE) if table[0][0] == "0")
    for rows in (header, record):
        at = 0
        for row in rows:
            assert int(row[0]) == at, row
            at += int(row[1] or 0)
    assert int(header[-1][0]) + int(header[-1][1]) == LAYOUT.size == 64
    assert "zeros up to byte 4096" in PAGE
    assert f"from byte {RECORDS_AT} on" in PAGE


@pytest.mark.parametrize("version", SEGMENTS)
def test_the_bytes_of_every_version_are_what_the_page_says(version: int) -> None:
    content = SEGMENTS[version].read_bytes()
    assert struct.unpack_from("<H", content, 8) == (version,)
    assert struct.unpack_from("<Q4x", content, 48) == (HEADERS[version].owner,)
    assert content[:64] == content[4096:4160]
    assert content[64:4096] == bytes(4032)
    kinds = {row[0]: row for table in tables(PAGE) if table[0][:2] == ["1", "accepted"] for row in table}
    first_number, at, found = struct.unpack_from("<Q", content, 32)[0], 4160, []
    mark = content[20:24]
    while at < len(content):
        length, crc = struct.unpack_from("<II", content, at)
        lower, time_us, kind = struct.unpack_from("<IqB", content, at + 12)
        assert content[at + 8 : at + 12] == mark
        assert crc == checksum(content[at : at + 4] + content[at + 8 : at + length])
        described = kinds[str(kind & 0x7F)]
        number = first_number + (lower - first_number) % 2**32
        found.append((number, described[1], time_us, by_the_page(content[at + 25 : at + length], described)))
        at += length
    seal = found.pop()
    assert [(kind, time_us, fields) for _, kind, time_us, fields in found] == list(expected(version))
    assert [number for number, *_ in found] == list(range(2**32 - 3, 2**32 - 3 + len(found)))
    assert seal == (found[-1][0], "sealed", last_us(version), {
        "first_us": TIME_US, "last_us": last_us(version), "index": [[2**32 - 3, 4160, TIME_US]]
    })  # fmt: skip


@pytest.mark.parametrize("version", SEGMENTS)
def test_the_bytes_of_every_version_are_read(version: int) -> None:
    disk = SimulatedDisk()
    disk.put(segment_name(5), SEGMENTS[version].read_bytes())
    segments, records = read_log(disk, worker=3)
    assert segments.headers == [HEADERS[version]]
    assert [(record.kind, record.time_us, record.fields) for record in records] == list(expected(version))
    assert segments.last_number == HEADER.first_number + len(records) - 1
    assert segments.damages == []


def test_every_kind_is_among_the_bytes_that_are_kept() -> None:
    assert {kind for kind, _, _ in expected()} | {"sealed"} == {kind.name for kind in KINDS}


def test_what_is_written_today_are_the_bytes_of_the_newest_version() -> None:
    assert make_segment() == SEGMENTS[FORMAT_VERSION].read_bytes()
