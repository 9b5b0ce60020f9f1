"""The one place where effects become actions."""

from libc.stdint cimport uint64_t
from router.log.record_buffer cimport RecordBuffer
from router.router cimport Router


cdef class Pump:
    cdef Router router
    cdef readonly object log         # router.log.log_writer.Log or a stand-in; None while nothing is logged
    cdef readonly object mesh        # tell(records): the followers' turn, None while there are none
    cdef readonly object durability  # Durability

    cdef uint64_t durable            # up to which record effects may leave
    cdef bint more                   # not all of these have left: the next turn goes on

    cdef bint run(self) except -1    # tell, append, settle; returns whether there was anything to do
    cdef int append(self, RecordBuffer records) except -1
