"""Records of the commit log, decoded where they lie. docs/formats.md has every byte.

Everything is checked before it is followed; what is not as it must be ends the walk or raises RecordError, and nothing
outside the given bytes is ever read.
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from router.log.crc32c cimport record_crc32c
from router.core.message cimport NO_OFFSET, topic_hash

import msgpack

from router.log.record_kinds import BY_NUMBER, Record, RecordError, fits

cdef extern from *:
    """
    #include <string.h>
    /* The first place of `mark` at or after `from`, or `size`. */
    static size_t shoal_find_mark(const uint8_t *data, size_t from, size_t size, uint32_t mark) {
        const uint8_t first = (uint8_t)mark;
        while (size >= 4 && from <= size - 4) {
            const uint8_t *at = memchr(data + from, first, size - 3 - from);
            if (at == NULL)
                return size;
            from = (size_t)(at - data);
            if (at[1] == (uint8_t)(mark >> 8) && at[2] == (uint8_t)(mark >> 16) && at[3] == (uint8_t)(mark >> 24))
                return from;
            from++;
        }
        return size;
    }
    """
    size_t shoal_find_mark(const uint8_t*, size_t, size_t, uint32_t) noexcept nogil


cdef inline int decode_source(uint8_t kind, const uint8_t** body, size_t* length, MessageFields* fields) noexcept nogil:
    """Find where a record's message is from, and go behind that; -1 if it is not well-formed, or of another kind."""
    fields.origin = fields.incarnation = 0
    fields.accepted_us = 0
    fields.record = 0
    if kind == RECORD_ACCEPTED:
        return 0
    if kind == RECORD_STORED:
        if length[0] < STORED_HEADER:
            return -1
        fields.record = get64(body[0])
        if fields.record == 0:
            return -1
        body[0] += STORED_HEADER - COPY_HEADER
        length[0] -= STORED_HEADER - COPY_HEADER
    elif kind != RECORD_COPY and kind != RECORD_FORWARDED:
        return -1
    if length[0] < COPY_HEADER:
        return -1
    fields.origin = get32(body[0])
    fields.incarnation = get32(body[0] + 4)
    fields.accepted_us = <int64_t>get64(body[0] + 8)
    body[0] += COPY_HEADER
    length[0] -= COPY_HEADER
    return 0


cdef int decode_message(uint8_t kind, const uint8_t* body, size_t length, MessageFields* fields) noexcept nogil:
    """Find the fields of an accepted, a copy or a stored one in its body; -1 if it is not well-formed. Copies nothing."""
    cdef size_t used = MESSAGE_HEADER
    cdef uint8_t flags
    if decode_source(kind, &body, &length, fields) < 0 or length < MESSAGE_HEADER:
        return -1
    fields.n = get64(body)
    fields.properties_length = get32(body + 8)
    fields.topic_length = get16(body + 12)
    fields.publisher_length = get16(body + 14)
    fields.packet_identifier = get16(body + 16)
    flags = body[18]
    fields.qos = flags & FLAG_QOS
    fields.retain = (flags & FLAG_RETAIN) != 0
    fields.will = (flags & FLAG_WILL) != 0
    fields.picked = (flags & FLAG_PICKED) != 0
    if (flags & ~FLAGS_KNOWN or kind == RECORD_ACCEPTED and flags & FLAG_PICKED) or fields.qos == 3 or fields.topic_length == 0:
        return -1
    if fields.qos == 0 and fields.packet_identifier:
        return -1
    fields.expires_us = 0
    fields.expiry_offset = NO_OFFSET
    if flags & FLAG_EXPIRES:
        if length < used + 12:
            return -1
        fields.expires_us = <int64_t>get64(body + used)
        fields.expiry_offset = get32(body + used + 8)
        if fields.expires_us == 0:
            return -1
        if fields.expiry_offset != NO_OFFSET and <uint64_t>fields.expiry_offset + 4 > fields.properties_length:
            return -1
        used += 12
    fields.peer_count = 0
    fields.peers = NULL
    if flags & FLAG_PEERS:
        if length < used + 1 or body[used] == 0 or length < used + 1 + 4 * <size_t>body[used]:
            return -1
        fields.peer_count = body[used]
        fields.peers = body + used + 1
        used += 1 + 4 * <size_t>fields.peer_count
    if length - used < <size_t>fields.topic_length + fields.publisher_length + fields.properties_length:
        return -1
    fields.topic = body + used
    fields.publisher = fields.topic + fields.topic_length
    fields.properties = fields.publisher + fields.publisher_length
    fields.payload = fields.properties + fields.properties_length
    length -= used + fields.topic_length + fields.publisher_length + <size_t>fields.properties_length
    fields.payload_length = <uint32_t>length
    return 0


cdef Message message_of(const MessageFields* fields, int64_t now_us, int64_t now_ms):
    """Return an owned message; now_us and now_ms are the same moment, since 1970 and monotonic."""
    cdef Message borrowed = Message.__new__(Message)
    lend_message(borrowed, fields, now_us, now_ms)
    return borrowed.keep()


cdef int lend_message(Message borrowed, const MessageFields* fields, int64_t now_us, int64_t now_ms) except -1:
    """Make a message that owns nothing be what the fields are."""
    assert not borrowed.owned, "an owned message is not lent"
    borrowed.kept = None
    borrowed.frame = NULL
    borrowed.frame_length = 0
    borrowed.topic = fields.topic
    borrowed.topic_length = fields.topic_length
    borrowed.properties = fields.properties
    borrowed.properties_length = fields.properties_length
    borrowed.payload = fields.payload
    borrowed.payload_length = fields.payload_length
    borrowed.expiry_offset = fields.expiry_offset
    borrowed.alias_offset = NO_OFFSET
    borrowed.identifier_offset = NO_OFFSET
    borrowed.qos = fields.qos
    borrowed.retain = fields.retain
    borrowed.version = 5
    borrowed.record = 0
    borrowed.publisher_key = 0
    borrowed.received_ms = now_ms
    borrowed.expires_ms = 0
    if fields.expires_us:
        # Not 0, which would be never, and rounded up, which C's division does below 0: a message does not expire early.
        if fields.expires_us > now_us:
            borrowed.expires_ms = now_ms + (fields.expires_us - now_us + 999) // 1000
        else:
            borrowed.expires_ms = now_ms + (fields.expires_us - now_us) // 1000
        if borrowed.expires_ms == 0:
            borrowed.expires_ms = -1
    return 0


cdef size_t whole_records(const uint8_t* data, size_t size, uint32_t mark) noexcept nogil:
    """Return how many bytes at the beginning are whole records of a segment with the right check sums."""
    cdef size_t offset = 0
    cdef const uint8_t* record
    cdef uint32_t length
    while size - offset >= RECORD_HEADER:
        record = data + offset
        length = get32(record)
        if (length < RECORD_HEADER or length > RECORD_BYTES_MAX or length > size - offset
                or get32(record + MARK_AT) != mark or record_crc32c(record, length) != get32(record + 4)):
            break
        offset += length
    return offset


def checked_bytes(bytes data not None, mark: int) -> int:
    """Return how many bytes at the beginning are whole records with a segment's mark and the right check sums."""
    return whole_records(<const uint8_t*>PyBytes_AS_STRING(data), len(data), mark)


@cython.final
cdef class Cursor:
    """Walks the records of one segment that lie in memory.

    Args:
        data: bytes of the segment.
        base: where they begin in the segment's file.
        mark: the segment's.
        last_number: the number of the record before the first one; what follows is numbered without a gap.
        limit: stop before the record of this number; 0 for no limit.
        checked: of the data, how many bytes are records that have the right check sums (checked_bytes()).
    """

    def __init__(self, bytes data not None, base: int, mark: int, last_number: int, limit: int = 0, checked: int = 0):
        self.owner = data
        self.data = <const uint8_t*>PyBytes_AS_STRING(data)
        self.size = len(data)
        self.base = base
        self.mark = mark
        self.number = last_number
        self.limit = limit
        self.checked = checked
        self.status = CURSOR_OPEN

    cdef bint next(self) noexcept:
        cdef const uint8_t* record = self.data + self.offset
        cdef size_t left = self.size - self.offset
        cdef uint32_t length, ahead
        if left == 0:
            self.status = CURSOR_END
            return False
        if left < RECORD_HEADER:
            self.status = CURSOR_SHORT
            return False
        length = get32(record)
        if length < RECORD_HEADER or length > RECORD_BYTES_MAX or get32(record + MARK_AT) != self.mark:
            self.status = CURSOR_BAD
            return False
        if left < length:
            self.status = CURSOR_SHORT
            return False
        if self.offset + length > self.checked and record_crc32c(record, length) != get32(record + 4):
            self.status = CURSOR_BAD
            return False
        ahead = get32(record + 12) - <uint32_t>self.number
        if record[KIND_AT] & KIND_BITS == RECORD_SEALED:
            self.status = CURSOR_SEALED if ahead == 0 else CURSOR_BAD
        elif ahead != 1:
            self.status = CURSOR_BAD
        elif self.limit and self.number + 1 >= self.limit:
            self.status = CURSOR_LIMIT
        else:
            self.status = CURSOR_OPEN
            self.number += 1
        if self.status != CURSOR_OPEN and self.status != CURSOR_SEALED:
            return False
        self.start = self.offset
        self.time_us = <int64_t>get64(record + 16)
        self.kind = record[KIND_AT] & KIND_BITS
        self.begins_batch = record[KIND_AT] & BATCH_BEGINS
        if self.begins_batch:
            self.batch_at = self.base + self.offset
        self.body = record + RECORD_HEADER
        self.body_length = length - RECORD_HEADER
        self.offset += length
        return self.status == CURSOR_OPEN

    def step(self) -> bool:
        """Go to the next record; False if there is none here, and `status` says why."""
        return self.next()

    def __iter__(self) -> Cursor:
        return self

    def __next__(self) -> Record:
        if not self.next():
            raise StopIteration
        return self.record()

    def record(self) -> Record:
        """Return the record it stands at. Raises RecordError if its body is not what its kind says."""
        return Record(self.number, self.time_us, self.kind_name(), self.fields())

    def kind_name(self) -> str:
        """Return the name of the record's kind. Raises RecordError for a kind that there is not."""
        described = BY_NUMBER.get(self.kind)
        if described is None:
            raise RecordError(f"record {self.number} is of kind {self.kind}, which this version does not know")
        return described.name

    def fields(self) -> dict:
        """Return the record's fields by name. Raises RecordError."""
        return fields_of(self.kind, self.number, self.body, self.body_length)

    cdef int message_fields(self, MessageFields* fields) noexcept:
        return decode_message(self.kind, self.body, self.body_length, fields)

    def message(self, now_us: int, now_ms: int) -> Message:
        """Return the message of an accepted, a copy or a stored one, owned. Raises RecordError.

        Args:
            now_us, now_ms: the same moment, since 1970 and monotonic, to tell when the message expires.
        """
        cdef MessageFields fields
        if decode_message(self.kind, self.body, self.body_length, &fields):
            raise RecordError(f"record {self.number} is no message")
        cdef Message message = message_of(&fields, now_us, now_ms)
        message.record = fields.record if fields.record else self.number
        if fields.publisher_length:
            message.publisher_key = topic_hash(fields.publisher, fields.publisher_length)
        return message

    def find(self, size_t start) -> int:
        """Return where the next whole record with a higher number begins, at or after `start`, or -1."""
        cdef size_t at = start
        cdef const uint8_t* record
        cdef uint32_t length, ahead
        while True:
            at = shoal_find_mark(self.data, at + MARK_AT, self.size, self.mark)
            if at == self.size:
                return -1
            at -= MARK_AT
            record = self.data + at
            if self.size - at >= RECORD_HEADER:
                length = get32(record)
                ahead = get32(record + 12) - <uint32_t>self.number
                if RECORD_HEADER <= length <= self.size - at and length <= RECORD_BYTES_MAX \
                        and (1 <= ahead < 0x80000000 or (ahead == 0 and record[KIND_AT] & KIND_BITS == RECORD_SEALED)) \
                        and record_crc32c(record, length) == get32(record + 4):
                    return at
            at += 1

    def needed(self) -> int:
        """Return how many bytes from `offset` on the record that the bytes end within would need, if it is one."""
        if self.size - self.offset < 4:
            return RECORD_HEADER
        return get32(self.data + self.offset)

    def resume(self, size_t offset) -> int:
        """Go on at the record that find() found there; returns how many numbers were skipped."""
        cdef uint32_t missing = get32(self.data + offset + 12) - <uint32_t>self.number
        if self.data[offset + KIND_AT] & KIND_BITS != RECORD_SEALED:
            missing -= 1
        self.offset = offset
        self.number += missing
        self.status = CURSOR_OPEN
        return missing


cdef fields_of(uint8_t kind, number, const uint8_t* body, size_t length):
    cdef MessageFields fields
    described = BY_NUMBER.get(kind)
    if described is None:
        raise RecordError(f"record {number} is of kind {kind}, which this version does not know")
    if kind in (RECORD_ACCEPTED, RECORD_COPY, RECORD_STORED, RECORD_FORWARDED):
        if decode_message(kind, body, length, &fields):
            raise RecordError(f"record {number} is no well-formed {described.name}")
        return message_fields(kind, &fields)
    if kind == RECORD_ACKNOWLEDGED and length > ACKNOWLEDGED_HEADER:
        return {"packet_type": body[0], "reason": body[1], "packet_identifier": get16(body + 2),
                "client_identifier": some_bytes(body + ACKNOWLEDGED_HEADER, length - ACKNOWLEDGED_HEADER)}
    if kind == RECORD_RELEASED and length > RELEASED_HEADER:
        return {"packet_identifier": get16(body),
                "client_identifier": some_bytes(body + RELEASED_HEADER, length - RELEASED_HEADER)}
    if described.fixed:
        raise RecordError(f"record {number} is no well-formed {described.name}")
    try:
        values = msgpack.unpackb(some_bytes(body, length))
    except (ValueError, msgpack.UnpackException) as error:
        raise RecordError(f"record {number} ({described.name}) is not msgpack: {error}") from error
    if not isinstance(values, list):
        raise RecordError(f"record {number} ({described.name}) is not an array")
    wrong = fits(described, values)
    if wrong is not None:
        raise RecordError(f"record {number} ({described.name}): {wrong}")
    return {name: value for (name, _), value in zip(described.fields, values)}


cdef bytes some_bytes(const uint8_t* start, size_t length):
    return PyBytes_FromStringAndSize(<const char*>start, <Py_ssize_t>length)


cdef message_fields(uint8_t kind, const MessageFields* fields):
    found = {}
    if kind == RECORD_STORED:
        found = {"record": fields.record}
    if kind != RECORD_ACCEPTED:
        found.update(origin=fields.origin, incarnation=fields.incarnation, accepted_us=fields.accepted_us)
    found.update(
        n=fields.n, topic_name=some_bytes(fields.topic, fields.topic_length),
        publisher=some_bytes(fields.publisher, fields.publisher_length), packet_identifier=fields.packet_identifier,
        qos=fields.qos, retain=bool(fields.retain), will=bool(fields.will), picked=bool(fields.picked), expires_us=fields.expires_us,
        expiry_offset=-1 if fields.expiry_offset == NO_OFFSET else fields.expiry_offset,
        peers=tuple([get32(fields.peers + 4 * index) for index in range(fields.peer_count)]),
        properties=some_bytes(fields.properties, fields.properties_length),
        payload=some_bytes(fields.payload, fields.payload_length))
    return found
