"""Output buffers: pooled chunks in four sizes, and growable lists of pointers.

An idle connection holds no chunk. A chunk is taken at the first byte of a turn and goes back when it has been sent.
Small outputs stay in small chunks, so that the outputs of a wide fan-out fit the cache together; larger ones move up
to 64 KiB (larger still page-faults at every flush).
"""

from libc.stdlib cimport free, malloc
from libc.string cimport memcpy

cdef enum:
    SIZE_CLASSES = 4
    POOL_BYTES_MAX = 8388608     # what the pools may keep, each

cdef uint32_t[SIZE_CLASSES] class_bytes
class_bytes[0] = 1024 - sizeof(Chunk)
class_bytes[1] = 4096 - sizeof(Chunk)
class_bytes[2] = 16384 - sizeof(Chunk)
class_bytes[3] = LARGE_CHUNK - sizeof(Chunk)

ctypedef Chunk* ChunkPointer
cdef ChunkPointer[SIZE_CLASSES] pool
cdef uint64_t[SIZE_CLASSES] pooled_bytes
cdef uint64_t chunks_out = 0     # taken and not given back
cdef uint64_t bytes_out = 0      # that these hold


cdef Chunk* take_chunk(size_t size) except NULL:
    global chunks_out, bytes_out
    cdef uint32_t size_class = 0
    cdef uint32_t capacity
    cdef Chunk* chunk
    while size_class < SIZE_CLASSES and class_bytes[size_class] < size:
        size_class += 1
    if size_class < SIZE_CLASSES and pool[size_class] != NULL:
        chunk = pool[size_class]
        pool[size_class] = chunk.next
        pooled_bytes[size_class] -= class_bytes[size_class]
    else:
        capacity = class_bytes[size_class] if size_class < SIZE_CLASSES else <uint32_t>size
        chunk = <Chunk*>malloc(sizeof(Chunk) + capacity)
        if chunk == NULL:
            raise MemoryError()
        chunk.capacity = capacity
        chunk.size_class = size_class
    chunk.next = NULL
    chunk.start = chunk.end = 0
    chunks_out += 1
    bytes_out += chunk.capacity
    return chunk


cdef void give_chunk(Chunk* chunk) noexcept:
    global chunks_out, bytes_out
    cdef uint32_t size_class = chunk.size_class
    chunks_out -= 1
    bytes_out -= chunk.capacity
    if size_class < SIZE_CLASSES and pooled_bytes[size_class] + chunk.capacity <= POOL_BYTES_MAX:
        chunk.next = pool[size_class]
        pool[size_class] = chunk
        pooled_bytes[size_class] += chunk.capacity
    else:
        free(chunk)


cdef uint8_t* output_grow(Output* output, size_t size) except NULL:
    """Make room behind what is written: a first chunk, a move to a larger one, or one more chunk in the chain."""
    cdef Chunk* tail = output.tail
    cdef Chunk* chunk
    cdef size_t held
    if tail == NULL:
        chunk = take_chunk(size)
        output.head = output.tail = chunk
    else:
        held = tail.end - tail.start
        if output.head == tail and held + size <= class_bytes[SIZE_CLASSES - 1]:
            chunk = take_chunk(held + size)
            memcpy(chunk_data(chunk), chunk_data(tail) + tail.start, held)
            chunk.end = <uint32_t>held
            output.head = output.tail = chunk
            give_chunk(tail)
        else:
            chunk = take_chunk(max(size, <size_t>class_bytes[SIZE_CLASSES - 1]))
            tail.next = chunk
            output.tail = chunk
    output.pending += size
    chunk.end += <uint32_t>size
    return chunk_data(chunk) + chunk.end - size


cdef void output_consume(Output* output, size_t size) noexcept:
    cdef Chunk* head
    cdef size_t held
    output.pending -= size
    while output.head != NULL:
        head = output.head
        held = head.end - head.start
        if size < held:
            head.start += <uint32_t>size
            return
        size -= held
        output.head = head.next
        give_chunk(head)
    output.tail = NULL


cdef void output_clear(Output* output) noexcept:
    output_consume(output, output.pending)


cdef bytes output_bytes(Output* output, size_t size):
    """Return a copy of the first `size` bytes that are pending, or of all if there are fewer."""
    cdef Chunk* chunk = output.head
    cdef size_t part
    pieces = []
    while chunk != NULL and size:
        part = min(size, <size_t>(chunk.end - chunk.start))
        pieces.append((<const uint8_t*>(chunk_data(chunk) + chunk.start))[:part])
        size -= part
        chunk = chunk.next
    return b"".join(pieces)


def chunk_counts() -> dict[str, int]:
    """Chunks in use and their bytes, and bytes that the pools hold ready; of the whole process."""
    cdef uint64_t total = 0
    cdef int index
    for index in range(SIZE_CLASSES):
        total += pooled_bytes[index]
    return {"in_use": chunks_out, "in_use_bytes": bytes_out, "pooled_bytes": total}


def trim_pools() -> None:
    """Give all pooled chunks back to the allocator."""
    cdef int index
    cdef Chunk* chunk
    for index in range(SIZE_CLASSES):
        while pool[index] != NULL:
            chunk = pool[index]
            pool[index] = chunk.next
            free(chunk)
        pooled_bytes[index] = 0
