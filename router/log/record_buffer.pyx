"""Records of the commit log, encoded into a growing buffer. docs/formats.md has every byte.

A record is encoded once, by whoever decides, and gets its segment's mark and its check sum when it is known which
segment it goes to. Kinds that happen per message have fixed layouts; the others' bodies are msgpack.
"""

cimport cython
from cpython.buffer cimport PyBuffer_FillInfo
from cpython.bytes cimport PyBytes_AS_STRING
from libc.stdlib cimport free, realloc
from libc.string cimport memcpy
from router.log.crc32c cimport record_crc32c
from router.log.record_cursor cimport BATCH_BEGINS, KIND_AT
from router.log.record_cursor cimport ACKNOWLEDGED_HEADER, COPY_HEADER, FLAG_EXPIRES, FLAG_PEERS, FLAG_PICKED, FLAG_RETAIN, FLAG_WILL
from router.log.record_cursor cimport MARK_AT, MESSAGE_HEADER, PEERS_MAX, RECORD_ACCEPTED, RECORD_ACKNOWLEDGED, RECORD_BYTES_MAX
from router.log.record_cursor cimport RECORD_COPY, RECORD_FORWARDED, RECORD_HEADER, RECORD_RELEASED, RECORD_SEALED, RECORD_STORED, RELEASED_HEADER
from router.log.record_cursor cimport STORED_HEADER
from router.log.record_cursor cimport Cursor, decode_message, get32, get64
from router.core.message cimport NO_OFFSET

import msgpack

from router.log.record_kinds import BY_NAME, RecordError, fits

cdef enum:
    BUFFER_MIN = 65536
    BUFFER_KEPT_MAX = 4194304    # an emptied buffer larger than this is given back to the allocator
    ALIAS_BYTES = 3


@cython.final
cdef class RecordBuffer:
    """Records waiting to be written.

    Args:
        last_number: the number of the newest record in the log; the first one put in here is the next.
    """

    def __init__(self, last_number: int = 0):
        self.last_number = last_number

    def __dealloc__(self):
        free(self.data)

    def __len__(self) -> int:
        return self.count

    def __getbuffer__(self, Py_buffer* view, int flags):
        PyBuffer_FillInfo(view, self, self.data, <Py_ssize_t>self.size, 1, flags)
        self.exports += 1

    def __releasebuffer__(self, Py_buffer* view):
        self.exports -= 1

    cdef int reserve(self, size_t more) except -1:
        cdef size_t capacity = self.capacity if self.capacity else BUFFER_MIN
        cdef uint8_t* data
        assert self.exports == 0, "records are put into a buffer that is being written"
        while capacity - self.size < more:
            capacity *= 2
        if capacity != self.capacity:
            data = <uint8_t*>realloc(self.data, capacity)
            if data == NULL:
                raise MemoryError()
            self.data = data
            self.capacity = capacity
        return 0

    cdef uint8_t* room(self, uint8_t kind, int64_t time_us, size_t body_length) except NULL:
        """Begin a record; the caller fills the body that is returned, without anything that can fail in between."""
        cdef size_t length = RECORD_HEADER + body_length
        cdef uint8_t* record
        assert length <= RECORD_BYTES_MAX, length
        if self.capacity - self.size < length or self.exports:
            self.reserve(length)
        record = self.data + self.size
        self.size += length
        self.count += 1
        self.last_number += 1
        put32(record, <uint32_t>length)
        put32(record + 12, <uint32_t>self.last_number)
        put64(record + 16, <uint64_t>time_us)
        record[24] = kind
        return record + RECORD_HEADER

    cdef uint64_t accepted(self, int64_t time_us, int64_t now_ms, uint64_t n, Message message, bytes publisher,
                           uint16_t packet_identifier, bint will, const uint32_t* peers, int peer_count) except 0:
        """Put in a message that this router is the first to have.

        Args:
            now_ms: the monotonic time that time_us is, for the message's expiry.
            n: of its id.
            publisher: client identifier of the session that it came from, or None.
            will: it is that session's will, which it has no more then.
            peers: numbers of `peer` records: whom the message is owed to; at most PEERS_MAX.

        Returns the record's number.
        """
        cdef MessageFields fields
        cdef uint8_t* body
        assert 0 <= peer_count <= PEERS_MAX, peer_count
        fields_of_message(&fields, message, time_us, now_ms)
        fields.n = n
        fields.publisher_length = <uint16_t>len(publisher) if publisher is not None else 0
        fields.publisher = <const uint8_t*>PyBytes_AS_STRING(publisher) if publisher is not None else NULL
        fields.packet_identifier = packet_identifier
        fields.will = will
        fields.peer_count = <uint8_t>peer_count
        body = self.room(RECORD_ACCEPTED, time_us, message_length(&fields))
        body = put_message(body, &fields)
        cdef int index
        for index in range(peer_count):
            put32(body + 1 + 4 * index, peers[index])
        put_properties(put_texts(body, &fields), message, &fields)
        return self.last_number

    cdef uint64_t copy_of(self, int64_t time_us, int64_t now_ms, uint32_t incarnation, Message message) except 0:
        """Put in a message of this worker's once more, as copy() does."""
        cdef MessageFields fields
        cdef uint8_t* body
        fields_of_message(&fields, message, time_us, now_ms)
        fields.n = message.record
        body = self.room(RECORD_COPY, time_us, COPY_HEADER + message_length(&fields))
        put32(body, 0)
        put32(body + 4, incarnation)
        put64(body + 8, <uint64_t>time_us)
        body = put_message(body + COPY_HEADER, &fields)
        put_properties(put_texts(body, &fields), message, &fields)
        return self.last_number

    cdef uint64_t forwarded(self, int64_t time_us, int64_t now_ms, Message message, uint32_t origin, uint32_t incarnation,
                            uint64_t n, bint picked) except 0:
        """Put in a message that a peer accepted and sent here.

        Args:
            now_ms: the monotonic time that time_us is, for the message's expiry.
            origin: the number of its `peer` record.
            incarnation: of that peer when it sent it.
            n: of its id there; 0: it has none.
            picked: it is for the members of shared subscriptions alone that the records before this one name.

        Returns the record's number.
        """
        cdef MessageFields fields
        cdef uint8_t* body
        fields_of_message(&fields, message, time_us, now_ms)
        fields.n = n
        fields.picked = picked
        body = self.room(RECORD_FORWARDED, time_us, COPY_HEADER + message_length(&fields))
        put32(body, origin)
        put32(body + 4, incarnation)
        put64(body + 8, <uint64_t>time_us)
        body = put_message(body + COPY_HEADER, &fields)
        put_properties(put_texts(body, &fields), message, &fields)
        return self.last_number

    cdef uint64_t copy(self, int64_t time_us, const MessageFields* fields) except 0:
        """Put in a message that was accepted elsewhere or earlier: the same fields, its id kept."""
        cdef uint8_t* body = self.room(RECORD_COPY, time_us, COPY_HEADER + message_length(fields))
        put32(body, fields.origin)
        put32(body + 4, fields.incarnation)
        put64(body + 8, <uint64_t>fields.accepted_us)
        body = put_message(body + COPY_HEADER, fields)
        if fields.peer_count:
            memcpy(body + 1, fields.peers, 4 * <size_t>fields.peer_count)
        body = put_texts(body, fields)
        if fields.properties_length:
            memcpy(body, fields.properties, fields.properties_length)
        return self.last_number

    cdef uint64_t stored(self, int64_t time_us, const MessageFields* fields) except 0:
        """Put in a message as a snapshot keeps it: the same fields, and the number of its record in the log."""
        cdef uint8_t* body = self.room(RECORD_STORED, time_us, STORED_HEADER + message_length(fields))
        put64(body, fields.record)
        put32(body + 8, fields.origin)
        put32(body + 12, fields.incarnation)
        put64(body + 16, <uint64_t>fields.accepted_us)
        body = put_message(body + STORED_HEADER, fields)
        if fields.peer_count:
            memcpy(body + 1, fields.peers, 4 * <size_t>fields.peer_count)
        body = put_texts(body, fields)
        if fields.properties_length:
            memcpy(body, fields.properties, fields.properties_length)
        return self.last_number

    cdef uint64_t acknowledged(self, int64_t time_us, bytes client_identifier, uint8_t packet_type,
                               uint16_t packet_identifier, uint8_t reason) except 0:
        cdef size_t length = len(client_identifier)
        cdef uint8_t* body = self.room(RECORD_ACKNOWLEDGED, time_us, ACKNOWLEDGED_HEADER + length)
        body[0] = packet_type
        body[1] = reason
        put16(body + 2, packet_identifier)
        memcpy(body + ACKNOWLEDGED_HEADER, PyBytes_AS_STRING(client_identifier), length)
        return self.last_number

    cdef uint64_t released(self, int64_t time_us, bytes client_identifier, uint16_t packet_identifier) except 0:
        cdef size_t length = len(client_identifier)
        cdef uint8_t* body = self.room(RECORD_RELEASED, time_us, RELEASED_HEADER + length)
        put16(body, packet_identifier)
        memcpy(body + RELEASED_HEADER, PyBytes_AS_STRING(client_identifier), length)
        return self.last_number

    def add(self, kind: str, time_us: int, *values) -> int:
        """Put in a record of a kind whose body is msgpack; returns its number.

        Args:
            time_us: since 1970.
            values: the kind's fields, in the order of kinds.KINDS.
        """
        described = BY_NAME[kind]
        assert not described.fixed and described.number != RECORD_SEALED, kind
        wrong = fits(described, values)
        assert wrong is None, f"{kind}: {wrong}"
        cdef bytes packed = msgpack.packb(values)
        memcpy(self.room(described.number, time_us, len(packed)), PyBytes_AS_STRING(packed), len(packed))
        return self.last_number

    def add_accepted(self, time_us: int, n: int, Message message not None, bytes publisher=None,
                     packet_identifier: int = 0, peers: tuple[int, ...] = (), now_ms: int = 0,
                     will: bool = False) -> int:
        """accepted() for Python callers."""
        cdef uint32_t[PEERS_MAX] numbers
        assert len(peers) <= PEERS_MAX, len(peers)
        for index, peer in enumerate(peers):
            numbers[index] = peer
        return self.accepted(time_us, now_ms, n, message, publisher, packet_identifier, will, numbers, <int>len(peers))

    def add_acknowledged(self, time_us: int, bytes client_identifier not None, packet_type: int, packet_identifier: int,
                         reason: int) -> int:
        """acknowledged() for Python callers."""
        return self.acknowledged(time_us, client_identifier, packet_type, packet_identifier, reason)

    def add_released(self, time_us: int, bytes client_identifier not None, packet_identifier: int) -> int:
        """released() for Python callers."""
        return self.released(time_us, client_identifier, packet_identifier)

    def add_forwarded(self, time_us: int, Message message not None, origin: int, incarnation: int, n: int,
                      picked: bool = False, now_ms: int = 0) -> int:
        """forwarded() for Python callers."""
        return self.forwarded(time_us, now_ms, message, origin, incarnation, n, picked)

    def add_copy(self, Cursor cursor not None, time_us: int, origin: int, incarnation: int,
                 dict origins=None) -> int:
        """Put in the message that a cursor stands at, an accepted one or a copy; returns the new record's number.

        Args:
            origin: 0 for this worker, else the number of a `peer` record; a copy keeps its own.
            incarnation: the origin's; a copy keeps its own.
            origins: of another worker's log: its numbers of origins -> those of this one.
        """
        cdef MessageFields fields
        if decode_message(cursor.kind, cursor.body, cursor.body_length, &fields):
            raise RecordError(f"record {cursor.number} is no message")
        if cursor.kind == RECORD_ACCEPTED:
            fields.origin = origin
            fields.incarnation = incarnation
            fields.accepted_us = cursor.time_us
        elif origins is not None:
            fields.origin = origins[fields.origin]
        return self.copy(time_us, &fields)

    def add_stored(self, Cursor cursor not None, incarnation: int) -> int:
        """Put in the message that a cursor stands at, as a snapshot keeps it; returns the new record's number.

        Args:
            incarnation: of the worker that accepted it; a copy or a stored one keeps its own.
        """
        cdef MessageFields fields
        if cursor.message_fields(&fields):
            raise RecordError(f"record {cursor.number} is no message")
        if cursor.kind == RECORD_ACCEPTED:
            fields.origin = 0
            fields.incarnation = incarnation
            fields.accepted_us = cursor.time_us
        if cursor.kind != RECORD_STORED:
            fields.record = cursor.number
        return self.stored(cursor.time_us, &fields)

    def take(self, RecordBuffer other not None) -> None:
        """Move all records of another buffer, whose numbers follow ours, behind those in this one.

        Cost: O(1) if this one is empty, else one copy.
        """
        assert other.last_number - other.count == self.last_number, (self.last_number, other.last_number, other.count)
        assert other.exports == 0 and self.exports == 0, "a buffer is taken while it is being written"
        cdef uint8_t* data = self.data
        cdef size_t capacity = self.capacity
        if self.size == 0:
            self.data, self.capacity = other.data, other.capacity
            other.data, other.capacity = data, capacity
            self.size = other.size
        elif other.size:
            self.reserve(other.size)
            memcpy(self.data + self.size, other.data, other.size)
            self.size += other.size
        self.count += other.count
        self.last_number = other.last_number
        other.size = other.count = 0

    def clear(self) -> None:
        """Forget the records; their numbers stay used."""
        assert self.exports == 0, "a buffer is cleared while it is being written"
        self.size = self.count = 0
        if self.capacity > BUFFER_KEPT_MAX:
            free(self.data)
            self.data = NULL
            self.capacity = 0

    def stamp(self, mark: int) -> None:
        """Make a batch of the records: the first one says so, each gets its segment's mark and its check sum.

        Works without the GIL.
        """
        cdef uint32_t of_segment = mark
        cdef uint8_t* record = self.data
        cdef uint8_t* end = self.data + self.size
        cdef uint32_t length
        if self.size:
            record[KIND_AT] |= BATCH_BEGINS
        with nogil:
            while record < end:
                length = get32(record)
                put32(record + MARK_AT, of_segment)
                put32(record + 4, record_crc32c(record, length))
                record += length

    @property
    def first_number(self) -> int:
        """The number of the first record in it, or of the next one that will be."""
        return self.last_number - self.count + 1

    def times_us(self) -> tuple[int, int]:
        """Return the earliest and the latest time of the records in it; not to be asked of an empty one."""
        assert self.count, "no records"
        cdef uint8_t* record = self.data
        cdef int64_t earliest = <int64_t>get64(record + 16)
        cdef int64_t latest = earliest
        cdef int64_t time_us
        while record < self.data + self.size:
            time_us = <int64_t>get64(record + 16)
            earliest = min(earliest, time_us)
            latest = max(latest, time_us)
            record += get32(record)
        return earliest, latest


cdef int fields_of_message(MessageFields* fields, Message message, int64_t time_us, int64_t now_ms) noexcept:
    """Fill in what a message says of itself; time_us and now_ms are the same moment."""
    cdef size_t alias = ALIAS_BYTES if message.alias_offset != NO_OFFSET and message.properties_length else 0
    # Every field, one by one: gcc makes `rep stos` of a memset of this size, which takes as long as all the rest.
    fields.n = fields.record = 0
    fields.accepted_us = 0
    fields.origin = fields.incarnation = 0
    fields.publisher_length = fields.packet_identifier = 0
    fields.will = fields.picked = False
    fields.peer_count = 0
    fields.peers = fields.publisher = fields.properties = NULL
    fields.expires_us = time_us + (message.expires_ms - now_ms) * 1000 if message.expires_ms else 0
    fields.expiry_offset = message.expiry_offset
    if alias and message.expiry_offset != NO_OFFSET and message.expiry_offset > message.alias_offset:
        fields.expiry_offset -= ALIAS_BYTES
    fields.properties_length = <uint32_t>(message.properties_length - alias)
    fields.payload_length = message.payload_length
    fields.topic_length = message.topic_length
    fields.qos = message.qos
    fields.retain = message.retain
    fields.topic = message.topic
    fields.payload = message.payload
    return 0


cdef int put_properties(uint8_t* body, Message message, const MessageFields* fields) noexcept:
    """Write a message's properties, without a Topic Alias: it means something on its connection only."""
    if fields.properties_length != message.properties_length:
        memcpy(body, message.properties, message.alias_offset)
        memcpy(body + message.alias_offset, message.properties + message.alias_offset + ALIAS_BYTES,
               message.properties_length - message.alias_offset - ALIAS_BYTES)
    elif fields.properties_length:
        memcpy(body, message.properties, fields.properties_length)
    return 0


cdef inline size_t message_length(const MessageFields* fields) noexcept nogil:
    cdef size_t length = MESSAGE_HEADER + <size_t>fields.topic_length + fields.publisher_length
    length += <size_t>fields.properties_length + fields.payload_length
    if fields.expires_us:
        length += 12
    if fields.peer_count:
        length += 1 + 4 * <size_t>fields.peer_count
    return length


cdef inline uint8_t* put_message(uint8_t* body, const MessageFields* fields) noexcept nogil:
    """Write what comes before the peers' numbers; returns where their count, or else the texts, begin."""
    put64(body, fields.n)
    put32(body + 8, fields.properties_length)
    put16(body + 12, fields.topic_length)
    put16(body + 14, fields.publisher_length)
    put16(body + 16, fields.packet_identifier)
    body[18] = fields.qos
    if fields.retain:
        body[18] |= FLAG_RETAIN
    if fields.will:
        body[18] |= FLAG_WILL
    if fields.picked:
        body[18] |= FLAG_PICKED
    if fields.expires_us:
        body[18] |= FLAG_EXPIRES
        put64(body + 19, <uint64_t>fields.expires_us)
        put32(body + 27, fields.expiry_offset)
    if fields.peer_count:
        body[18] |= FLAG_PEERS
    body += MESSAGE_HEADER + (12 if fields.expires_us else 0)
    if fields.peer_count:
        body[0] = fields.peer_count
    return body


cdef inline uint8_t* put_texts(uint8_t* body, const MessageFields* fields) noexcept nogil:
    """Write topic name, publisher and payload behind the peers; returns where the properties belong."""
    cdef uint8_t* properties
    if fields.peer_count:
        body += 1 + 4 * <size_t>fields.peer_count
    memcpy(body, fields.topic, fields.topic_length)
    body += fields.topic_length
    if fields.publisher_length:
        memcpy(body, fields.publisher, fields.publisher_length)
    properties = body + fields.publisher_length
    if fields.payload_length:
        memcpy(properties + fields.properties_length, fields.payload, fields.payload_length)
    return properties


def sealed(number: int, first_us: int, last_us: int, index: list) -> RecordBuffer:
    """Return the record that seals a segment, in a buffer of its own.

    Args:
        number: of the segment's last record; the seal has no number of its own.
        index: [number, offset, time in µs] of some of the segment's records.
    """
    cdef RecordBuffer buffer = RecordBuffer(number - 1)
    cdef bytes packed = msgpack.packb([first_us, last_us, index])
    memcpy(buffer.room(RECORD_SEALED, last_us, len(packed)), PyBytes_AS_STRING(packed), len(packed))
    return buffer
