"""Arrow record batches of what the decoder filled."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow

if TYPE_CHECKING:
    from collections.abc import Mapping


def record_batch(schema: pyarrow.Schema, taken: Mapping[str, Any], rows: int) -> pyarrow.RecordBatch:
    """Return a batch over the buffers of Decoder.take(); they are not copied.

    Args:
        schema: the columns, each of which was decoded.
        rows: how many.
    """
    arrays = [_array(field.type, taken[field.name], rows) for field in schema]
    return pyarrow.RecordBatch.from_arrays(arrays, schema=schema)


def _array(of_type: pyarrow.DataType, values: Any, rows: int) -> pyarrow.Array:
    if not pyarrow.types.is_list(of_type):
        return _flat(of_type, values, rows)
    lists, *parts = values
    held = parts[0].length
    if pyarrow.types.is_struct(of_type.value_type):
        children = [_flat(field.type, part, held) for field, part in zip(of_type.value_type, parts, strict=True)]
        items = pyarrow.Array.from_buffers(of_type.value_type, held, [None], 0, children=children)
    else:
        items = _flat(of_type.value_type, parts[0], held)
    return pyarrow.Array.from_buffers(of_type, rows, [None, pyarrow.py_buffer(lists.offsets)], 0, children=[items])


def _flat(of_type: pyarrow.DataType, values: Any, rows: int) -> pyarrow.Array:
    buffers = [None if values.validity is None else pyarrow.py_buffer(values.validity)]
    if values.offsets is not None:
        buffers.append(pyarrow.py_buffer(values.offsets))
    buffers.append(pyarrow.py_buffer(values.data))
    return pyarrow.Array.from_buffers(of_type, rows, buffers, values.nulls)
