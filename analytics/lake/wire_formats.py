"""Decoders of payloads that are not text: Avro, Protobuf and Sparkplug B, and JSON that a JSON Schema describes.

Each is a function of topic and payload, which returns the fields, and knows the schema of what it returns. The
libraries that read the formats are those of the extra `decoders`.
"""

from __future__ import annotations

import importlib.util
import io
import json
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from analytics.lake.fitting import UnfitError
from analytics.lake.manifest import LakeError
from analytics.source.column_types import array_of

TIMESTAMP: Final = pa.timestamp("us", "UTC")
DEPTH_MAX: Final = 16  # levels of messages in messages
_LIBRARIES: Final = {"avro": "fastavro", "protobuf": "google.protobuf", "sparkplug": "google.protobuf",
                     "json_schema": "jsonschema"}  # fmt: skip


def need(kind: str) -> None:
    """Raise LakeError if the library that a decoder needs is not there."""
    name = _LIBRARIES[kind]
    try:
        found = importlib.util.find_spec(name)
    except ModuleNotFoundError:
        found = None
    if found is None:
        raise LakeError(f"this decoder needs {name}, which is not installed: pip install 'shoal-mqtt[decoders]'")


def read_description(path: Path, what: str) -> bytes:
    """Return a file that describes payloads. Raises LakeError."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise LakeError(f"{what} {path} cannot be read: {error.strerror}") from error


# Avro -----------------------------------------------------------------------------------------------------------------


class AvroFunction:
    """Reads one datum in Avro's binary encoding, without a header. Raises LakeError for what is no schema."""

    def __init__(self, path: Path) -> None:
        need("avro")
        import fastavro

        try:
            self._schema = fastavro.parse_schema(json.loads(read_description(path, "the Avro schema")))
        except (ValueError, KeyError, TypeError, fastavro.schema.SchemaParseException) as error:
            raise LakeError(f"{path} is no Avro schema: {error}") from error
        self.type = _of_avro(self._schema, str(path), {})
        if not pa.types.is_struct(self.type):
            raise LakeError(f"{path} describes no record")

    def __call__(self, topic: str, payload: bytes) -> dict[str, Any]:
        import fastavro

        file = io.BytesIO(payload)
        try:
            found = fastavro.schemaless_reader(file, self._schema, None)
        except (EOFError, IndexError, ValueError, StopIteration, OverflowError, MemoryError) as error:
            raise UnfitError(f"is no Avro of this schema: {error or type(error).__name__}") from None
        if file.tell() != len(payload):
            raise UnfitError(f"has {len(payload) - file.tell()} bytes behind the Avro")
        assert isinstance(found, dict), found
        return found


_AVRO: Final = {
    "boolean": pa.bool_(), "int": pa.int32(), "long": pa.int64(), "float": pa.float32(), "double": pa.float64(),
    "string": pa.string(), "bytes": pa.binary(), "enum": pa.string(), "fixed": pa.binary(),
}  # fmt: skip
_AVRO_LOGICAL: Final = {
    "timestamp-millis": TIMESTAMP, "timestamp-micros": TIMESTAMP, "local-timestamp-millis": pa.timestamp("us"),
    "local-timestamp-micros": pa.timestamp("us"), "date": pa.date32(),
}  # fmt: skip


def _of_avro(schema: Any, what: str, named: dict[str, pa.DataType]) -> pa.DataType:
    if isinstance(schema, list):
        others = [each for each in schema if each != "null"]
        if len(others) != 1:
            raise LakeError(f"{what}: a union of several types is none of a column: say with schema what it is")
        return _of_avro(others[0], what, named)
    if isinstance(schema, str):
        if schema not in _AVRO and schema not in named:
            raise LakeError(f"{what}: a type that has itself in it, as {schema}, is none of a column")
        return _AVRO.get(schema) or named[schema]
    name, kind = schema.get("name", ""), schema["type"]
    if isinstance(kind, dict | list):
        return _of_avro(kind, what, named)
    match kind:
        case "record" | "error":
            found = pa.struct([(each["name"], _of_avro(each["type"], what, named)) for each in schema["fields"]])
        case "array":
            found = array_of(_of_avro(schema["items"], what, named))
        case "map":
            found = pa.map_(pa.string(), pa.field("value", _of_avro(schema["values"], what, named)))
        case _:
            logical = schema.get("logicalType")
            if logical == "decimal":
                found = pa.decimal128(schema["precision"], schema.get("scale", 0))
            elif logical == "uuid":
                raise LakeError(f"{what}: {name or 'a field'} is a uuid, which is none of a column here")
            else:
                found = _AVRO_LOGICAL.get(logical) or _of_avro(kind, what, named)
    if name:
        named[name] = found
    return found


# Protobuf -------------------------------------------------------------------------------------------------------------


class ProtobufFunction:
    """Reads a message of Protobuf; fields that the description does not have are kept by their numbers.

    Args:
        descriptors: a FileDescriptorSet, as `protoc --include_imports --descriptor_set_out=FILE` writes it.
        name: of the message, as `fleet.Reading`.

    Raises LakeError for what is none.
    """

    def __init__(self, descriptors: bytes, name: str, what: str) -> None:
        need("protobuf")
        self.descriptors = descriptors
        self.name = name
        self._class: Any = None
        try:
            found = self._load()
        except KeyError:
            raise LakeError(f"{what}: there is no message {name!r}") from None
        except Exception as error:
            raise LakeError(f"{what} is no set of descriptors: {error}") from error
        self.type = _of_message(found.DESCRIPTOR, what, 1)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_class": None}  # it is of this process

    def _load(self) -> Any:
        from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

        if self._class is None:
            files = descriptor_pb2.FileDescriptorSet.FromString(self.descriptors)
            pool = descriptor_pool.DescriptorPool()
            for each in files.file:
                pool.Add(each)
            self._class = message_factory.GetMessageClass(pool.FindMessageTypeByName(self.name))
        return self._class

    def __call__(self, topic: str, payload: bytes) -> dict[str, Any]:
        from google.protobuf.message import DecodeError

        message = self._load()()
        try:
            message.ParseFromString(payload)
        except DecodeError as error:
            raise UnfitError(f"is no {self.name}: {error}") from None
        return _values(message)


_PROTOBUF: Final = {
    1: pa.float64(), 2: pa.float32(), 3: pa.int64(), 4: pa.decimal128(20, 0), 5: pa.int32(),
    6: pa.decimal128(20, 0), 7: pa.int64(), 8: pa.bool_(), 9: pa.string(), 12: pa.binary(), 13: pa.int64(),
    14: pa.string(), 15: pa.int32(), 16: pa.int64(), 17: pa.int32(), 18: pa.int64(),
}  # fmt: skip
_TIMESTAMP: Final = "google.protobuf.Timestamp"


def _is_map(field: Any) -> bool:
    return field.message_type is not None and bool(field.message_type.GetOptions().map_entry)


def _is_repeated(field: Any) -> bool:
    return bool(field.is_repeated)


def _of_message(descriptor: Any, what: str, depth: int) -> pa.StructType:
    if depth > DEPTH_MAX:
        raise LakeError(f"{what}: {descriptor.full_name} has itself in it, or lies more than {DEPTH_MAX} levels deep")
    fields = []
    for field in descriptor.fields:
        if _is_map(field):
            value = _of_field(field.message_type.fields_by_name["value"], what, depth)
            of_type: pa.DataType = pa.map_(pa.string(), pa.field("value", value))
        else:
            of_type = _of_field(field, what, depth)
            of_type = array_of(of_type) if _is_repeated(field) else of_type
        fields.append(pa.field(field.name, of_type))
    return pa.struct(fields)


def _of_field(field: Any, what: str, depth: int) -> pa.DataType:
    if field.message_type is None:
        return _PROTOBUF[field.type]
    return TIMESTAMP if field.message_type.full_name == _TIMESTAMP else _of_message(field.message_type, what, depth + 1)


def _values(message: Any) -> dict[str, Any]:
    from google.protobuf.unknown_fields import UnknownFieldSet

    found: dict[str, Any] = {}
    for field in message.DESCRIPTOR.fields:
        value = getattr(message, field.name)
        if _is_map(field):
            held = field.message_type.fields_by_name["value"]
            found[field.name] = {str(key): _value(held, value[key]) for key in value}
        elif _is_repeated(field):
            found[field.name] = [_value(field, each) for each in value]
        elif not field.has_presence or message.HasField(field.name):
            found[field.name] = _value(field, value)
    for each in UnknownFieldSet(message):
        found.setdefault(f"#{each.field_number}", []).append(_unknown(each.data))
    return found


def _unknown(data: Any) -> Any:
    return data if isinstance(data, int) else data.hex() if isinstance(data, bytes) else str(data)


def _value(field: Any, value: Any) -> Any:
    if field.message_type is not None:
        if field.message_type.full_name == _TIMESTAMP:
            from datetime import UTC

            return value.ToDatetime(tzinfo=UTC)
        return _values(value)
    if field.enum_type is not None:
        known = field.enum_type.values_by_number.get(value)
        return known.name if known is not None else str(value)
    return value


# Sparkplug B ----------------------------------------------------------------------------------------------------------

# Of the specification, 3.0.0, 6.4.1: fields of Payload and of Metric by number, with Protobuf's type.
_PAYLOAD: Final = (("timestamp", 1, 4), ("seq", 3, 4), ("uuid", 4, 9), ("body", 5, 12))
_METRIC: Final = (
    ("name", 1, 9), ("alias", 2, 4), ("timestamp", 3, 4), ("datatype", 4, 13), ("is_historical", 5, 8),
    ("is_transient", 6, 8), ("is_null", 7, 8), ("int_value", 10, 13), ("long_value", 11, 4), ("float_value", 12, 2),
    ("double_value", 13, 1), ("boolean_value", 14, 8), ("string_value", 15, 9), ("bytes_value", 16, 12),
)  # fmt: skip
_SIGNED_BITS: Final = {1: 8, 2: 16, 3: 32, 4: 64}  # data types Int8 to Int64, which are sent as two's complement
_DATE_TIME: Final = 13
_METRIC_TYPE: Final = pa.struct([
    ("name", pa.string()), ("alias", pa.decimal128(20, 0)), ("timestamp", TIMESTAMP), ("datatype", pa.int32()),
    ("is_historical", pa.bool_()), ("is_transient", pa.bool_()), ("is_null", pa.bool_()),
    ("integer", pa.decimal128(20, 0)), ("number", pa.float64()), ("boolean", pa.bool_()), ("text", pa.string()),
    ("bytes", pa.binary()), ("time", TIMESTAMP),
])  # fmt: skip
SPARKPLUG: Final = pa.struct([
    ("group", pa.string()), ("type", pa.string()), ("node", pa.string()), ("device", pa.string()),
    ("timestamp", TIMESTAMP), ("seq", pa.int32()), ("uuid", pa.string()), ("body", pa.binary()),
    ("metrics", array_of(_METRIC_TYPE)),
])  # fmt: skip


class SparkplugFunction:
    """Reads a message of Sparkplug B, its topic included: spBv1.0/GROUP/TYPE/NODE/DEVICE."""

    type = SPARKPLUG

    def __init__(self) -> None:
        need("sparkplug")
        self._class: Any = None

    def __getstate__(self) -> dict[str, Any]:
        return {"_class": None}

    def __call__(self, topic: str, payload: bytes) -> dict[str, Any]:
        from google.protobuf.message import DecodeError

        levels = topic.split("/")
        if levels[0] != "spBv1.0" or not 4 <= len(levels) <= 5:
            raise UnfitError("has a topic that is none of Sparkplug's: spBv1.0/GROUP/TYPE/NODE/DEVICE")
        if self._class is None:
            self._class = _sparkplug_class()
        message = self._class()
        try:
            message.ParseFromString(payload)
        except DecodeError as error:
            raise UnfitError(f"is no payload of Sparkplug B: {error}") from None
        found = _values(message)
        found["metrics"] = [_metric(each) for each in found["metrics"]]
        _as_time(found, "timestamp")
        named = dict(zip(("group", "type", "node", "device"), levels[1:], strict=False))
        return {**named, **found}


def _metric(found: dict[str, Any]) -> dict[str, Any]:
    datatype = found.get("datatype")
    for name in ("int_value", "long_value"):
        if name in found:
            value, bits = found.pop(name), _SIGNED_BITS.get(datatype, 0) if datatype is not None else 0
            if bits:
                value &= (1 << bits) - 1
                value -= (1 << bits) if value >> (bits - 1) else 0
            found["time" if datatype == _DATE_TIME else "integer"] = value
    for name, new_name in (("float_value", "number"), ("double_value", "number"), ("boolean_value", "boolean"),
                           ("string_value", "text"), ("bytes_value", "bytes")):  # fmt: skip
        if name in found:
            found[new_name] = found.pop(name)
    _as_time(found, "timestamp")
    _as_time(found, "time")
    return found


def _as_time(found: dict[str, Any], name: str) -> None:
    """Make a time of milliseconds since 1970."""
    from datetime import UTC, datetime, timedelta

    if name in found:
        try:
            found[name] = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=found[name])
        except OverflowError:
            raise UnfitError(f"{name} is {found[name]}, and no time") from None


def _sparkplug_class() -> Any:
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    file = descriptor_pb2.FileDescriptorProto(name="sparkplug_b.proto", package="sparkplug", syntax="proto2")
    for name, fields in (("Payload", _PAYLOAD), ("Metric", _METRIC)):
        message = file.message_type.add(name=name)
        for field_name, number, of_type in fields:
            message.field.add(name=field_name, number=number, type=of_type, label=1)
    file.message_type[0].field.add(name="metrics", number=2, type=11, label=3, type_name=".sparkplug.Metric")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("sparkplug.Payload"))


# JSON Schema ----------------------------------------------------------------------------------------------------------


class JsonSchema:
    """Says whether a JSON object is what a JSON Schema describes. Raises LakeError for what is none."""

    def __init__(self, path: Path) -> None:
        need("json_schema")
        import jsonschema

        try:
            self._schema = json.loads(read_description(path, "the JSON Schema"))
            jsonschema.validators.validator_for(self._schema).check_schema(self._schema)
        except (ValueError, jsonschema.SchemaError) as error:
            raise LakeError(f"{path} is no JSON Schema: {str(error).splitlines()[0]}") from error
        self._validator: Any = None
        found = _of_json_schema(self._schema)
        self.type = found if pa.types.is_struct(found) and found.num_fields else None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_validator": None}

    def __call__(self, value: dict[str, Any]) -> None:
        """Raise UnfitError if an object is not what is described."""
        if self._validator is None:
            import jsonschema

            self._validator = jsonschema.validators.validator_for(self._schema)(self._schema)
        error = next(iter(self._validator.iter_errors(value)), None)
        if error is not None:
            raise UnfitError(f"does not fit the JSON Schema: {error.json_path}: {error.message}")


_JSON_TYPES: Final = {"number": pa.float64(), "integer": pa.int64(), "boolean": pa.bool_(), "string": pa.string()}
_JSON_FORMATS: Final = {"date-time": TIMESTAMP, "date": pa.date32()}


def _of_json_schema(schema: Any, depth: int = 1) -> pa.DataType:
    """Return the type of a column: text, which holds JSON, for what has none."""
    if not isinstance(schema, dict) or depth > DEPTH_MAX:
        return pa.string()
    kind = schema.get("type")
    if isinstance(kind, list):
        others = [each for each in kind if each != "null"]
        kind = others[0] if len(others) == 1 else None
    if kind == "object" and schema.get("properties"):
        fields: dict[str, pa.Field] = {}
        for name, each in schema["properties"].items():
            fields.setdefault(name.lower(), pa.field(name, _of_json_schema(each, depth + 1)))
        return pa.struct(list(fields.values()))
    if kind == "array" and "items" in schema:
        return array_of(_of_json_schema(schema["items"], depth + 1))
    if kind == "string":
        return _JSON_FORMATS.get(str(schema.get("format")), pa.string())
    return _JSON_TYPES.get(str(kind), pa.string())
