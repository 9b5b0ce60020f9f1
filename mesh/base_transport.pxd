"""What the mesh needs of sockets; nothing of ZeroMQ comes with it."""

from libc.stdint cimport uint8_t


cdef class FrameHandler:
    # A frame came: to us, from the process of this identity, or (`answer`) back to us from the peer of this key.
    # The bytes are borrowed for the call. on_frame(identity, answer, frame)
    cdef int received(self, bytes identity, bint answer, const uint8_t* frame, size_t length) except -1


cdef class Lane:                 # our way to one peer; its answers come back on it
    cdef int send(self, const uint8_t* frame, size_t length) except -1                          # on_send(frame)


cdef class Carrier:
    cdef int answer(self, bytes identity, const uint8_t* frame, size_t length) except -1    # 1: nobody is there. on_answer
    cdef int readable(self, int fd) except -1    # a descriptor is readable: receive() is to look there. mark_readable(fd)
    # Hand over what has come where that was said, or where it may be so unsaid; returns how many frames.
    # on_receive(handler)
    cdef int receive(self, FrameHandler handler) except -1
    cdef bint pending(self) except -1    # receive() has something to do, and no fd will say so. is_pending()
