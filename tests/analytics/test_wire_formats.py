"""Payloads in Avro, Protobuf and Sparkplug B, and JSON that a JSON Schema describes, as tables of a lake."""

from __future__ import annotations

import io
import json
import pickle
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.log_folders import write_messages

pytest.importorskip("pyarrow")
pytest.importorskip("fastavro")
pytest.importorskip("google.protobuf")
pytest.importorskip("jsonschema")

import fastavro
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, timestamp_pb2

from analytics.lake.arrow_lake import ArrowLake
from analytics.lake.arrow_reading import open_dataset
from analytics.lake.fitting import UnfitError
from analytics.lake.manifest import LakeError
from analytics.lake.payload_decoders import load_payloads
from analytics.lake.wire_formats import AvroFunction, ProtobufFunction, SparkplugFunction, _sparkplug_class
from analytics.lake.writer import Plan

AVRO = {
    "type": "record", "name": "Reading", "fields": [
        {"name": "celsius", "type": ["null", "double"]}, {"name": "at", "type": {
            "type": "long", "logicalType": "timestamp-millis"}},
        {"name": "tags", "type": {"type": "map", "values": "string"}},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 6, "scale": 2}},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "state", "type": {"type": "enum", "name": "State", "symbols": ["ON", "OFF"]}},
        {"name": "past", "type": {"type": "array", "items": "State"}},
    ],
}  # fmt: skip
READING = {"celsius": 21.5, "at": datetime(2026, 11, 22, tzinfo=UTC), "tags": {"a": "b"}, "price": Decimal("1.25"),
           "day": date(2026, 11, 22), "state": "ON", "past": ["OFF"]}  # fmt: skip
JSON_SCHEMA = {
    "type": "object", "required": ["celsius"], "additionalProperties": True, "properties": {
        "celsius": {"type": "number", "maximum": 100}, "at": {"type": ["string", "null"], "format": "date-time"},
        "list": {"type": "array", "items": {"type": "integer"}},
        "any": {"oneOf": [{"type": "string"}, {"type": "number"}]},
    },
}  # fmt: skip


def descriptors() -> bytes:
    """Return what protoc would write of a message Reading, and of one that has itself in it."""
    field = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(
        name="fleet.proto", package="fleet", syntax="proto3", dependency=["google/protobuf/timestamp.proto"]
    )
    reading = file.message_type.add(name="Reading")
    reading.field.add(name="celsius", number=1, type=field.TYPE_DOUBLE, label=1)
    reading.field.add(name="at", number=2, type=field.TYPE_MESSAGE, label=1, type_name=".google.protobuf.Timestamp")
    reading.field.add(name="counts", number=3, type=field.TYPE_UINT64, label=3)
    reading.field.add(name="state", number=4, type=field.TYPE_ENUM, label=1, type_name=".fleet.State")
    reading.field.add(name="inner", number=5, type=field.TYPE_MESSAGE, label=1, type_name=".fleet.Reading.Inner")
    reading.field.add(name="tags", number=6, type=field.TYPE_MESSAGE, label=3, type_name=".fleet.Reading.TagsEntry")
    inner = reading.nested_type.add(name="Inner")
    inner.field.add(name="name", number=1, type=field.TYPE_STRING, label=1)
    entry = reading.nested_type.add(name="TagsEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, type=field.TYPE_STRING, label=1)
    entry.field.add(name="value", number=2, type=field.TYPE_INT32, label=1)
    state = file.enum_type.add(name="State")
    state.value.add(name="OFF", number=0)
    state.value.add(name="ON", number=1)
    tree = file.message_type.add(name="Tree")
    tree.field.add(name="left", number=1, type=field.TYPE_MESSAGE, label=1, type_name=".fleet.Tree")
    timestamp = descriptor_pb2.FileDescriptorProto()
    timestamp_pb2.DESCRIPTOR.CopyToProto(timestamp)
    return descriptor_pb2.FileDescriptorSet(file=[timestamp, file]).SerializeToString()


def reading_class() -> Any:
    pool = descriptor_pool.DescriptorPool()
    for each in descriptor_pb2.FileDescriptorSet.FromString(descriptors()).file:
        pool.Add(each)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("fleet.Reading"))


def avro(reading: dict[str, Any]) -> bytes:
    file = io.BytesIO()
    fastavro.schemaless_writer(file, fastavro.parse_schema(AVRO), reading)
    return file.getvalue()


def described(folder: Path) -> Path:
    """Write a file of decoders, and what describes their payloads beside it."""
    (folder / "reading.avsc").write_text(json.dumps(AVRO))
    (folder / "fleet.desc").write_bytes(descriptors())
    (folder / "reading.json").write_text(json.dumps(JSON_SCHEMA))
    path = folder / "decoders.toml"
    entries = [
        ("avro", "a/#", 'as = "avro"\nschema_file = "reading.avsc"'),
        ("protobuf", "p/#", 'as = "protobuf"\ndescriptors = "fleet.desc"\nmessage = "fleet.Reading"'),
        ("sparkplug", "spBv1.0/#", 'as = "sparkplug"'), ("described", "j/#", 'json_schema = "reading.json"'),
    ]  # fmt: skip
    path.write_text("".join(
        f'[[decode]]\ntable = "{table}"\ntopic_filter = "{wanted}"\n{settings}\n' for table, wanted, settings in entries
    ))  # fmt: skip
    return path


def rows(folder: Path, table: str) -> list[dict[str, Any]]:
    return list(open_dataset(str(folder / "lake"), table).to_table().to_pylist())


def test_messages_of_every_format_are_in_their_tables_and_what_is_none_is_in_the_quarantine(tmp_path: Path) -> None:
    message = reading_class()(celsius=21.5, counts=[2**64 - 1], state=1, tags={"x": 7})
    message.at.FromDatetime(datetime(2026, 11, 22, tzinfo=UTC))
    message.inner.name = "probe"
    newer = message.SerializeToString() + b"\x98\x06\x05"  # field 99, which the description does not have
    birth = _sparkplug_class()(timestamp=1_500, seq=0)
    for number, (datatype, value) in enumerate(
        [(3, {"int_value": 2**32 - 5}), (8, {"long_value": 2**64 - 1}), (10, {"double_value": 1.5}),
         (13, {"long_value": 2_000}), (12, {"string_value": "on"}), (11, {"boolean_value": True})]
    ):  # fmt: skip
        birth.metrics.add(name=f"m{number}", alias=number, datatype=datatype, **value)
    payloads = [
        ("a/1", avro(READING)), ("a/1", avro(READING)[:-3]), ("a/1", avro(READING) + b"\0"), ("p/1", newer),
        ("p/1", b"\x09\x00"), ("spBv1.0/plant/DBIRTH/edge/pump", birth.SerializeToString()),
        ("spBv1.0/STATE", b"{}"),
        ("j/1", b'{"celsius": 20, "at": "2026-11-22T00:00:00Z", "list": [1], "any": 5, "z": 1}'),
        ("j/1", b'{"celsius": 200}'), ("j/1", b'{"at": null}'),
    ]  # fmt: skip
    write_messages(tmp_path / "data", *((n, topic, payload) for n, (topic, payload) in enumerate(payloads)))
    decoders = tuple(load_payloads(str(described(tmp_path))))
    lake = ArrowLake(Plan(str(tmp_path / "data"), str(tmp_path / "lake"), decoders))
    assert lake.write() == len(payloads)
    lake.close()
    assert [{**row["data"], "tags": dict(row["data"]["tags"])} for row in rows(tmp_path, "avro")] == [READING]
    (row,) = rows(tmp_path, "protobuf")
    assert {**row["data"], "tags": dict(row["data"]["tags"])} == {
        "celsius": 21.5, "at": datetime(2026, 11, 22, tzinfo=UTC), "counts": [Decimal(2**64 - 1)], "state": "ON",
        "inner": {"name": "probe"}, "tags": {"x": 7},
    }  # fmt: skip
    assert row["rest"] == '{"#99": [5]}'
    (row,) = rows(tmp_path, "sparkplug")
    metrics = row["data"].pop("metrics")
    assert {name: value for name, value in row["data"].items() if value is not None} == {
        "group": "plant", "type": "DBIRTH", "node": "edge", "device": "pump", "seq": 0,
        "timestamp": datetime(1970, 1, 1, 0, 0, 1, 500_000, UTC),
    }  # fmt: skip
    assert [next(metric[name] for name in ("integer", "number", "time", "text", "boolean") if metric[name] is not None)
            for metric in metrics] == [
        -5, 2**64 - 1, 1.5, datetime(1970, 1, 1, 0, 0, 2, tzinfo=UTC), "on", True]  # fmt: skip
    (row,) = rows(tmp_path, "described")
    assert (row["data"], row["rest"]) == (
        {"celsius": 20.0, "at": datetime(2026, 11, 22, tzinfo=UTC), "list": [1], "any": "5"},
        '{"z": 1}',
    )
    reasons = [(row["table"], row["reason"].split(":")[0]) for row in rows(tmp_path, "quarantine")]
    assert sorted(reasons) == [
        ("avro", "has 1 bytes behind the Avro"), ("avro", "is no Avro of this schema"),
        ("described", "does not fit the JSON Schema"), ("described", "does not fit the JSON Schema"),
        ("protobuf", "is no fleet.Reading"), ("sparkplug", "has a topic that is none of Sparkplug's"),
    ]  # fmt: skip


@given(st.binary(max_size=40))
def test_no_payload_makes_a_format_raise_but_what_is_a_reason(payload: bytes) -> None:
    for decode in DECODE:
        try:
            decode("spBv1.0/g/NDATA/n", payload)
        except UnfitError:
            pass


def _decoders() -> list[Any]:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "a.avsc").write_text(json.dumps(AVRO))
        return [AvroFunction(Path(folder) / "a.avsc"), ProtobufFunction(descriptors(), "fleet.Reading", "x"),
                SparkplugFunction()]  # fmt: skip


DECODE = _decoders()


def test_decoders_go_to_the_tasks_of_spark() -> None:
    for decode in DECODE:
        decode.__dict__.get("_load", lambda: None)()
        assert pickle.loads(pickle.dumps(decode)).__dict__.keys() == decode.__dict__.keys()


@pytest.mark.parametrize(("change", "sentence"), [
    (('schema_file = "reading.avsc"', ""), "table avro: schema_file is needed where a decoder is avro"),
    (("reading.avsc", "nothing.avsc"), "the Avro schema .*nothing.avsc cannot be read: No such file"),
    (("reading.avsc", "fleet.desc"), "fleet.desc is no Avro schema"),
    (("fleet.Reading", "fleet.Nothing"), "there is no message 'fleet.Nothing'"),
    (("fleet.Reading", "fleet.Tree"), "fleet.Tree has itself in it"),
    (('"fleet.desc"', '"decoders.toml"'), "decoders.toml is no set of descriptors"),
    (('as = "sparkplug"', 'as = "sparkplug"\nmessage = "x"'), "there is no 'message' where a decoder is sparkplug"),
])  # fmt: skip
def test_what_describes_payloads_wrongly_is_told(tmp_path: Path, change: tuple[str, str], sentence: str) -> None:
    path = described(tmp_path)
    path.write_text(path.read_text().replace(*change))
    with pytest.raises(LakeError, match=sentence):
        load_payloads(str(path))
