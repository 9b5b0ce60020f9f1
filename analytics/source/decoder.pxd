"""Accepted messages of the log as the buffers of Arrow columns."""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from router.log.record_cursor cimport Cursor, MessageFields

cdef enum Wanted:                # a bit for each column that is filled
    WANT_TIME = 1
    WANT_WORKER = 2
    WANT_INCARNATION = 4
    WANT_N = 8
    WANT_NODE = 16
    WANT_TOPIC = 32
    WANT_LEVELS = 64
    WANT_PAYLOAD = 128
    WANT_QOS = 256
    WANT_RETAIN = 512
    WANT_PUBLISHER = 1024
    WANT_WILL = 2048
    WANT_EXPIRES = 4096
    WANT_CONTENT_TYPE = 8192
    WANT_RESPONSE_TOPIC = 16384
    WANT_CORRELATION = 32768
    WANT_USER_PROPERTIES = 65536
    WANT_TEXT = 131072
    WANTS_PROPERTIES = 253952    # any of the last five: the properties must be gone through

cdef enum Fed:                   # why feed() came back
    FED_STRETCH = 0              # the cursor is at its end, and its status says why
    FED_FULL = 1                 # the batch has as many rows or bytes as it may
    FED_LAST = 2                 # the last record that is wanted has been passed


cdef class Buffer:               # bytes of one Arrow buffer; they belong to whoever looks at them once they are taken
    cdef uint8_t* data
    cdef size_t size
    cdef size_t capacity
    cdef int need(self, size_t more) except -1
    cdef int put(self, const uint8_t* source, size_t length) except -1
    cdef int put32(self, int32_t value) except -1
    cdef int put64(self, int64_t value) except -1
    cdef int zeros(self, size_t length) except -1
    cdef int bits(self, uint32_t count) except -1


cdef class Values:               # a column: what Arrow calls validity, offsets and data; None where its type has none
    cdef readonly Buffer validity    # None while nothing is null
    cdef readonly Buffer offsets
    cdef readonly Buffer data
    cdef readonly uint32_t nulls
    cdef readonly uint32_t length
    cdef uint32_t width              # bytes of a value; 0: bits, or texts
    cdef bint nullable
    cdef int fill(self, uint32_t length) except -1
    cdef int valid(self) except -1
    cdef int text(self, const uint8_t* source, size_t length) except -1
    cdef int number(self, int64_t value) except -1
    cdef int bit(self, bint value) except -1
    cdef int byte(self, uint8_t value) except -1
    cdef int list_of(self, uint32_t end) except -1


cdef int put_optional(Values values, uint32_t row, const uint8_t* source, size_t length) except -1


cdef class Decoder:              # of one reader, for one log
    cdef uint32_t wanted
    cdef readonly uint32_t rows          # in the batch
    cdef readonly uint64_t passed        # records looked at, since it was made
    cdef size_t bytes                    # of topics, payloads and properties in the batch
    cdef int64_t since_us                # inclusive
    cdef int64_t until_us                # exclusive
    cdef bytes topic_filter              # None: any
    cdef int64_t worker
    cdef int64_t incarnation
    cdef bytes node                      # None: it has no name
    cdef Values time, worker_column, incarnation_column, n, node_column, topic, payload, qos, retain, publisher, will
    cdef Values expires, content_type, response_topic, correlation, text
    cdef Values levels, level_texts      # lists: offsets in the one, what they hold in the other
    cdef Values properties, property_names, property_values
    cdef bint wants(self, const MessageFields* fields) noexcept
    cdef int add(self, Cursor cursor, const MessageFields* fields) except -1
    cdef int add_levels(self, const uint8_t* topic, size_t length) except -1
    cdef int add_properties(self, uint32_t row, const uint8_t* at, size_t length) except -1
