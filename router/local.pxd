"""A client inside the process."""

from libc.stdint cimport uint32_t, uint64_t
from router.receiver cimport Receiver

cdef class LocalClient(Receiver):
    cdef readonly bytes client_identifier
    cdef public bint connected       # offline, it receives nothing
    cdef readonly uint64_t dropped   # messages that found the inbox full or the client offline
    cdef uint32_t inbox_max          # messages
    cdef list inbox                  # (Message, qos, retain, ids), oldest first
