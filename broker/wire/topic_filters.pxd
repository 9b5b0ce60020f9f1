"""The topic filters of a SUBSCRIBE or UNSUBSCRIBE, checked in one compiled pass and taken one by one."""

from libc.stdint cimport uint8_t


cdef class FilterList:
    cdef bytes body                      # of the packet
    cdef Py_ssize_t at                   # where the next topic filter begins
    cdef bint with_options               # a SUBSCRIBE: each has its Subscription Options behind it
    cdef uint8_t version                 # 3, 4 or 5
    cdef readonly Py_ssize_t count       # well-formed ones from the beginning on
    cdef readonly Py_ssize_t wrong_at    # where one begins that is not well-formed; -1: all are
    cdef bint options_fit(self, uint8_t options, const uint8_t* topic_filter, Py_ssize_t size) noexcept
