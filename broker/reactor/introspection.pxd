"""What administration looks up in compiled state, in slices. Nothing here is on the message path."""

from libc.stdint cimport uint32_t, uint64_t
from router.sessions.outgoing cimport Outgoing
from router.core.receiver cimport Entry, Receiver

cdef int append_entry(list found, bytes topic_filter, Entry* entry) except -1
cdef Entry* entry_for(Receiver receiver, void* partner, Entry* others, uint32_t count) noexcept
cdef uint64_t in_flight_of(Outgoing outgoing) noexcept
