"""Values of the retained messages' index: a message with its record, or a tombstone. docs/formats.md has every byte."""

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

cdef enum:
    TRAILER = 8                  # behind a message's record: origin and incarnation
    TOMBSTONE = 24               # stamp, origin, incarnation, number; no message is as short

cdef int64_t stamp_in(bytes value) noexcept
cdef uint32_t origin_in(bytes value) noexcept
