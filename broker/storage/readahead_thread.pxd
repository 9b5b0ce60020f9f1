"""A thread that reads records of the commit log and makes their check sums, while others apply those before them."""

from libc.stdint cimport uint8_t, uint32_t, uint64_t

cdef extern from "pythread.h" nogil:
    ctypedef void* PyThread_type_lock
    int WAIT_LOCK
    PyThread_type_lock PyThread_allocate_lock()
    void PyThread_free_lock(PyThread_type_lock lock)
    int PyThread_acquire_lock(PyThread_type_lock lock, int mode)
    void PyThread_release_lock(PyThread_type_lock lock)


cdef class AheadReader:
    cdef PyThread_type_lock wanted       # released when something is to be read, or nothing ever again
    cdef PyThread_type_lock done         # released when it was
    cdef int file                        # -1: nothing ever again
    cdef uint64_t offset
    cdef uint32_t mark
    cdef bytes data                      # read into: nobody else has it yet
    cdef uint8_t* into                   # its bytes
    cdef size_t size                     # how many
    cdef size_t length                   # of what was read
    cdef size_t checked                  # how many of these bytes are whole records
    cdef int failure                     # errno; 0: none
    cdef bint begun                      # and not ended

    cdef void read(self) noexcept nogil
