"""Records of the commit log, decoded where they lie. docs/formats.md has every byte."""

from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from router.core.message cimport Message

cdef enum RecordKind:            # those of fixed layout; kinds.KINDS has all of them
    RECORD_ACCEPTED = 1
    RECORD_COPY = 2
    RECORD_ACKNOWLEDGED = 3
    RECORD_RELEASED = 4
    RECORD_STORED = 5
    RECORD_FORWARDED = 6
    RECORD_SEALED = 63

cdef enum:
    RECORD_HEADER = 25           # length, CRC-32C, mark, number, time, kind
    KIND_AT = 24
    KIND_BITS = 0x7F             # of that byte
    BATCH_BEGINS = 0x80          # the other one: all records before this one were durable when it was written
    RECORD_BYTES_MAX = 0x20000000
    PEERS_MAX = 255

cdef enum:                       # within a record, and within the bodies of fixed layout
    MARK_AT = 8
    MESSAGE_HEADER = 19
    COPY_HEADER = 16             # what a copy has in front
    STORED_HEADER = 24           # what a stored one has in front: its record number, then as a copy
    ACKNOWLEDGED_HEADER = 4
    RELEASED_HEADER = 2
    FLAG_QOS = 3                 # both bits
    FLAG_RETAIN = 4
    FLAG_EXPIRES = 8             # expires_us and expiry_offset follow
    FLAG_PEERS = 16              # how many, and their numbers follow
    FLAG_WILL = 32               # the will of its publisher, which has none from here on
    FLAG_PICKED = 64             # forwarded for members of shared subscriptions only: the picks before it
    FLAGS_KNOWN = 127

cdef enum CursorStatus:          # why a cursor stands where it stands
    CURSOR_OPEN = 0              # there may be another record
    CURSOR_END = 1               # its bytes are used up, exactly
    CURSOR_SHORT = 2             # the bytes end within what may be a record
    CURSOR_BAD = 3               # what is here is not the next record
    CURSOR_SEALED = 4            # the record that seals its segment is here
    CURSOR_LIMIT = 5             # the next record's number is the limit: a later segment has it

cdef struct MessageFields:       # of an accepted or a copy; pointers into the body that was decoded
    uint64_t n                   # the id is (worker, incarnation, n)
    uint64_t record              # stored only: the number that deliveries know it by
    int64_t expires_us           # since 1970; 0: never
    int64_t accepted_us          # copy, stored and forwarded only
    uint32_t origin              # likewise: 0 for this worker, else the number of a `peer` record
    uint32_t incarnation         # likewise: of the origin
    uint32_t expiry_offset       # in properties, of the four bytes of Message Expiry Interval, or NO_OFFSET
    uint32_t properties_length
    uint32_t payload_length
    uint16_t topic_length        # 1..65535
    uint16_t publisher_length    # 0: nobody with a session
    uint16_t packet_identifier   # as published; 0 at QoS 0
    uint8_t qos
    bint retain
    bint will
    bint picked
    uint8_t peer_count
    const uint8_t* peers         # four bytes each, little-endian: numbers of `peer` records
    const uint8_t* topic
    const uint8_t* publisher
    const uint8_t* properties    # never with a Topic Alias
    const uint8_t* payload

cdef inline uint16_t get16(const uint8_t* at) noexcept nogil:
    return <uint16_t>(at[0] | at[1] << 8)

cdef inline uint32_t get32(const uint8_t* at) noexcept nogil:
    return <uint32_t>at[0] | <uint32_t>at[1] << 8 | <uint32_t>at[2] << 16 | <uint32_t>at[3] << 24

cdef inline uint64_t get64(const uint8_t* at) noexcept nogil:
    return <uint64_t>get32(at) | <uint64_t>get32(at + 4) << 32


cdef class Cursor:
    # Walks records in memory. `number`, `kind`, `time_us`, `body` are those of the record it last came to.
    cdef bytes owner
    cdef const uint8_t* data
    cdef size_t size
    cdef size_t checked                  # up to there sums are known to be right
    cdef uint32_t mark
    cdef readonly CursorStatus status
    cdef readonly size_t offset          # where the next record begins
    cdef readonly uint64_t base          # where data begins in its file
    cdef readonly size_t start           # where the record begins
    cdef readonly uint64_t number
    cdef readonly int64_t time_us
    cdef readonly uint8_t kind
    cdef readonly bint begins_batch      # everything before it was durable when it was written
    cdef readonly uint64_t batch_at      # where in the file the last such record begins; 0: none was met
    cdef uint64_t limit                  # no record of this or a higher number is wanted
    cdef const uint8_t* body
    cdef size_t body_length
    cdef bint next(self) noexcept        # to the next record; False: there is none, status says why
    cdef int message_fields(self, MessageFields* fields) noexcept   # of the accepted, copy or stored it stands at; or -1


cdef int decode_message(uint8_t kind, const uint8_t* body, size_t length, MessageFields* fields) noexcept nogil   # -1: not one
cdef fields_of(uint8_t kind, number, const uint8_t* body, size_t length)                   # by name; RecordError
cdef Message message_of(const MessageFields* fields, int64_t now_us, int64_t now_ms)     # owned
# The same into a borrowed message, which is valid as long as the fields are.
cdef int lend_message(Message borrowed, const MessageFields* fields, int64_t now_us, int64_t now_ms) except -1
cdef size_t whole_records(const uint8_t* data, size_t size, uint32_t mark) noexcept nogil    # in bytes, sums right
