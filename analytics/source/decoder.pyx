"""Accepted messages of the log as the buffers of Arrow columns.

A row costs the copy of its bytes and no Python object. What Arrow is made of (validity bits, offsets, data) is filled
here; analytics.source.batches makes arrays of it, without another copy.
"""

cimport cython
from cpython.buffer cimport PyBuffer_FillInfo
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdlib cimport free, realloc
from libc.string cimport memcpy, memset
from router.log.record_cursor cimport RECORD_ACCEPTED, decode_message
from router.log.record_scan cimport filter_matches
from router.matching.topic_names cimport is_state_topic

cdef enum:
    BUFFER_MIN = 4096

# Names of columns, in the order of a row, and the bit by which each is wanted.
COLUMNS = {
    "time": WANT_TIME, "worker": WANT_WORKER, "incarnation": WANT_INCARNATION, "n": WANT_N, "node": WANT_NODE,
    "topic": WANT_TOPIC, "levels": WANT_LEVELS, "payload": WANT_PAYLOAD, "qos": WANT_QOS, "retain": WANT_RETAIN,
    "publisher": WANT_PUBLISHER, "will": WANT_WILL, "expires": WANT_EXPIRES, "text": WANT_TEXT,
    "content_type": WANT_CONTENT_TYPE, "response_topic": WANT_RESPONSE_TOPIC, "correlation_data": WANT_CORRELATION,
    "user_properties": WANT_USER_PROPERTIES,
}
STRETCH, FULL, LAST = FED_STRETCH, FED_FULL, FED_LAST


@cython.final
cdef class Buffer:
    """Bytes that grow until a caller takes a view of them: then they stay as they are."""

    def __dealloc__(self):
        free(self.data)

    def __len__(self) -> int:
        return self.size

    def __getbuffer__(self, Py_buffer* view, int flags):
        self.need(1)                     # Arrow wants an address, even of nothing
        PyBuffer_FillInfo(view, self, self.data, <Py_ssize_t>self.size, 1, flags)

    cdef int need(self, size_t more) except -1:
        cdef size_t capacity = self.capacity if self.capacity else BUFFER_MIN
        cdef uint8_t* data
        if self.capacity - self.size >= more:
            return 0
        while capacity - self.size < more:
            capacity *= 2
        data = <uint8_t*>realloc(self.data, capacity)
        if data == NULL:
            raise MemoryError()
        self.data = data
        self.capacity = capacity
        return 0

    cdef int put(self, const uint8_t* source, size_t length) except -1:
        if self.capacity - self.size < length:
            self.need(length)
        if length:
            memcpy(self.data + self.size, source, length)
            self.size += length
        return 0

    cdef int put32(self, int32_t value) except -1:
        return self.put(<const uint8_t*>&value, 4)

    cdef int put64(self, int64_t value) except -1:
        return self.put(<const uint8_t*>&value, 8)

    cdef int zeros(self, size_t length) except -1:
        if length:
            self.need(length)
            memset(self.data + self.size, 0, length)
            self.size += length
        return 0

    cdef int bits(self, uint32_t count) except -1:
        """Have room for so many bits; new ones are 0."""
        cdef size_t size = (<size_t>count + 7) >> 3
        return self.zeros(size - self.size) if size > self.size else 0


@cython.final
cdef class Values:
    """One column's buffers.

    Args:
        width: bytes of a value; 0 for bits.
        nullable: values may be null; there are validity bits once one is.
        offsets: values are texts or lists; there are offsets, the first of which is 0.
    """

    def __init__(self, *, uint32_t width=0, bint nullable=False, bint offsets=False):
        self.width = width
        self.nullable = nullable
        self.data = Buffer()
        if offsets:
            self.offsets = Buffer()
            self.offsets.put32(0)

    cdef int fill(self, uint32_t length) except -1:
        """Have so many values; new ones are null, or False, or empty lists. Cost: none where there are so many."""
        cdef uint32_t more = length - self.length
        cdef int32_t end
        if more == 0:
            return 0
        if self.nullable:
            if self.validity is None:
                self.validity = Buffer()
                self.validity.bits(length)
                memset(self.validity.data, 0xFF, self.length >> 3)
                if self.length & 7:
                    self.validity.data[self.length >> 3] = <uint8_t>((1 << (self.length & 7)) - 1)
            self.validity.bits(length)
            self.nulls += more
        if self.offsets is not None:
            memcpy(&end, self.offsets.data + self.offsets.size - 4, 4)
            self.offsets.need(4 * <size_t>more)
            for _ in range(more):
                self.offsets.put32(end)
        elif self.width:
            self.data.zeros(<size_t>more * self.width)
        else:
            self.data.bits(length)
        self.length = length
        return 0

    cdef int valid(self) except -1:
        """Say that the value that comes next is not null."""
        if self.validity is not None:
            self.validity.bits(self.length + 1)
            self.validity.data[self.length >> 3] |= <uint8_t>(1 << (self.length & 7))
        self.length += 1
        return 0

    cdef int text(self, const uint8_t* source, size_t length) except -1:
        self.data.put(source, length)
        self.offsets.put32(<int32_t>self.data.size)
        return self.valid()

    cdef int number(self, int64_t value) except -1:
        self.data.put64(value)
        return self.valid()

    cdef int byte(self, uint8_t value) except -1:
        self.data.put(&value, 1)
        return self.valid()

    cdef int bit(self, bint value) except -1:
        self.data.bits(self.length + 1)
        if value:
            self.data.data[self.length >> 3] |= <uint8_t>(1 << (self.length & 7))
        return self.valid()

    cdef int list_of(self, uint32_t end) except -1:
        """Put a list that holds its values up to this one, from where the one before it ends."""
        self.offsets.put32(<int32_t>end)
        return self.valid()


def count_accepted(Cursor cursor not None, uint64_t most) -> int:
    """Run a cursor until it has passed `most` accepted messages, or to its end; return how many it passed."""
    cdef uint64_t found = 0
    while found < most and cursor.next():
        found += cursor.kind == RECORD_ACCEPTED
    return found


@cython.final
cdef class Decoder:
    """Makes rows of the accepted messages of one log.

    Args:
        columns: which ones are filled, by their names in COLUMNS.
        worker: whose log it is.
        node: name of the node, or None.
        since_us, until_us: only messages accepted at this time or later, and before that time; µs since 1970.
        topic_filter: only messages that it matches; checked, without $share. None: all.

    Memory: one batch; what was taken belongs to whoever has it.
    """

    def __init__(self, columns, *, worker: int, bytes node=None, since_us: int, until_us: int, bytes topic_filter=None):
        self.wanted = 0
        for name in columns:
            self.wanted |= COLUMNS[name]
        self.worker = worker
        self.node = node
        self.since_us = since_us
        self.until_us = until_us
        self.topic_filter = topic_filter
        self.begin()

    def begin(self) -> None:
        """Begin a new batch."""
        self.rows = 0
        self.bytes = 0
        self.time, self.n, self.worker_column, self.incarnation_column = [Values(width=8) for _ in range(4)]
        self.qos, self.retain, self.will = Values(width=1), Values(), Values()
        self.topic, self.payload = Values(offsets=True), Values(offsets=True)
        self.node_column = Values(nullable=True, offsets=True)
        self.publisher = Values(nullable=True, offsets=True)
        self.content_type = Values(nullable=True, offsets=True)
        self.response_topic = Values(nullable=True, offsets=True)
        self.correlation = Values(nullable=True, offsets=True)
        self.expires, self.text = Values(width=8, nullable=True), Values(nullable=True)
        self.levels, self.level_texts = Values(offsets=True), Values(offsets=True)
        self.properties = Values(offsets=True)
        self.property_names, self.property_values = Values(offsets=True), Values(offsets=True)

    def take(self) -> dict:
        """Return the columns of the batch by name, and begin a new one.

        A list has a tuple of itself and what it holds: (levels, texts), (user_properties, names, values).
        """
        taken = {
            "time": self.time, "worker": self.worker_column, "incarnation": self.incarnation_column, "n": self.n,
            "node": self.node_column, "topic": self.topic, "levels": (self.levels, self.level_texts),
            "payload": self.payload, "qos": self.qos, "retain": self.retain, "publisher": self.publisher,
            "will": self.will, "expires": self.expires, "text": self.text, "content_type": self.content_type,
            "response_topic": self.response_topic, "correlation_data": self.correlation,
            "user_properties": (self.properties, self.property_names, self.property_values),
        }
        asked = {name: values for name, values in taken.items() if self.wanted & <uint32_t>COLUMNS[name]}
        for values in asked.values():
            (<Values>(values[0] if isinstance(values, tuple) else values)).fill(self.rows)
        self.begin()
        return asked

    def feed(self, Cursor cursor not None, incarnation: int, uint64_t after, uint64_t last, uint32_t rows_max,
             size_t bytes_max) -> int:
        """Make rows of a cursor's records, from where it stands on.

        Args:
            incarnation: of the segment.
            after: records up to this number are passed over.
            last: of the last record that is wanted.
            rows_max, bytes_max: what a batch may have; the last row may go over bytes_max.

        Returns STRETCH, FULL or LAST. Raises ValueError for an accepted record that is not well-formed.
        """
        cdef MessageFields fields
        self.incarnation = incarnation
        while True:
            if self.rows >= rows_max or self.bytes >= bytes_max:
                return FED_FULL
            if cursor.number >= last:
                return FED_LAST
            if not cursor.next():
                return FED_STRETCH
            self.passed += 1
            if cursor.kind != RECORD_ACCEPTED or cursor.number <= after:
                continue
            if not self.since_us <= cursor.time_us < self.until_us:
                continue
            if decode_message(cursor.kind, cursor.body, cursor.body_length, &fields):
                raise ValueError(f"record {cursor.number} at byte {cursor.base + cursor.start} is no well-formed message")
            if self.wants(&fields):
                self.add(cursor, &fields)

    cdef bint wants(self, const MessageFields* fields) noexcept:
        # What workers keep for one another was published by none.
        return not is_state_topic(fields.topic, fields.topic_length) and (self.topic_filter is None or filter_matches(
            <const uint8_t*>PyBytes_AS_STRING(self.topic_filter), PyBytes_GET_SIZE(self.topic_filter),
            fields.topic, fields.topic_length))

    cdef int add(self, Cursor cursor, const MessageFields* fields) except -1:
        # What few messages have is put where one has it: take() fills the columns up.
        cdef uint32_t wanted = self.wanted, row = self.rows
        self.bytes += <size_t>fields.topic_length + fields.payload_length + fields.properties_length + 64
        if wanted & WANT_TIME:
            self.time.number(cursor.time_us)
        if wanted & WANT_WORKER:
            self.worker_column.number(self.worker)
        if wanted & WANT_INCARNATION:
            self.incarnation_column.number(self.incarnation)
        if wanted & WANT_N:
            self.n.number(<int64_t>fields.n)
        if wanted & WANT_NODE and self.node is not None:
            self.node_column.text(<const uint8_t*>PyBytes_AS_STRING(self.node), PyBytes_GET_SIZE(self.node))
        if wanted & WANT_TOPIC:
            self.topic.text(fields.topic, fields.topic_length)
        if wanted & WANT_LEVELS:
            self.add_levels(fields.topic, fields.topic_length)
        if wanted & WANT_PAYLOAD:
            self.payload.text(fields.payload, fields.payload_length)
        if wanted & WANT_QOS:
            self.qos.byte(fields.qos)
        if wanted & WANT_RETAIN and fields.retain:
            self.retain.fill(row)
            self.retain.bit(True)
        if wanted & WANT_WILL and fields.will:
            self.will.fill(row)
            self.will.bit(True)
        if wanted & WANT_PUBLISHER and fields.publisher_length:
            self.publisher.fill(row)
            self.publisher.text(fields.publisher, fields.publisher_length)
        if wanted & WANT_EXPIRES and fields.expires_us:
            self.expires.fill(row)
            self.expires.number(fields.expires_us)
        if wanted & WANTS_PROPERTIES and fields.properties_length:
            self.add_properties(row, fields.properties, fields.properties_length)
        self.rows = row + 1
        return 0

    cdef int add_levels(self, const uint8_t* topic, size_t length) except -1:
        cdef size_t start = 0, at
        for at in range(length + 1):
            if at == length or topic[at] == 0x2F:
                self.level_texts.text(topic + start, at - start)
                start = at + 1
        return self.levels.list_of(self.level_texts.length)

    cdef int add_properties(self, uint32_t row, const uint8_t* at, size_t length) except -1:
        """Fill the columns that are properties of 5.0; what cannot be read ends them, as the broker let nothing such in."""
        cdef const uint8_t* end = at + length
        cdef const uint8_t* content = NULL
        cdef const uint8_t* response = NULL
        cdef const uint8_t* correlation = NULL
        cdef size_t content_length = 0, response_length = 0, correlation_length = 0
        cdef size_t first, second
        cdef uint32_t before = self.property_names.length
        cdef int text = -1
        cdef uint8_t name
        while at < end:
            name = at[0]
            at += 1
            if name == 0x01 and end - at >= 1:                   # Payload Format Indicator
                text = at[0]
                at += 1
            elif name == 0x02 and end - at >= 4:                 # Message Expiry Interval: `expires` has it
                at += 4
            elif name in (0x03, 0x08, 0x09) and end - at >= 2:   # Content Type, Response Topic, Correlation Data
                first = <size_t>at[0] << 8 | at[1]
                at += 2
                if <size_t>(end - at) < first:
                    break
                if name == 0x03:
                    content, content_length = at, first
                elif name == 0x08:
                    response, response_length = at, first
                else:
                    correlation, correlation_length = at, first
                at += first
            elif name == 0x26 and end - at >= 4:                 # User Property
                first = <size_t>at[0] << 8 | at[1]
                if <size_t>(end - at) < first + 4:
                    break
                second = <size_t>at[2 + first] << 8 | at[3 + first]
                if <size_t>(end - at) < first + second + 4:
                    break
                if self.wanted & WANT_USER_PROPERTIES:
                    self.property_names.text(at + 2, first)
                    self.property_values.text(at + 4 + first, second)
                at += first + second + 4
            else:
                break
        if self.wanted & WANT_TEXT and text >= 0:
            self.text.fill(row)
            self.text.bit(text == 1)
        if self.wanted & WANT_CONTENT_TYPE:
            put_optional(self.content_type, row, content, content_length)
        if self.wanted & WANT_RESPONSE_TOPIC:
            put_optional(self.response_topic, row, response, response_length)
        if self.wanted & WANT_CORRELATION:
            put_optional(self.correlation, row, correlation, correlation_length)
        if self.property_names.length > before:
            self.properties.fill(row)
            self.properties.list_of(self.property_names.length)
        return 0


cdef int put_optional(Values values, uint32_t row, const uint8_t* source, size_t length) except -1:
    if source == NULL:
        return 0
    values.fill(row)
    return values.text(source, length)
