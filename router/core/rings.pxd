"""Rings that grow: item number n of a ring is at n & (capacity - 1), from `head` up to, and without, `tail`."""

from libc.stdint cimport uint32_t, uint64_t

# A full ring, or NULL, is moved into one twice as large, of `least` items at first; `capacity`, a power of two, says how
# large it is then. What is not in use is zero. The old one is freed. MemoryError: nothing has changed.
cdef void* grown(void* ring, uint32_t* capacity, uint32_t least, size_t item_size, uint64_t head,
                 uint64_t tail) except NULL
