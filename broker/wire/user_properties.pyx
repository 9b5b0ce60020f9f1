"""The user properties of 5.0, both ways: the one property that a packet may have by the hundred thousand."""

from cpython.bytearray cimport PyByteArray_AS_STRING
from cpython.bytes cimport PyBytes_AS_STRING
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport uint8_t
from libc.string cimport memcpy
from router.matching.topic_names cimport valid_utf8

cdef extern from "Python.h":
    const char* PyUnicode_AsUTF8AndSize(object text, Py_ssize_t* size) except NULL

cdef enum:
    USER_PROPERTY = 0x26


cdef inline Py_ssize_t string_at(const uint8_t* data, Py_ssize_t offset, Py_ssize_t end) noexcept nogil:
    """Return the length of a string with its length in front, -1 if it is cut short or no UTF-8."""
    cdef Py_ssize_t size
    if end - offset < 2:
        return -1
    size = data[offset] << 8 | data[offset + 1]
    if end - offset - 2 < size or not valid_utf8(data + offset + 2, size):
        return -1
    return size


def take_user_properties(bytes data not None, Py_ssize_t offset, Py_ssize_t end, list into) -> int:
    """Step over user properties in a row and return where the first thing begins that is none, or is not well-formed.

    Args:
        into: gets a (name, value) each; None: they are only checked, for some 10 ns each.
    """
    cdef const uint8_t* bytes_ = <const uint8_t*>PyBytes_AS_STRING(data)
    cdef Py_ssize_t name, value, at
    assert 0 <= offset and end <= len(data), (offset, end)
    while offset < end and bytes_[offset] == USER_PROPERTY:
        at = offset + 1
        name = string_at(bytes_, at, end)
        if name < 0:
            break
        value = string_at(bytes_, at + 2 + name, end)
        if value < 0:
            break
        if into is not None:
            into.append((PyUnicode_DecodeUTF8(<const char*>bytes_ + at + 2, name, NULL),
                         PyUnicode_DecodeUTF8(<const char*>bytes_ + at + 4 + name, value, NULL)))
        offset = at + 4 + name + value
    return offset


def put_user_properties(list pairs not None) -> bytearray:
    """Return user properties as they go into a packet; a name and a value are at most 65,535 bytes of UTF-8 each."""
    cdef Py_ssize_t size = 0, length = 0
    cdef const char* text
    cdef uint8_t* at
    for pair in pairs:
        for part in pair:
            PyUnicode_AsUTF8AndSize(part, &length)
            assert length <= 0xFFFF, length
            size += 2 + length
        size += 1
    encoded = bytearray(size)
    at = <uint8_t*>PyByteArray_AS_STRING(encoded)
    for pair in pairs:
        at[0] = USER_PROPERTY
        at += 1
        for part in pair:
            text = PyUnicode_AsUTF8AndSize(part, &length)
            at[0] = <uint8_t>(length >> 8)
            at[1] = <uint8_t>length
            memcpy(at + 2, text, length)
            at += 2 + length
    return encoded
