"""What may come before a client is let in."""

from libc.stdint cimport uint8_t, uint32_t

cdef enum:
    CONNECT_FIRST = 0x10         # first byte of a CONNECT, which has no flags

# If the first packet is no proper CONNECT, says what it is instead. Returns 1 if more bytes are needed to tell.
cdef int check_first_bytes(const uint8_t* data, size_t length) except -1

# What a client may send before its CONNECT is accepted is less, and smaller.
cdef int check_before_open(bint is_connecting, uint8_t packet_type, uint32_t packet_length, uint32_t bytes_max) except -1
