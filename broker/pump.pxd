"""The one place where effects become actions."""

from router.router cimport Router


cdef class Pump:
    cdef Router router
    cdef readonly object log         # append(records), durable; None while nothing is logged
    cdef readonly object mesh        # tell(records): the peers' turn, None while there are none
    cdef readonly object durability  # Durability

    cdef int run(self) except -1     # append, tell, settle; returns how many effects left
