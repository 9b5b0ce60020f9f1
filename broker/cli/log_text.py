"""What `shoal log` prints: records and reports as text for people and as JSON for programs."""

from __future__ import annotations

import json
from base64 import b64encode
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from broker.storage.worker_folders import worker_folder
from broker.wire.properties import PacketType, decode_properties
from broker.wire.reasons import ClientError
from router.core.varint import encode_varint
from router.log.replay_position import format_time

if TYPE_CHECKING:
    from router.log.reader import Row
    from router.log.segments import Damage
    from router.log.verify import LogFile, Report


# Records -------------------------------------------------------------------------------------------------------------


def row_text(row: Row) -> bytes:
    """Return a record as one line: time, topic, QoS and r for RETAIN, publisher, payload; or its kind and fields."""
    fields = row.fields
    time = format_time(row.time_us)
    if row.kind == "accepted":
        text = (
            f"{time}  {_line(fields['topic_name'])}  q{fields['qos']}{'r' if fields['retain'] else ''}  "
            f"{_line(fields['publisher']) or '-'}  {_line(fields['payload'])}\n"
        )
    else:
        told = " ".join(f"{name}={_value(value)}" for name, value in fields.items())
        text = f"{time}  [{row.number} {row.kind}]  {told}\n"
    return text.encode()


def row_json(row: Row) -> bytes:
    """Return a record as one line of JSON; bytes that are not UTF-8 are {"base64": ...}."""
    told: dict[str, Any] = {
        "time": format_time(row.time_us),
        "worker": row.worker,
        "incarnation": row.incarnation,
        "number": row.number,
        "kind": row.kind,
    }
    for name, value in row.fields.items():
        if name == "properties":
            told[name] = _properties(value)
        elif name == "expires_us":
            told["expires"] = format_time(value) if value else None
        elif name == "accepted_us":
            told["accepted"] = format_time(value)
        elif name != "expiry_offset":
            told[_JSON_NAMES.get(name, name)] = _as_json(value)
    return _encode(told) + b"\n"


_JSON_NAMES = {"topic_name": "topic"}  # as `shoal sub --json` calls it
_encode = msgspec.json.Encoder().encode


def _as_json(value: Any) -> Any:
    """Return a value without bytes: they are text, or {"base64": ...} where they are not UTF-8."""
    if type(value) is bytes:
        try:
            return value.decode()
        except UnicodeDecodeError:
            return {"base64": b64encode(value).decode()}
    return [_as_json(part) for part in value] if isinstance(value, list | tuple) else value


def _properties(encoded: bytes) -> Any:
    """Return the properties of a PUBLISH by name."""
    if not encoded:
        return {}
    try:
        found = decode_properties(encode_varint(len(encoded)) + encoded, 0, PacketType.PUBLISH)[0]
    except ClientError:
        return _as_json(encoded)
    return {name: _as_json(value) for name, value in found.items()}


def _line(data: bytes) -> str:
    """Return bytes as text on one line: UTF-8 with escapes for what a terminal would obey, else hexadecimal."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return f"0x{data.hex()}"
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def _value(value: object) -> str:
    return repr(_line(value)) if isinstance(value, bytes) else str(value)


# Reports -------------------------------------------------------------------------------------------------------------


def inspection_text(folder: Path, reports: list[Report]) -> str:
    """Return what is in the logs, for people."""
    return "\n\n".join(_worker_text(folder, report) for report in reports)


def _worker_text(folder: Path, report: Report) -> str:
    census = report.census
    total = sum(segment.bytes for segment in report.segments)
    lines = [str(worker_folder(folder, report.worker))]
    if report.incarnation:
        lines.append(f"  incarnation  {report.incarnation}")
    first = next((segment for segment in report.segments if segment.last_number), None)
    if first is None:
        lines.append("  records      none")
    else:
        last = max(segment.last_number for segment in report.segments)
        lines.append(f"  records      {census.records:,}, from number {first.first_number:,} to {last:,}")
        lines.append(f"  time         {format_time(census.first_us)} to {format_time(census.last_us)}")
        told = ", ".join(f"{name} {count:,}" for name, count in census.by_kind().items())
        lines.append(f"  kinds        {told}")
        accepted = census.by_kind().get("accepted", 0)
        lines.append(f"  messages     {accepted:,} accepted, {census.payload_bytes:,} bytes of payload")
    lines.append(f"  segments     {len(report.segments)}, {total:,} bytes")
    lines += _table(report.segments, "sealed", "open")
    if report.snapshots:
        lines.append(f"  snapshots    {len(report.snapshots)}")
        lines += _table(report.snapshots, "whole", "unfinished")
    if report.aside:
        lines.append("  kept aside")
        lines += [f"    {aside.name}  {aside.bytes:,} bytes" for aside in report.aside]
    if report.unfinished is not None:
        lines.append(f"  unfinished   {_unfinished(report.unfinished)}")
    if report.damages:
        lines.append("  damage       shoal log verify says more")
        lines += [f"    {sentence(damage)}" for damage in report.damages]
    return "\n".join(lines)


def _table(files: list[LogFile], whole: str, not_whole: str) -> list[str]:
    rows = [
        (
            file.name,
            f"{file.first_number:,}-{file.last_number:,}" if file.last_number else "no records",
            f"incarnation {file.incarnation}",
            f"{format_time(file.first_us)} {format_time(file.last_us)}" if file.last_number else "",
            f"{file.bytes:,} bytes",
            whole if file.whole else not_whole,
        )
        for file in files
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(6)] if rows else []
    return ["    " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
            for row in rows]  # fmt: skip


def inspection_json(folder: Path, reports: list[Report]) -> str:
    """Return what is in the logs, as one JSON object."""
    return _json(folder, [_worker_json(report) for report in reports])


def _worker_json(report: Report) -> dict[str, Any]:
    census = report.census
    return {
        "worker": report.worker,
        "incarnation": report.incarnation or None,
        "records": census.records,
        "first_time": format_time(census.first_us) if census.records else None,
        "last_time": format_time(census.last_us) if census.records else None,
        "kinds": census.by_kind(),
        "accepted": {"messages": census.by_kind().get("accepted", 0), "payload_bytes": census.payload_bytes},
        "bytes": sum(segment.bytes for segment in report.segments),
        "segments": [_file_json(segment, "sealed") for segment in report.segments],
        "snapshots": [
            _file_json(snapshot, "whole") | {"records_from": snapshot.records_from or None}
            for snapshot in report.snapshots
        ],
        "kept_aside": [{"file": aside.name, "bytes": aside.bytes} for aside in report.aside],
    } | _problems_json(report)


def _file_json(file: LogFile, whole: str) -> dict[str, Any]:
    return {
        "file": file.name,
        "bytes": file.bytes,
        "incarnation": file.incarnation,
        "rules": file.rules,
        "first_number": file.first_number,
        "last_number": file.last_number or None,
        "first_time": format_time(file.first_us) if file.last_number else None,
        "last_time": format_time(file.last_us) if file.last_number else None,
        whole: file.whole,
    }


def verdict_text(folder: Path, reports: list[Report], problems: list[str]) -> str:
    """Return whether the logs are whole and what is wrong, also with what all workers share, for people."""
    lines = [f"{problem}." for problem in problems]
    for report in reports:
        name = folder / f"worker-{report.worker}"
        lines += [f"{name}/{sentence(damage)}." for damage in report.damages]
        if report.unfinished is not None:
            lines.append(f"{name}/{_unfinished(report.unfinished)}.")
        if report.moved:
            lines.append(f"{name}: the broker removed files meanwhile; what is left was checked.")
        files = len(report.segments) + len(report.snapshots)
        what = f"{report.census.records:,} records in {files} file{'s' if files != 1 else ''}"
        count = len(report.damages)
        verdict = "whole" if not count else f"{count} {'thing is' if count == 1 else 'things are'} wrong"
        lines.append(f"{name}: {verdict} ({what}).")
    return "\n".join(lines)


def verdict_json(folder: Path, reports: list[Report], problems: list[str]) -> str:
    """Return whether the logs are whole and what is wrong, also with what all workers share, as one JSON object."""
    return _json(
        folder,
        [
            {"worker": report.worker, "whole": not report.damages, "records": report.census.records,
             "files": len(report.segments) + len(report.snapshots)} | _problems_json(report)
            for report in reports
        ],
        problems=problems,
    )  # fmt: skip


def _problems_json(report: Report) -> dict[str, Any]:
    return {
        "damages": [_damage_json(damage) for damage in report.damages],
        "unfinished": _damage_json(report.unfinished) if report.unfinished is not None else None,
    }


def _damage_json(damage: Damage) -> dict[str, Any]:
    return {
        "file": damage.file,
        "offset": damage.offset,
        "length": damage.length,
        "first_missing": damage.first_missing or None,
        "missing": damage.missing,
        "what": damage.what,
        "aside": damage.aside or None,
    }


def sentence(damage: Damage) -> str:
    """Return what is wrong and where, without a full stop."""
    place = f" at byte {damage.offset:,}" if damage.offset or damage.length else ""
    length = f" ({damage.length:,} bytes{f', kept in {damage.aside}' if damage.aside else ''})" if damage.length else ""
    last = damage.first_missing + damage.missing - 1
    lost = {0: "", 1: f"; record {last:,} is missing"}.get(
        damage.missing, f"; records {damage.first_missing:,} to {last:,} are missing"
    )
    return f"{damage.file}: {damage.what}{place}{length}{lost}"


def _unfinished(damage: Damage) -> str:
    return (
        f"{damage.file}: the last {damage.length:,} bytes, from byte {damage.offset:,} on, are no whole record: they "
        "are being written, or were when the power went, and nothing that was acknowledged is in them"
    )


def _json(folder: Path, workers: list[dict[str, Any]], **more: list[str]) -> str:
    return json.dumps({"data_folder": str(folder), "workers": workers, **more}, indent=2, ensure_ascii=False)
