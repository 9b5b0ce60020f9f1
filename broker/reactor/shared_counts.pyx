"""Places: the connections, or the sessions, of all workers of a broker, or of each user, in memory that they share.

Each worker has a number of its own there, so that what one that was killed had taken is given back by writing one 0. A
place is taken first and counted then: two workers that both take the last one at the same time may both find that it was
one too many, and never that it was not.
"""

import os

from libc.stdint cimport uint32_t, uint64_t
from libc.string cimport memset
from posix.mman cimport MAP_FAILED, MAP_SHARED, PROT_READ, PROT_WRITE, mmap, munmap

cdef extern from *:
    """
    static inline void places_add(uint64_t* at, int64_t by) { __atomic_fetch_add(at, (uint64_t)by, __ATOMIC_SEQ_CST); }
    static inline void places_set(uint64_t* at, uint64_t to) { __atomic_store_n(at, to, __ATOMIC_SEQ_CST); }
    static inline int places_claim(uint64_t* at, uint64_t key) {
        uint64_t none = 0;
        return __atomic_compare_exchange_n(at, &none, key, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST) || none == key;
    }
    static inline void users_add(uint32_t* at, int by) { __atomic_fetch_add(at, (uint32_t)by, __ATOMIC_SEQ_CST); }
    static inline uint32_t users_get(uint32_t* at) { return __atomic_load_n(at, __ATOMIC_SEQ_CST); }
    static inline uint64_t places_get(uint64_t* at) { return __atomic_load_n(at, __ATOMIC_SEQ_CST); }
    """
    void places_add(uint64_t* at, long by) noexcept nogil
    void places_set(uint64_t* at, uint64_t to) noexcept nogil
    uint64_t places_get(uint64_t* at) noexcept nogil
    int places_claim(uint64_t* at, uint64_t key) noexcept nogil      # it has this key now, or had it
    void users_add(uint32_t* at, int by) noexcept nogil
    uint32_t users_get(uint32_t* at) noexcept nogil

FILE_NAME = "places"             # of all connections; those of one listener have its number behind it
USERS_FILE_NAME = "user-places"
SLOTS = 131_072                  # users that are counted together; 1 MiB, and half of that for each worker

cdef enum:
    C_SLOTS = 131_072
    PROBES_MAX = 256

assert SLOTS == C_SLOTS


def clear(folder, number: int) -> None:
    """Give back what a worker had taken whose process has ended.

    Args:
        folder: pathlib.Path of the workers' sockets.
        number: the worker's.
    """
    for path in folder.glob(f"{FILE_NAME}*"):
        write_zeros(path, sizeof(uint64_t), number * sizeof(uint64_t))
    if (folder / USERS_FILE_NAME).exists():
        write_zeros(folder / USERS_FILE_NAME, SLOTS * sizeof(uint32_t),
                    SLOTS * sizeof(uint64_t) + number * SLOTS * sizeof(uint32_t))


def write_zeros(path, size: int, at: int) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.pwrite(descriptor, bytes(size), at)
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


cdef class UserPlaces:
    """The places that users have taken, by a number of 64 bits that stands for each, at all workers of a broker.

    A number that was seen once keeps its slot until the broker ends, and a user for whom there is none has to be counted
    otherwise. A place is taken first and counted then, as of Places.

    Args:
        folder, number, count: as of Places.

    Raises OSError.
    """

    def __init__(self, folder, number: int, count: int):
        assert 0 <= number < count, (number, count)
        self.bytes_mapped = C_SLOTS * (sizeof(uint64_t) + <size_t>count * sizeof(uint32_t))
        descriptor = os.open(folder / USERS_FILE_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(descriptor, 0, self.bytes_mapped)
            memory = mmap(NULL, self.bytes_mapped, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0)
        finally:
            os.close(descriptor)
        if memory == MAP_FAILED:
            raise MemoryError()
        self.keys = <uint64_t*>memory
        self.taken = <uint32_t*>(self.keys + C_SLOTS)
        self.count = count
        self.number = number
        memset(self.taken + self.number * C_SLOTS, 0, C_SLOTS * sizeof(uint32_t))

    def __dealloc__(self):
        if self.keys != NULL:
            munmap(self.keys, self.bytes_mapped)

    cdef int find(self, uint64_t key) noexcept:
        cdef size_t slot = key & (C_SLOTS - 1)
        cdef int probe
        key = key or 1
        for probe in range(PROBES_MAX):
            if places_get(&self.keys[slot]) == key or places_claim(&self.keys[slot], key):
                return <int>slot
            slot = (slot + 1) & (C_SLOTS - 1)
        return -1

    def take(self, key: int, maximum: int) -> int:
        """Take one, unless the user would have more than a maximum then. Cost: O(workers).

        Returns the slot, to be given back; -1: it was not taken; -2: there is no slot for this user.
        """
        cdef int slot = self.find(<uint64_t>key)
        cdef uint64_t total = 0
        cdef size_t worker
        if slot < 0:
            return -2
        users_add(&self.taken[self.number * C_SLOTS + slot], 1)
        for worker in range(self.count):
            total += users_get(&self.taken[worker * C_SLOTS + slot])
        if total <= <uint64_t>maximum:
            return slot
        users_add(&self.taken[self.number * C_SLOTS + slot], -1)
        return -1

    def give(self, slot: int) -> None:
        """Give back one."""
        assert users_get(&self.taken[self.number * C_SLOTS + <size_t>slot]) > 0, slot
        users_add(&self.taken[self.number * C_SLOTS + <size_t>slot], -1)
