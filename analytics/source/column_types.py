"""Types of columns: as Arrow has them, and as Spark writes them, in JSON and in DDL (`celsius double, at timestamp`).

Arrow's are used everywhere, so that nothing but Spark's own readers and writers needs Spark.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final, NoReturn

import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Iterable

ELEMENT: Final = "element"  # what an array holds, as Spark and Parquet call it
_SIMPLE: Final = {
    "double": pa.float64(), "float": pa.float32(), "byte": pa.int8(), "short": pa.int16(), "integer": pa.int32(),
    "long": pa.int64(), "boolean": pa.bool_(), "string": pa.string(), "binary": pa.binary(), "date": pa.date32(),
    "timestamp": pa.timestamp("us", "UTC"), "timestamp_ntz": pa.timestamp("us"), "void": pa.null(),
}  # fmt: skip
_IN_JSON: Final = {of_type: name for name, of_type in _SIMPLE.items()}
_IN_DDL: Final = {"byte": "tinyint", "short": "smallint", "integer": "int", "long": "bigint"}
# Spark's other names for the same.
_ALIASES: Final = {
    "tinyint": "byte", "smallint": "short", "int": "integer", "bigint": "long", "real": "float",
    "timestamp_ltz": "timestamp",
}  # fmt: skip
_DECIMALS: Final = ("decimal", "dec", "numeric")
_DECIMAL: Final = re.compile(r"decimal\((\d+),(-?\d+)\)")
_TOKEN: Final = re.compile(r"\s*(`(?:[^`]|``)+`|'(?:[^'\\]|\\.|'')*'|[A-Za-z_0-9]+|[<>(),:]|\S)")


def array_of(held: pa.DataType, *, nullable: bool = True) -> pa.DataType:
    """Return the type of arrays of something."""
    return pa.list_(pa.field(ELEMENT, held, nullable))


def fields_of(struct: pa.StructType) -> list[pa.Field]:
    """Return the fields of a struct."""
    return [struct.field(index) for index in range(struct.num_fields)]


def struct_of(fields: Iterable[pa.Field]) -> pa.StructType:
    """Return the struct that schemas and lists of fields describe."""
    return pa.struct(list(fields))


# Spark's JSON -----------------------------------------------------------------------------------------------------


def from_json(written: Any) -> pa.DataType:
    """Return a type that Spark wrote, or json_of(). Raises ValueError."""
    if isinstance(written, str):
        found = _SIMPLE.get(written)
        decimal = _DECIMAL.fullmatch(written)
        if found is None and decimal is None:
            raise ValueError(f"there is no type {written!r} here")
        return found if decimal is None else pa.decimal128(int(decimal[1]), int(decimal[2]))
    match written["type"]:
        case "struct":
            return pa.struct(
                [pa.field(each["name"], from_json(each["type"]), each["nullable"]) for each in written["fields"]]
            )
        case "array":
            return array_of(from_json(written["elementType"]), nullable=written["containsNull"])
        case "map":
            value = pa.field("value", from_json(written["valueType"]), written["valueContainsNull"])
            return pa.map_(from_json(written["keyType"]), value)
    raise ValueError(f"there is no type {written['type']!r} here")


def json_of(of_type: pa.DataType) -> Any:
    """Return a type as Spark writes it in JSON. Raises ValueError for one that is not from here."""
    if pa.types.is_struct(of_type):
        fields = [
            {"name": each.name, "type": json_of(each.type), "nullable": each.nullable, "metadata": {}}
            for each in fields_of(of_type)
        ]
        return {"type": "struct", "fields": fields}
    if pa.types.is_list(of_type):
        held = of_type.value_field
        return {"type": "array", "elementType": json_of(held.type), "containsNull": held.nullable}
    if pa.types.is_map(of_type):
        value = of_type.item_field
        return {
            "type": "map", "keyType": json_of(of_type.key_type), "valueType": json_of(value.type),
            "valueContainsNull": value.nullable,
        }  # fmt: skip
    if pa.types.is_decimal(of_type):
        return f"decimal({of_type.precision},{of_type.scale})"
    if of_type not in _IN_JSON:
        raise ValueError(f"{of_type} is no type of a column here")
    return _IN_JSON[of_type]


# DDL ----------------------------------------------------------------------------------------------------------------


def ddl_of(of_type: pa.DataType) -> str:
    """Return a type as people write it: `struct<a:int,b:array<double>>`."""
    if pa.types.is_struct(of_type):
        return f"struct<{','.join(f'{each.name}:{ddl_of(each.type)}' for each in fields_of(of_type))}>"
    if pa.types.is_list(of_type):
        return f"array<{ddl_of(of_type.value_type)}>"
    if pa.types.is_map(of_type):
        return f"map<{ddl_of(of_type.key_type)},{ddl_of(of_type.item_type)}>"
    name = str(json_of(of_type))
    return _IN_DDL.get(name, name)


def parse_ddl(text: str) -> pa.StructType:
    """Return the fields that a text such as `celsius double, at timestamp not null` names. Raises ValueError."""
    return _Ddl(text).whole()


class _Ddl:
    """A text that is being read, from left to right."""

    def __init__(self, text: str) -> None:
        self._tokens = _TOKEN.findall(text)
        self._at = 0

    def whole(self) -> pa.StructType:
        found = self._fields(":", None)
        if self._at < len(self._tokens):
            self._wrong("a comma")
        return found

    def _fields(self, colon: str, end: str | None) -> pa.StructType:
        fields: list[pa.Field] = []
        while self._peek() != end:
            name = self._next("the name of a field")
            if name.startswith("`") and len(name) > 2:
                name = name[1:-1].replace("``", "`")
            elif not (name[0].isalnum() or name[0] == "_"):
                self._wrong("the name of a field", 1)
            if any(each.name.lower() == name.lower() for each in fields):
                raise ValueError(f"the field {name} is there twice")
            if self._peek() == colon:
                self._at += 1
            of_type = self._type()
            fields.append(pa.field(name, of_type, nullable=not self._not_null()))
            if self._peek_word() == "comment":
                self._at += 1
                self._next("a comment")
            if self._peek() != ",":
                break
            self._at += 1
            if self._peek() == end:
                self._wrong("the name of a field")
        return pa.struct(fields)

    def _not_null(self) -> bool:
        if self._peek_word() != "not":
            return False
        self._at += 1
        if self._next("null").lower() != "null":
            self._wrong("null", 1)
        return True

    def _type(self) -> pa.DataType:
        word = self._next("a type").lower()
        word = _ALIASES.get(word, word)
        if word in _DECIMALS:
            return self._decimal()
        match word:
            case "array":
                self._need("<")
                held = self._type()
                self._need(">")
                return array_of(held)
            case "map":
                self._need("<")
                key = self._type()
                self._need(",")
                value = self._type()
                self._need(">")
                return pa.map_(key, pa.field("value", value))
            case "struct":
                self._need("<")
                found = self._fields(":", ">")
                self._need(">")
                return found
        if word not in _SIMPLE or word == "void":
            raise ValueError(f"there is no type {word!r}")
        return _SIMPLE[word]

    def _decimal(self) -> pa.DataType:
        precision, scale = 10, 0
        if self._peek() == "(":
            self._at += 1
            precision = self._number()
            if self._peek() == ",":
                self._at += 1
                scale = self._number()
            self._need(")")
        if not 1 <= precision <= 38 or scale > precision:
            raise ValueError(f"there is no decimal({precision},{scale})")
        return pa.decimal128(precision, scale)

    def _number(self) -> int:
        word = self._next("a number")
        if not word.isdecimal():
            self._wrong("a number", 1)
        return int(word)

    def _peek(self) -> str | None:
        return self._tokens[self._at] if self._at < len(self._tokens) else None

    def _peek_word(self) -> str:
        return (self._peek() or "").lower()

    def _next(self, what: str) -> str:
        token = self._peek()
        if token is None:
            self._wrong(what)
        self._at += 1
        return token

    def _need(self, token: str) -> None:
        if self._peek() != token:
            self._wrong(repr(token))
        self._at += 1

    def _wrong(self, what: str, back: int = 0) -> NoReturn:
        at = self._at - back
        found = f"{self._tokens[at]!r}" if at < len(self._tokens) else "the end"
        raise ValueError(f"{what} should stand where there is {found}")


# Values -------------------------------------------------------------------------------------------------------------


def nullable(of_type: pa.DataType) -> pa.DataType:
    """Return a type whose values may all be null, on every level."""
    if pa.types.is_struct(of_type):
        return pa.struct([pa.field(each.name, nullable(each.type)) for each in fields_of(of_type)])
    if pa.types.is_list(of_type):
        return array_of(nullable(of_type.value_type))
    if pa.types.is_map(of_type):
        return pa.map_(of_type.key_type, pa.field("value", nullable(of_type.item_type)))
    return of_type


def conformed(array: pa.Array, of_type: pa.DataType) -> pa.Array:
    """Return values as those of a type that their own one has grown to: fields that it has more are null.

    No value is copied but where there is a new field.
    """
    if array.type == of_type:
        return array
    if pa.types.is_struct(of_type):
        # Without offset, and without what null structs hold.
        names = {each.name: index for index, each in enumerate(fields_of(array.type))}
        children = []
        for each in fields_of(of_type):
            if each.name in names:
                children.append(conformed(array.field(names[each.name]), each.type))
            else:
                children.append(pa.nulls(len(array), each.type))
        mask = array.is_null() if array.null_count else None
        return pa.StructArray.from_arrays(children, fields=fields_of(of_type), mask=mask)
    if pa.types.is_list(of_type):
        # from_arrays() takes offsets with nulls in them for null lists.
        flat = conformed(array.flatten(), of_type.value_type)
        return pa.ListArray.from_arrays(_offsets(array), flat, type=of_type)
    if pa.types.is_map(of_type):
        flat = array.cast(pa.list_(pa.struct([("key", array.type.key_type), ("value", array.type.item_type)])))
        entries = flat.flatten()
        items = conformed(entries.field(1), of_type.item_type)
        return pa.MapArray.from_arrays(_offsets(flat), entries.field(0), items, type=of_type)
    return array.cast(of_type)


def _offsets(lists: pa.Array) -> pa.Array:
    """Return the offsets of lists in what flatten() makes of them, null where a list is."""
    import pyarrow.compute as pc

    lengths = pc.fill_null(pc.list_value_length(lists), 0)
    ends = pc.cumulative_sum(lengths.cast(pa.int32()))
    if lists.null_count:
        starts = pc.subtract(ends, lengths.cast(pa.int32()))
        starts = pc.if_else(lists.is_null(), pa.scalar(None, pa.int32()), starts)
        last = ends[-1:] if len(ends) else pa.array([0], pa.int32())
        return pa.concat_arrays([starts, last])
    return pa.concat_arrays([pa.array([0], pa.int32()), ends])
