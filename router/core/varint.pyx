"""Variable Byte Integers for what is not compiled."""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_FromStringAndSize


def encode_varint(value: int, bytes_max: int = VARINT_BYTES_MAX) -> bytes:
    """Return a number in as few bytes as it takes [MQTT-1.5.5-1]: 0..268,435,455, or below 2**64 in ten bytes."""
    cdef uint8_t[NUMBER_BYTES_MAX] encoded
    cdef Py_ssize_t length = write_varint(encoded, value) - encoded
    assert length <= bytes_max, value
    return PyBytes_FromStringAndSize(<char*>encoded, length)


def find_varint(data, at: int, bytes_max: int = VARINT_BYTES_MAX) -> tuple[int, int]:
    """Return the number at an offset of bytes or of a bytearray, and the offset behind it.

    That is 0 if the data ends inside the number, and -1 if that is longer than `bytes_max`, 1..10, says.
    """
    cdef Py_buffer view
    cdef uint64_t value = 0
    cdef int size
    cdef Py_ssize_t offset = at
    assert 1 <= bytes_max <= NUMBER_BYTES_MAX, bytes_max
    assert offset >= 0, at
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    size = read_number(<const uint8_t*>view.buf + offset, max(view.len - offset, 0), bytes_max, &value)
    PyBuffer_Release(&view)
    return value, offset + size if size > 0 else size
