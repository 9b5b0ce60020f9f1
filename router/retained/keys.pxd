"""The order of the retained messages' index: keys of topic names, and where a topic filter may go on among them."""

from libc.stdint cimport uint8_t

cdef class KeyFilter:
    cdef bytes levels            # of the filter, as in a key: 0 for the separator; without the # at the end
    cdef bint below              # whether it ends in #
    cdef bint is_empty           # whether it is # alone, so that there are no levels
    cdef bint leading_wildcard
    cdef readonly bytes first    # where to begin; at most KEY_BYTES_MAX bytes

    cdef bytes beginning(self, const uint8_t* name, size_t length, size_t at)
