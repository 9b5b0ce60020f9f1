"""Rings that grow: item number n of a ring is at n & (capacity - 1), from `head` up to, and without, `tail`."""

from libc.stdint cimport uint8_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy


cdef void* grown(void* ring, uint32_t* capacity, uint32_t least, size_t item_size, uint64_t head,
                 uint64_t tail) except NULL:
    cdef uint32_t size = capacity[0] * 2 if capacity[0] else least
    cdef uint8_t* old = <uint8_t*>ring
    cdef uint8_t* new = <uint8_t*>calloc(size, item_size)
    cdef uint64_t number
    if new == NULL:
        raise MemoryError()
    for number in range(head, tail):
        memcpy(new + (number & (size - 1)) * item_size, old + (number & (capacity[0] - 1)) * item_size, item_size)
    free(old)
    capacity[0] = size
    return new
