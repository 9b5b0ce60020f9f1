"""Records of the commit log, encoded into a growing buffer. docs/formats.md has every byte."""

from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy
from router.log.record_cursor cimport MessageFields
from router.core.message cimport Message

cdef extern from "<endian.h>" nogil:
    uint16_t htole16(uint16_t value)
    uint32_t htole32(uint32_t value)
    uint64_t htole64(uint64_t value)

# One store each to the compiler, and no assumption about alignment; of single bytes gcc makes as many shifts.
cdef inline void put16(uint8_t* to, uint16_t value) noexcept nogil:
    value = htole16(value)
    memcpy(to, &value, 2)

cdef inline void put32(uint8_t* to, uint32_t value) noexcept nogil:
    value = htole32(value)
    memcpy(to, &value, 4)

cdef inline void put64(uint8_t* to, uint64_t value) noexcept nogil:
    value = htole64(value)
    memcpy(to, &value, 8)

# What a message says of itself, its properties without a Topic Alias; time_us and now_ms are the same moment.
cdef int fields_of_message(MessageFields* fields, Message message, int64_t time_us, int64_t now_ms) noexcept
cdef int put_properties(uint8_t* body, Message message, const MessageFields* fields) noexcept     # those of the fields

cdef class RecordBuffer:
    # Whole records, one behind another, numbered without a gap; mark and CRC are missing until stamp().
    cdef uint8_t* data
    cdef size_t capacity
    cdef readonly size_t size            # bytes of records
    cdef readonly uint64_t count         # records in it
    cdef readonly uint64_t last_number   # of the newest record that was put in, also when it has been taken out
    cdef int exports                     # views on data; nothing moves while there are any

    cdef uint8_t* room(self, uint8_t kind, int64_t time_us, size_t body_length) except NULL   # of the new record's body
    cdef uint64_t accepted(self, int64_t time_us, int64_t now_ms, uint64_t n, Message message, bytes publisher,
                           uint16_t packet_identifier, bint will, const uint32_t* peers, int peer_count) except 0
    cdef uint64_t copy(self, int64_t time_us, const MessageFields* fields) except 0
    cdef uint64_t stored(self, int64_t time_us, const MessageFields* fields) except 0
    cdef uint64_t forwarded(self, int64_t time_us, int64_t now_ms, Message message, uint32_t origin, uint32_t incarnation,
                            uint64_t n, bint picked) except 0
    cdef uint64_t copy_of(self, int64_t time_us, int64_t now_ms, uint32_t incarnation, Message message) except 0
    cdef uint64_t acknowledged(self, int64_t time_us, bytes client_identifier, uint8_t packet_type,
                               uint16_t packet_identifier, uint8_t reason) except 0
    cdef uint64_t released(self, int64_t time_us, bytes client_identifier, uint16_t packet_identifier) except 0
    cdef int reserve(self, size_t more) except -1
