"""What a reactor needs of the mesh; nothing of ZeroMQ comes with it."""

from libc.stdint cimport int64_t


cdef class MeshSeam:
    cdef int readable(self, int fd) except -1    # one of its descriptors is readable: for the next receive()
    cdef int receive(self) except -1             # what has come from peers; how many frames
    cdef bint batching(self) except -1           # messages wait for flush()
    cdef int flush(self) except -1               # the turn ends, and everything that may leave has been decided
    cdef int tick(self, int64_t now_ms) except -1    # at least four times a second
    cdef bint pending(self) except -1            # receive() has something to do of which no descriptor tells
