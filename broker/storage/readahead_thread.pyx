"""A thread that reads records of the commit log and makes their check sums, while others apply those before them.

It needs no object of Python's while it does so, and so never waits for who applies: Python's threads change places every
5 ms at best, and a window is read and checked in less than one.
"""

import os

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.errno cimport EINTR, errno
from libc.stdint cimport uint8_t
from posix.unistd cimport pread
from router.log.record_cursor cimport whole_records


@cython.final
cdef class AheadReader:
    """Reads one stretch of a file at a time: begin(), and later end(). Its run() is for a thread of its own."""

    def __cinit__(self):
        self.wanted = PyThread_allocate_lock()
        self.done = PyThread_allocate_lock()
        if self.wanted == NULL or self.done == NULL:
            raise MemoryError()
        PyThread_acquire_lock(self.wanted, WAIT_LOCK)
        PyThread_acquire_lock(self.done, WAIT_LOCK)

    def __dealloc__(self):
        if self.wanted != NULL:
            PyThread_free_lock(self.wanted)
        if self.done != NULL:
            PyThread_free_lock(self.done)

    def run(self) -> None:
        """Read what is wanted, until stop()."""
        with nogil:
            PyThread_acquire_lock(self.wanted, WAIT_LOCK)
            while self.file >= 0:
                self.read()
                PyThread_release_lock(self.done)
                PyThread_acquire_lock(self.wanted, WAIT_LOCK)

    cdef void read(self) noexcept nogil:
        cdef size_t have = 0
        cdef ssize_t got
        self.failure = 0
        while have < self.size:
            got = pread(self.file, self.into + have, self.size - have, self.offset + have)
            if got < 0 and errno == EINTR:
                continue
            if got < 0:
                self.failure = errno
            if got <= 0:
                break
            have += got
        self.length = have
        self.checked = whole_records(self.into, have, self.mark)

    def begin(self, file: int, offset: int, length: int, mark: int) -> None:
        """Begin to read up to `length` bytes of records with this mark. What was begun before was ended."""
        assert not self.begun, "what was begun is ended first"
        self.data = PyBytes_FromStringAndSize(NULL, length)
        self.into, self.size = <uint8_t*>PyBytes_AS_STRING(self.data), length
        self.file, self.offset, self.mark = file, offset, mark
        self.begun = True
        PyThread_release_lock(self.wanted)

    def end(self) -> tuple[bytes, int]:
        """Return what was read, fewer bytes only at the file's end, and how many of them are whole records.

        Waits for it. Raises OSError.
        """
        assert self.begun, "something was begun"
        with nogil:
            PyThread_acquire_lock(self.done, WAIT_LOCK)
        self.begun = False
        data = self.data
        self.data = None
        if self.failure:
            raise OSError(self.failure, os.strerror(self.failure))
        return (data if self.length == self.size else data[:self.length]), self.checked

    def stop(self) -> None:
        """Have run() return. Nothing is begun."""
        assert not self.begun, "what was begun is ended first"
        self.file = -1
        PyThread_release_lock(self.wanted)
