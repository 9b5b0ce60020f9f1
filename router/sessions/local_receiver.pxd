"""A client inside the process."""

from libc.stdint cimport uint32_t, uint64_t
from router.sessions.ledger cimport Ledger
from router.core.receiver cimport Receiver

cdef class LocalClient(Receiver):
    cdef readonly bytes client_identifier
    cdef public bint connected       # offline, it receives nothing
    cdef bint listed                 # in arrivals
    cdef readonly uint64_t dropped   # messages that found the inbox full or the client offline, or expired in it
    cdef uint32_t inbox_max          # messages
    cdef Ledger ledger               # counts what is dropped by reason, for the worker; None: nobody does
    cdef object inbox                # deque of (Message, qos, retain, ids, SharedGroup or None), oldest first
    cdef list arrivals               # of the host: clients that got messages since it last looked; None without a host
    cdef object on_arrival           # called by arrived(); None after leave()

    cdef int _drop(self, int reason) noexcept
