"""Variable Byte Integers (1.5.5): seven bits a byte, the lowest first, and a high bit where another byte follows.

MQTT's have four bytes at most; numbers of records, which are written in the same way, ten.
"""

from libc.stdint cimport uint8_t, uint32_t, uint64_t

cdef enum:
    VARINT_BYTES_MAX = 4         # of MQTT's
    NUMBER_BYTES_MAX = 10        # of a number of 64 bits


# One of at most bytes_max bytes at data[0:available]: returns its length and sets value; 0 if more bytes are needed,
# -1 if it is longer. It may be longer than need be: varint_length(value) says so. The tenth byte's bits above the 64th
# are lost.
cdef inline int read_number(const uint8_t* data, size_t available, int bytes_max, uint64_t* value) noexcept nogil:
    cdef uint64_t result = 0
    cdef int index
    for index in range(bytes_max):
        if <size_t>index >= available:
            return 0
        result |= <uint64_t>(data[index] & 0x7F) << (7 * index)
        if not data[index] & 0x80:
            value[0] = result
            return index + 1
    return -1

# The same of one of MQTT's.
cdef inline int read_varint(const uint8_t* data, size_t available, uint32_t* value) noexcept nogil:
    cdef uint64_t number = 0
    cdef int size = read_number(data, available, VARINT_BYTES_MAX, &number)
    if size > 0:
        value[0] = <uint32_t>number
    return size

# The bytes that one of MQTT's takes.
cdef inline uint32_t varint_length(uint32_t value) noexcept nogil:
    return 1 if value < 128 else 2 if value < 16384 else 3 if value < 2097152 else 4

# Returns where it ends.
cdef inline uint8_t* write_varint(uint8_t* data, uint64_t value) noexcept nogil:
    while value >= 128:
        data[0] = <uint8_t>(value | 0x80)
        data += 1
        value >>= 7
    data[0] = <uint8_t>value
    return data + 1
