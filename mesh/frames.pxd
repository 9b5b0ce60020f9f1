"""Frames between routers, encoded and decoded where they lie. docs/mesh.md has every byte."""

from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from router.core.message cimport Message
from router.log.record_cursor cimport MessageFields

cdef enum:
    FRAME_VERSION = 4
    NUMBERS_MAX = 8              # numbers of a header that are kept; more are passed over

cdef enum FrameKind:             # names in frames.KINDS
    FRAME_DATA = 1               # epoch, index, perhaps epoch, index, sequence of an ack, perhaps began after; then entries
    FRAME_ACK = 2                # epoch, index, sequence, stamp, incarnation
    FRAME_GAP = 3                # epoch, sequence, incarnation
    FRAME_HEARTBEAT = 4          # epoch, index, stamp, sent record, began after
    FRAME_HELLO = 5              # these and the next are the gluing's: msgpack all through
    FRAME_INTEREST = 6
    FRAME_INTEREST_INSTALLED = 7
    FRAME_GOSSIP = 8
    FRAME_CALL = 9
    FRAME_ANSWER = 10
    FRAME_KIND_END = 11

cdef enum:                       # of an entry
    ENTRY_HEADER = 12
    HEADER_ROOM = 64             # bytes that a sealed header takes at most
    ENTRY_QOS = 3                # flags: both bits
    ENTRY_RETAIN = 4
    ENTRY_SEQUENCE = 8           # from here on: what follows the header
    ENTRY_RECORD = 16
    ENTRY_KEY = 32
    ENTRY_PROPERTIES = 64
    ENTRY_FLAGS = 127


cdef class FrameWriter:
    # One buffer: HEADER_ROOM bytes, then entries. seal() puts the header right in front of the first entry.
    cdef uint8_t* data
    cdef size_t capacity
    cdef size_t end                      # where the next entry begins; HEADER_ROOM at least
    cdef uint8_t* frame                  # what seal() made: valid until the next call of anything
    cdef size_t frame_length
    cdef readonly uint32_t count         # entries

    # Returns the entry's length in bytes. The message may be borrowed; now_us and now_ms are the same moment.
    cdef size_t add(self, Message message, uint64_t sequence, uint64_t n, bint retain, const uint8_t* ids,
                    uint32_t ids_length, uint64_t publisher_key, int64_t now_us, int64_t now_ms) except 0
    cdef int seal(self, int kind, const uint64_t* numbers, int number_count) noexcept
    cdef int clear(self) noexcept
    cdef int reserve(self, size_t more) except -1


cdef class FrameReader:
    cdef const uint8_t* data
    cdef size_t size
    cdef size_t offset                   # where the next entry begins
    cdef readonly int version            # of the frame's writer
    cdef readonly int kind
    cdef readonly int number_count       # numbers at the beginning of the header, behind version and kind
    cdef uint64_t[NUMBERS_MAX] numbers
    # The entry that next() came to; pointers into the frame.
    cdef readonly Message message        # borrowed: valid until the frame's bytes go or the next entry is read
    cdef readonly uint64_t sequence      # rises within an incarnation of the sender; 0: QoS 0, not acknowledged
    cdef readonly uint64_t n             # its record in the origin's log; 0: it is not there
    cdef readonly uint64_t publisher_key
    cdef const uint8_t* ids
    cdef readonly uint32_t ids_length

    cdef int open(self, const uint8_t* data, size_t size) except -1                   # raises FrameError
    cdef int next(self, int64_t now_us, int64_t now_ms) except -1                     # 1: an entry; 0: no more
    cdef int take_properties(self, const uint8_t* at, size_t length, size_t needed, MessageFields* fields) except -1
    cdef int expect(self, int count) except -1
    cdef size_t past_header(self) except 0


cdef int header(uint8_t* to, int kind, const uint64_t* numbers, int number_count) noexcept nogil   # its length
