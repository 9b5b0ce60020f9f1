"""Places: the connections, or the sessions, of all workers of a broker, counted in memory that the workers share.

Each worker has a number of its own there, so that what one that was killed had taken is given back by writing one 0. A
place is taken first and counted then: two workers that both take the last one at the same time may both find that it was
one too many, and never that it was not.
"""

import os

from libc.stdint cimport uint64_t
from posix.mman cimport MAP_FAILED, MAP_SHARED, PROT_READ, PROT_WRITE, mmap, munmap

cdef extern from *:
    """
    static inline void places_add(uint64_t* at, int64_t by) { __atomic_fetch_add(at, (uint64_t)by, __ATOMIC_SEQ_CST); }
    static inline void places_set(uint64_t* at, uint64_t to) { __atomic_store_n(at, to, __ATOMIC_SEQ_CST); }
    static inline uint64_t places_get(uint64_t* at) { return __atomic_load_n(at, __ATOMIC_SEQ_CST); }
    """
    void places_add(uint64_t* at, long by) noexcept nogil
    void places_set(uint64_t* at, uint64_t to) noexcept nogil
    uint64_t places_get(uint64_t* at) noexcept nogil

FILE_NAME = "places"             # of all connections; those of one listener have its number behind it


def clear(folder, number: int) -> None:
    """Give back what a worker had taken whose process has ended.

    Args:
        folder: pathlib.Path of the workers' sockets.
        number: the worker's.
    """
    for path in folder.glob(f"{FILE_NAME}*"):
        descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.pwrite(descriptor, bytes(sizeof(uint64_t)), number * sizeof(uint64_t))
        finally:
            os.close(descriptor)


cdef class Places:
    """The places that the workers of a broker have taken; this worker has none at first.

    Args:
        folder: pathlib.Path of the workers' sockets, which only this user may enter.
        number: the worker's, below count.
        count: workers of the broker.
        name: of the file.

    Raises OSError.
    """

    def __init__(self, folder, number: int, count: int, name: str = FILE_NAME):
        assert 0 <= number < count, (number, count)
        descriptor = os.open(folder / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            # What it is made longer by is 0, and lies on the disk: a full one is told here and not by a signal later.
            os.posix_fallocate(descriptor, 0, count * sizeof(uint64_t))
            memory = mmap(NULL, count * sizeof(uint64_t), PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0)
        finally:
            os.close(descriptor)
        if memory == MAP_FAILED:
            raise MemoryError()
        self.taken = <uint64_t*>memory
        self.count = count
        self.number = number
        places_set(&self.taken[number], 0)

    def __dealloc__(self):
        if self.taken != NULL:
            munmap(self.taken, self.count * sizeof(uint64_t))

    def total(self) -> int:
        """Return how many are taken, by all workers."""
        cdef uint64_t total = 0
        cdef size_t number
        for number in range(self.count):
            total += places_get(&self.taken[number])
        return total

    def take(self, maximum: int) -> bool:
        """Take one, unless more than a maximum would be taken then. Returns whether it was taken. Cost: O(workers)."""
        places_add(&self.taken[self.number], 1)
        if self.total() <= maximum:
            return True
        places_add(&self.taken[self.number], -1)
        return False

    def give(self) -> None:
        """Give back one."""
        assert places_get(&self.taken[self.number]) > 0
        places_add(&self.taken[self.number], -1)

    def set(self, taken: int) -> None:
        """Say how many this worker has."""
        places_set(&self.taken[self.number], taken)
