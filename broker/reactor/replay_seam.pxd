"""What a reactor needs of the replays of stored messages."""

from broker.reactor.protocol cimport Protocol


cdef class ReplaySeam:
    cdef readonly bint more                          # there is something to do at once
    cdef bint waits(self) except -1                  # a client replays, or waits to
    cdef int run(self, bint busy) except -1          # one turn's worth; busy: clients published in it
    cdef int take_up(self, Protocol connection) except -1    # a client takes more than it did
