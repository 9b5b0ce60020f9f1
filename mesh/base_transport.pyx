"""What the mesh needs of sockets; nothing of ZeroMQ comes with it.

mesh.transport is what there is. A subclass overrides compiled methods where it is compiled, and the Python method of each
where it is not.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize


cdef class FrameHandler:
    """Takes frames."""

    cdef int received(self, bytes identity, bint answer, const uint8_t* frame, size_t length) except -1:
        self.on_frame(identity, bool(answer), PyBytes_FromStringAndSize(<const char*>frame, <Py_ssize_t>length))
        return 0

    def on_frame(self, identity: bytes, answer: bool, frame: bytes) -> None:
        """Take a frame from the process of an identity, or, an answer, from the peer of a key."""
        raise TypeError(f"{type(self).__name__} takes no frames")

    def take(self, bytes identity not None, answer: bool, bytes frame not None) -> None:
        """received() for Python callers."""
        self.received(identity, answer, <const uint8_t*>PyBytes_AS_STRING(frame), len(frame))


cdef class Lane:
    """Our way to one peer: what is sent waits in it until the peer is there, in order."""

    cdef int send(self, const uint8_t* frame, size_t length) except -1:
        self.on_send(PyBytes_FromStringAndSize(<const char*>frame, <Py_ssize_t>length))
        return 0

    def on_send(self, frame: bytes) -> None:
        """Send one frame."""
        raise TypeError(f"{type(self).__name__} does not send")


cdef class Carrier:
    """Brings frames to peers and from them."""

    cdef int answer(self, bytes identity, const uint8_t* frame, size_t length) except -1:
        return not self.on_answer(identity, PyBytes_FromStringAndSize(<const char*>frame, <Py_ssize_t>length))

    cdef int readable(self, int fd) except -1:
        self.mark_readable(fd)
        return 0

    cdef int receive(self, FrameHandler handler) except -1:
        return self.on_receive(handler)

    cdef bint pending(self) except -1:
        return self.is_pending()

    def connect(self, key: bytes, endpoint: object, server_key: bytes | None = None) -> Lane:
        """Make a lane to a peer, which need not be there yet."""
        raise TypeError(f"{type(self).__name__} does not connect")

    def close(self) -> None:
        """Close everything; what is unsent is lost."""

    @property
    def fds(self) -> list[int]:
        """What has to be watched: receive() is called when one of them is readable."""
        return []

    def on_answer(self, identity: bytes, frame: bytes) -> bool:
        """Send a frame back to the process of an identity; False: no peer of that identity is connected."""
        raise TypeError(f"{type(self).__name__} does not answer")

    def mark_readable(self, fd: int) -> None:
        """A descriptor is readable: the next receive looks there."""

    def on_receive(self, handler: FrameHandler) -> int:
        """Hand over what has come; returns how many frames."""
        raise TypeError(f"{type(self).__name__} does not receive")

    def is_pending(self) -> bool:
        """Whether there is something to receive that no descriptor tells of."""
        return False

    # For Python ------------------------------------------------------------------------------------------------------

    def send_frame(self, Lane lane not None, bytes frame not None) -> None:
        """Send a frame by one of our lanes."""
        lane.send(<const uint8_t*>PyBytes_AS_STRING(frame), len(frame))

    def answer_frame(self, bytes identity not None, bytes frame not None) -> bool:
        """Send a frame back to the process of an identity; False: no peer of that identity is connected."""
        return self.answer(identity, <const uint8_t*>PyBytes_AS_STRING(frame), len(frame)) == 0

    def receive_frames(self, FrameHandler handler not None) -> int:
        """receive() for Python callers."""
        return self.receive(handler)
