"""What a reactor needs of the mesh; nothing of ZeroMQ comes with it."""


cdef class MeshSeam:
    """Abstract: mesh.mesh.Mesh is what there is. A worker that is the only one has none."""

    cdef int readable(self, int fd) except -1:
        return 0

    cdef int receive(self) except -1:
        raise TypeError(f"{type(self).__name__} does not receive")

    cdef bint batching(self) except -1:
        return False

    cdef int flush(self) except -1:
        raise TypeError(f"{type(self).__name__} does not flush")

    cdef int tick(self, int64_t now_ms) except -1:
        raise TypeError(f"{type(self).__name__} has no clock")

    cdef bint pending(self) except -1:
        raise TypeError(f"{type(self).__name__} does not receive")
