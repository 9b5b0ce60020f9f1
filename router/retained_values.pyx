"""Values of the retained messages' index: a message with its record, or a tombstone. docs/formats.md has every byte.

A message's value is a whole `accepted` record with mark 0, check sum included, and behind it the origin and the
incarnation that make its number an id. The record's time is the stamp.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.string cimport memcpy
from router.crc32c cimport record_crc32c
from router.cursor cimport FLAG_EXPIRES, MARK_AT, MESSAGE_HEADER, RECORD_ACCEPTED, RECORD_HEADER
from router.cursor cimport MessageFields, decode_message, get32, get64, message_of
from router.message cimport Message
from router.records cimport RecordBuffer, put32, put64

cdef enum:
    STAMP_AT = 16
    FLAGS_AT = RECORD_HEADER + 18
    EXPIRES_AT = RECORD_HEADER + 19
    EXPIRES_BYTES = 12
    DUE_BYTES = 9

DUE_MESSAGE = b"\0"            # what keys in `due` begin with
DUE_TOMBSTONE = b"\1"


cdef inline const uint8_t* bytes_of(bytes value) noexcept:
    return <const uint8_t*>PyBytes_AS_STRING(value)


cdef inline bint is_message(bytes value) noexcept:
    """Return whether a value is long enough for a message, so that nothing is read behind its end."""
    return PyBytes_GET_SIZE(value) > RECORD_HEADER + MESSAGE_HEADER + TRAILER


cdef int64_t stamp_in(bytes value) noexcept:
    if is_message(value):
        return <int64_t>get64(bytes_of(value) + STAMP_AT)
    return <int64_t>get64(bytes_of(value)) if PyBytes_GET_SIZE(value) == TOMBSTONE else 0


cdef uint32_t origin_in(bytes value) noexcept:
    if is_message(value):
        return get32(bytes_of(value) + PyBytes_GET_SIZE(value) - TRAILER)
    return get32(bytes_of(value) + 8) if PyBytes_GET_SIZE(value) == TOMBSTONE else 0


def encode(Message message not None, stamp_us: int, now_ms: int, record: int, origin: int, incarnation: int) -> bytes:
    """Return the value of a message; its arguments are those of RetainedIndex.store()."""
    cdef RecordBuffer buffer = RecordBuffer.__new__(RecordBuffer)
    cdef uint64_t number = record
    cdef bytes value
    cdef uint8_t* to
    buffer.last_number = number - 1
    buffer.accepted(stamp_us, now_ms, number, message, None, 0, False, NULL, 0)
    value = PyBytes_FromStringAndSize(NULL, buffer.size + TRAILER)
    to = <uint8_t*>bytes_of(value)
    memcpy(to, buffer.data, buffer.size)
    put32(to + MARK_AT, 0)
    put32(to + buffer.size, origin)
    put32(to + buffer.size + 4, incarnation)
    sign(to, buffer.size)
    return value


cdef inline void sign(uint8_t* record, size_t length) noexcept:
    """Write a record's check sum."""
    put32(record + 4, record_crc32c(record, length))


def without_record(bytes value not None) -> bytes:
    """Return a message's value with number 0: its record is in no log any more."""
    cdef bytes changed = PyBytes_FromStringAndSize(PyBytes_AS_STRING(value), PyBytes_GET_SIZE(value))
    cdef uint8_t* to = <uint8_t*>bytes_of(changed)
    assert is_message(value), value
    put64(to + RECORD_HEADER, 0)
    sign(to, PyBytes_GET_SIZE(changed) - TRAILER)
    return changed


def tombstone(stamp_us: int, record: int, origin: int, incarnation: int) -> bytes:
    """Return the value that says that a topic was cleared."""
    cdef bytes value = PyBytes_FromStringAndSize(NULL, TOMBSTONE)
    cdef uint8_t* to = <uint8_t*>bytes_of(value)
    put64(to, <uint64_t><int64_t>stamp_us)
    put32(to + 8, origin)
    put32(to + 12, incarnation)
    put64(to + 16, record)
    return value


def cleared(bytes value not None) -> bytes:
    """Return the tombstone of a message, with its own stamp: it has expired, and nothing older may take its place."""
    cdef const uint8_t* trailer = bytes_of(value) + PyBytes_GET_SIZE(value) - TRAILER
    assert is_message(value), value
    return tombstone(stamp_in(value), record_of(value), get32(trailer), get32(trailer + 4))


def is_tombstone(bytes value not None) -> bool:
    """Return whether a topic was cleared."""
    return PyBytes_GET_SIZE(value) == TOMBSTONE


def size_of(bytes value not None) -> int:
    """Return what a message counts for: bytes of topic name, properties and payload. 0 for a tombstone."""
    cdef Py_ssize_t size = PyBytes_GET_SIZE(value) - RECORD_HEADER - MESSAGE_HEADER - TRAILER
    if not is_message(value):
        return 0
    return size - EXPIRES_BYTES if bytes_of(value)[FLAGS_AT] & FLAG_EXPIRES else size


def stamp_of(bytes value not None) -> int:
    """Return the stamp of a message or a tombstone."""
    return stamp_in(value)


def record_of(bytes value not None) -> int:
    """Return the number of a message's record in the log of its origin; 0: it is in no log any more."""
    return get64(bytes_of(value) + RECORD_HEADER) if is_message(value) else 0


def origin_of(bytes value not None) -> int:
    """Return the number of the worker in whose log the record of a message or a tombstone is."""
    return origin_in(value)


def is_newer(bytes value not None, bytes other not None) -> bool:
    """Return whether one value's stamp, or for the same stamp its origin, is greater than the other's."""
    if stamp_in(value) != stamp_in(other):
        return stamp_in(value) > stamp_in(other)
    return origin_in(value) > origin_in(other)


def due_of(bytes value not None) -> bytes | None:
    """Return the key in `due` of a value that does not stay for ever: by when it expires, or a tombstone's stamp."""
    if PyBytes_GET_SIZE(value) == TOMBSTONE:
        return due_key(DUE_TOMBSTONE, stamp_in(value))
    if is_message(value) and bytes_of(value)[FLAGS_AT] & FLAG_EXPIRES:
        return due_key(DUE_MESSAGE, <int64_t>get64(bytes_of(value) + EXPIRES_AT))
    return None


def due_key(bytes kind not None, time_us: int) -> bytes:
    """Return the key in `due` of a time; they are in the order of kinds, then of times."""
    return kind + max(time_us, 0).to_bytes(8, "big")


def decode(bytes value not None, now_us: int, now_ms: int) -> Message | None:
    """Return the message in a value, owned, its `record` set; None if the check sum is wrong, or it is no message.

    Args:
        now_us, now_ms: the same moment, since 1970 and monotonic, to tell when the message expires.
    """
    cdef MessageFields fields
    cdef Message message
    if not fields_in(value, &fields):
        return None
    message = message_of(&fields, now_us, now_ms)
    message.record = fields.n
    return message


cdef bint fields_in(bytes value, MessageFields* fields) noexcept:
    """Find the fields of a value that is whole."""
    cdef const uint8_t* record = bytes_of(value)
    cdef Py_ssize_t length = PyBytes_GET_SIZE(value) - TRAILER
    if length < RECORD_HEADER or get32(record) != <uint32_t>length or record[24] != RECORD_ACCEPTED:
        return False
    if record_crc32c(record, length) != get32(record + 4):
        return False
    return decode_message(RECORD_ACCEPTED, record + RECORD_HEADER, length - RECORD_HEADER, fields) == 0


def name_in(bytes value not None) -> bytes:
    """Return the topic name in a value, with 0 for the separator as in keys; nothing if the value is not whole."""
    cdef MessageFields fields
    if not fields_in(value, &fields):
        return b""
    return PyBytes_FromStringAndSize(<const char*>fields.topic, fields.topic_length).replace(b"/", b"\0")
