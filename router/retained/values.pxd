"""Values of the retained messages' index: a message with its record, or a tombstone. docs/formats.md has every byte."""

from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t

cdef enum:
    TRAILER = 12                 # behind a message's record: origin, incarnation, check sum of these and the record's
    TRAILER_1 = 8                # in format 1: without the check sum
    TOMBSTONE = 28               # stamp, origin, incarnation, number, check sum; no message is as short
    TOMBSTONE_1 = 24             # in format 1: without the check sum

cdef struct Sizes:               # what one value adds to what the index counts
    uint64_t messages            # 0 for a tombstone
    uint64_t bytes
    int64_t due_us               # by when it expires, or a tombstone's stamp; -1: it stays for ever
    uint32_t origin
    uint64_t record

# Whether the bytes are a whole value of this key, check sums included; nothing is read behind their end.
cdef bint is_whole(const uint8_t* key, size_t key_length, const uint8_t* value, size_t length, Sizes* sizes) except -1
cdef int64_t stamp_in(bytes value) noexcept
cdef uint32_t origin_in(bytes value) noexcept
