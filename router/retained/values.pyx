"""Values of the retained messages' index: a message with its record, or a tombstone. docs/formats.md has every byte.

A message's value is a whole `accepted` record with mark 0, check sum included, and behind it the origin and the
incarnation that make its number an id, with a check sum of their own. The record's time is the stamp. Format 1 had no
check sum but the record's; its values are still read.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.string cimport memcpy
from router.log.crc32c cimport crc32c, record_crc32c
from router.log.record_cursor cimport FLAG_EXPIRES, MARK_AT, MESSAGE_HEADER, RECORD_ACCEPTED, RECORD_HEADER
from router.log.record_cursor cimport MessageFields, decode_message, get32, get64, message_of
from router.core.message cimport Message
from router.log.record_buffer cimport RecordBuffer, put32, put64
from router.retained.keys import key_of

cdef enum:
    STAMP_AT = 16
    FLAGS_AT = RECORD_HEADER + 18
    PREFIX = 478                 # of a name: longer ones are not their own keys (router.retained.keys)
    EXPIRES_AT = RECORD_HEADER + 19
    EXPIRES_BYTES = 12
    DUE_BYTES = 9

DUE_MESSAGE = b"\0"            # what keys in `due` begin with
DUE_TOMBSTONE = b"\1"


cdef inline const uint8_t* bytes_of(bytes value) noexcept:
    return <const uint8_t*>PyBytes_AS_STRING(value)


cdef inline bint is_message(bytes value) noexcept:
    """Return whether a value is long enough for a message, so that nothing is read behind its end."""
    return PyBytes_GET_SIZE(value) > RECORD_HEADER + MESSAGE_HEADER + TRAILER_1


cdef inline Py_ssize_t trailer_at(const uint8_t* value, Py_ssize_t length) noexcept:
    """Return where the origin of a message's value is."""
    return length - (TRAILER_1 if get32(value) == <uint32_t>(length - TRAILER_1) else TRAILER)


cdef inline bint is_cleared(Py_ssize_t length) noexcept:
    return length == TOMBSTONE or length == TOMBSTONE_1


cdef int64_t stamp_in(bytes value) noexcept:
    if is_message(value):
        return <int64_t>get64(bytes_of(value) + STAMP_AT)
    return <int64_t>get64(bytes_of(value)) if is_cleared(PyBytes_GET_SIZE(value)) else 0


cdef uint32_t origin_in(bytes value) noexcept:
    if is_message(value):
        return get32(bytes_of(value) + trailer_at(bytes_of(value), PyBytes_GET_SIZE(value)))
    return get32(bytes_of(value) + 8) if is_cleared(PyBytes_GET_SIZE(value)) else 0


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
    sign(to, buffer.size, TRAILER)
    return value


cdef inline uint32_t trailer_crc(const uint8_t* record, const uint8_t* trailer) noexcept:
    """Return the check sum of a trailer: of its origin and incarnation, and of the record's check sum."""
    return crc32c(crc32c(0, record + 4, 4), trailer, TRAILER_1)


cdef inline void sign(uint8_t* record, size_t length, Py_ssize_t trailer) noexcept:
    """Write the check sums of a record and of the trailer behind it, if that has one."""
    put32(record + 4, record_crc32c(record, length))
    if trailer == TRAILER:
        put32(record + length + TRAILER_1, trailer_crc(record, record + length))


def without_record(bytes value not None) -> bytes:
    """Return a message's value with number 0: its record is in no log any more."""
    cdef bytes changed = PyBytes_FromStringAndSize(PyBytes_AS_STRING(value), PyBytes_GET_SIZE(value))
    cdef uint8_t* to = <uint8_t*>bytes_of(changed)
    cdef Py_ssize_t length = trailer_at(to, PyBytes_GET_SIZE(changed))
    assert is_message(value), value
    put64(to + RECORD_HEADER, 0)
    sign(to, length, PyBytes_GET_SIZE(changed) - length)
    return changed


def tombstone(bytes key not None, stamp_us: int, record: int, origin: int, incarnation: int) -> bytes:
    """Return the value that says that the topic of this key was cleared."""
    cdef bytes value = PyBytes_FromStringAndSize(NULL, TOMBSTONE)
    cdef uint8_t* to = <uint8_t*>bytes_of(value)
    put64(to, <uint64_t><int64_t>stamp_us)
    put32(to + 8, origin)
    put32(to + 12, incarnation)
    put64(to + 16, record)
    put32(to + TOMBSTONE_1, tombstone_crc(bytes_of(key), PyBytes_GET_SIZE(key), to))
    return value


cdef inline uint32_t tombstone_crc(const uint8_t* key, size_t key_length, const uint8_t* value) noexcept:
    """Return the check sum of a tombstone: of its key, which is nowhere else in it, and of the rest."""
    return crc32c(crc32c(0, key, key_length), value, TOMBSTONE_1)


def cleared(bytes key not None, bytes value not None) -> bytes:
    """Return the tombstone of a message, with its own stamp: it has expired, and nothing older may take its place."""
    cdef const uint8_t* trailer = bytes_of(value) + trailer_at(bytes_of(value), PyBytes_GET_SIZE(value))
    assert is_message(value), value
    return tombstone(key, stamp_in(value), record_of(value), get32(trailer), get32(trailer + 4))


def is_tombstone(bytes value not None) -> bool:
    """Return whether a topic was cleared."""
    return is_cleared(PyBytes_GET_SIZE(value))


def size_of(bytes value not None) -> int:
    """Return what a message counts for: bytes of topic name, properties and payload. 0 for a tombstone."""
    cdef Py_ssize_t size
    if not is_message(value):
        return 0
    size = trailer_at(bytes_of(value), PyBytes_GET_SIZE(value)) - RECORD_HEADER - MESSAGE_HEADER
    return size - EXPIRES_BYTES if bytes_of(value)[FLAGS_AT] & FLAG_EXPIRES else size


def stamp_of(bytes value not None) -> int:
    """Return the stamp of a message or a tombstone."""
    return stamp_in(value)


def record_of(bytes value not None) -> int:
    """Return the number of the record in the log of its origin; 0: it is in no log any more."""
    if is_message(value):
        return get64(bytes_of(value) + RECORD_HEADER)
    return get64(bytes_of(value) + 16) if PyBytes_GET_SIZE(value) == TOMBSTONE else 0


def id_of(bytes value not None) -> tuple[int, int]:
    """Return incarnation and number of the record of a message or a tombstone."""
    cdef const uint8_t* incarnation = bytes_of(value) + (
        12 if PyBytes_GET_SIZE(value) == TOMBSTONE else PyBytes_GET_SIZE(value) - TRAILER + 4)
    return get32(incarnation), record_of(value)


def origin_of(bytes value not None) -> int:
    """Return the number of the worker in whose log the record of a message or a tombstone is."""
    return origin_in(value)


def is_newer(bytes value not None, bytes other not None) -> bool:
    """Return whether one value's stamp, or for the same stamp its origin, is greater than the other's."""
    if stamp_in(value) != stamp_in(other):
        return stamp_in(value) > stamp_in(other)
    return origin_in(value) > origin_in(other)


def newest_of(one, other):
    """Return the newer one of two values of a key, either of which may be None."""
    if one is None or other is None:
        return other if one is None else one
    if origin_in(one) == origin_in(other) and record_of(one) and record_of(other):
        # What came over a link has the stamp of when it came, which may be later than that of what LMDB has since.
        return other if id_of(other) > id_of(one) else one
    return other if is_newer(other, one) else one


def due_of(bytes value not None) -> bytes | None:
    """Return the key in `due` of a value that does not stay for ever: by when it expires, or a tombstone's stamp."""
    if is_cleared(PyBytes_GET_SIZE(value)):
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
    return fields_at(bytes_of(value), PyBytes_GET_SIZE(value), fields) > 0


cdef Py_ssize_t fields_at(const uint8_t* record, Py_ssize_t size, MessageFields* fields) noexcept:
    """Find the fields of a message's value that is whole; returns its record's length, 0 if it is not one."""
    cdef Py_ssize_t length
    if size < RECORD_HEADER + TRAILER:
        return 0
    length = trailer_at(record, size)
    if length < RECORD_HEADER or get32(record) != <uint32_t>length or record[24] != RECORD_ACCEPTED:
        return 0
    if record_crc32c(record, length) != get32(record + 4):
        return 0
    if size - length == TRAILER and trailer_crc(record, record + length) != get32(record + length + TRAILER_1):
        return 0
    return length if decode_message(RECORD_ACCEPTED, record + RECORD_HEADER, length - RECORD_HEADER, fields) == 0 else 0


cdef bint is_whole(const uint8_t* key, size_t key_length, const uint8_t* value, size_t length, Sizes* sizes) except -1:
    """Return whether the bytes are a whole value of this key, check sums included."""
    cdef MessageFields fields
    cdef Py_ssize_t record_length
    cdef uint16_t at
    if is_cleared(length):
        sizes.messages = sizes.bytes = 0
        sizes.due_us = max(<int64_t>get64(value), 0)
        sizes.origin = get32(value + 8)
        sizes.record = get64(value + 16)
        return length == TOMBSTONE_1 or tombstone_crc(key, key_length, value) == get32(value + TOMBSTONE_1)
    record_length = fields_at(value, length, &fields)
    if record_length == 0:
        return False
    sizes.messages = 1
    sizes.bytes = fields.topic_length + fields.properties_length + fields.payload_length
    sizes.due_us = max(fields.expires_us, 0) if value[FLAGS_AT] & FLAG_EXPIRES else -1
    sizes.origin = get32(value + record_length)
    sizes.record = fields.n
    if key_length != fields.topic_length or fields.topic_length > PREFIX:
        return <bytes>key[:key_length] == key_of(<bytes>fields.topic[:fields.topic_length])
    for at in range(fields.topic_length):
        if key[at] != (0 if fields.topic[at] == 0x2F else fields.topic[at]):
            return False
    return True


def check(bytes key not None, bytes value not None) -> bool:
    """Return whether a value is whole and this key's, as far as check sums can tell."""
    cdef Sizes sizes
    return is_whole(bytes_of(key), PyBytes_GET_SIZE(key), bytes_of(value), PyBytes_GET_SIZE(value), &sizes)


def name_in(bytes value not None) -> bytes:
    """Return the topic name in a value, with 0 for the separator as in keys; nothing if the value is not whole."""
    cdef MessageFields fields
    if not fields_in(value, &fields):
        return b""
    return PyBytes_FromStringAndSize(<const char*>fields.topic, fields.topic_length).replace(b"/", b"\0")
