"""Output buffers: pooled chunks in four sizes, and growable lists of pointers."""

from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdlib cimport realloc

cdef struct Chunk:
    Chunk* next
    uint32_t start               # first byte not sent
    uint32_t end                 # one past the last byte written; start <= end <= capacity
    uint32_t capacity            # bytes that follow this header
    uint32_t size_class          # which pool it goes back to; SIZE_CLASSES: none, it is freed

cdef struct Output:              # all zero while nothing is to be sent
    Chunk* head
    Chunk* tail
    uint64_t pending             # bytes not sent

cdef struct PointerList:
    void** items
    uint32_t count
    uint32_t capacity

cdef enum:
    LARGE_CHUNK = 65536          # at this many bytes pending an output is flushed inside the turn

cdef inline uint8_t* chunk_data(Chunk* chunk) noexcept nogil:
    return <uint8_t*>(chunk + 1)

cdef uint8_t* output_grow(Output* output, size_t size) except NULL

cdef inline uint8_t* output_room(Output* output, size_t size) except NULL:
    """Return where `size` more bytes go, and count them as written."""
    cdef Chunk* tail = output.tail
    cdef uint8_t* room
    if tail != NULL and tail.capacity - tail.end >= size:
        room = chunk_data(tail) + tail.end
        tail.end += <uint32_t>size
        output.pending += size
        return room
    return output_grow(output, size)

cdef void output_consume(Output* output, size_t size) noexcept     # that many bytes were sent
cdef void output_clear(Output* output) noexcept
cdef bytes output_bytes(Output* output, size_t size)               # a copy of the first ones

cdef inline int list_push(PointerList* items, void* item) except -1:
    cdef void** grown
    if items.count == items.capacity:
        grown = <void**>realloc(items.items, (items.capacity * 2 + 16) * sizeof(void*))
        if grown == NULL:
            raise MemoryError()
        items.items = grown
        items.capacity = items.capacity * 2 + 16
    items.items[items.count] = item
    items.count += 1
    return 0
