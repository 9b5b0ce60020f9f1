"""Runs of the second copy of the retained messages: files of keys and values, in order. docs/formats.md has every byte."""

from libc.stdint cimport uint8_t, uint64_t

cdef class RunReader:
    cdef object disk                     # router.log.disk.Storage
    cdef readonly str name
    cdef int file
    cdef uint64_t size                   # of the file
    cdef uint64_t offset                 # in the file, of what is behind the window
    cdef bytes window
    cdef Py_ssize_t at                   # in the window
    cdef bytes before                    # the key before this one; None at first
    cdef readonly uint64_t count         # entries, so far
    cdef uint64_t wanted                 # entries that there are

    cdef bint have(self, Py_ssize_t wanted) except -1      # so many bytes are in the window; False at the end of the file
    cdef Py_ssize_t step(self) except -1
