"""The sockets of the mesh: libzmq, called from compiled code.

pyzmq makes and configures the sockets; frames go through libzmq's own functions, which are found in the library that
pyzmq has loaded: half the cost of its Python calls. Nothing here blocks.

A socket's fd tells of changes, not of a state: a send may swallow what would have told of a frame. So every socket is
read until it has no more, and whoever is about to block asks pending() first, which looks once more at every socket
that was used.
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport uintptr_t
from libc.string cimport memcmp, strlen

import zmq
import zmq.backend.cython._zmq as pyzmq_extension

from mesh.zap import Gate

cdef extern from "<dlfcn.h>" nogil:
    void* dlopen(const char* path, int flags)
    void* dlsym(void* library, const char* name)
    int RTLD_NOW

cdef extern from *:
    """
    typedef struct { unsigned char opaque[64]; } __attribute__((aligned(8))) shoal_zmq_msg;    /* zmq_msg_t */
    """
    ctypedef struct shoal_zmq_msg:
        pass

cdef enum:                       # zmq.h; they are part of libzmq's binary interface
    ZMQ_DONTWAIT = 1
    ZMQ_SNDMORE = 2
    ZMQ_EVENTS = 15
    ZMQ_POLLIN = 1

cdef int EAGAIN_ = zmq.EAGAIN
cdef int EINTR_ = zmq.EINTR if hasattr(zmq, "EINTR") else 4
cdef int EHOSTUNREACH_ = zmq.EHOSTUNREACH

cdef int (*zmq_errno)() noexcept nogil
cdef int (*zmq_send)(void*, const void*, size_t, int) noexcept nogil
cdef int (*zmq_msg_init)(shoal_zmq_msg*) noexcept nogil
cdef int (*zmq_msg_recv)(shoal_zmq_msg*, void*, int) noexcept nogil
cdef void* (*zmq_msg_data)(shoal_zmq_msg*) noexcept nogil
cdef size_t (*zmq_msg_size)(shoal_zmq_msg*) noexcept nogil
cdef int (*zmq_msg_close)(shoal_zmq_msg*) noexcept nogil
cdef int (*zmq_msg_more)(shoal_zmq_msg*) noexcept nogil
cdef const char* (*zmq_msg_gets)(const shoal_zmq_msg*, const char*) noexcept nogil
cdef int (*zmq_getsockopt)(void*, int, void*, size_t*) noexcept nogil


cdef void* function(const char* name) except NULL:
    found = dlsym(library, name)
    if found == NULL:
        raise ImportError(f"libzmq, as {pyzmq_extension.__file__} brings it, has no {name.decode()}")
    return found


cdef void* library = dlopen(pyzmq_extension.__file__.encode(), RTLD_NOW)
if library == NULL:
    raise ImportError(f"{pyzmq_extension.__file__} cannot be opened once more")
zmq_errno = <int (*)() noexcept nogil>function("zmq_errno")
zmq_send = <int (*)(void*, const void*, size_t, int) noexcept nogil>function("zmq_send")
zmq_msg_init = <int (*)(shoal_zmq_msg*) noexcept nogil>function("zmq_msg_init")
zmq_msg_recv = <int (*)(shoal_zmq_msg*, void*, int) noexcept nogil>function("zmq_msg_recv")
zmq_msg_data = <void* (*)(shoal_zmq_msg*) noexcept nogil>function("zmq_msg_data")
zmq_msg_size = <size_t (*)(shoal_zmq_msg*) noexcept nogil>function("zmq_msg_size")
zmq_msg_close = <int (*)(shoal_zmq_msg*) noexcept nogil>function("zmq_msg_close")
zmq_msg_more = <int (*)(shoal_zmq_msg*) noexcept nogil>function("zmq_msg_more")
zmq_msg_gets = <const char* (*)(const shoal_zmq_msg*, const char*) noexcept nogil>function("zmq_msg_gets")
zmq_getsockopt = <int (*)(void*, int, void*, size_t*) noexcept nogil>function("zmq_getsockopt")

RECONNECT_MS = 20                # a peer that starts again is found so fast,
RECONNECT_MS_MAX = 1000          # and one that stays away costs no more than this
HEARTBEAT_MS = 2000              # ZeroMQ's own, which find a machine that went without a word
HEARTBEAT_TIMEOUT_MS = 10000


cdef bint readable(void* handle) except -1:
    """Return whether a socket has a frame. What it has been told of counts; its fd has nothing to say of that any more."""
    cdef int events = 0
    cdef size_t size = sizeof(int)
    while zmq_getsockopt(handle, ZMQ_EVENTS, &events, &size):
        if zmq_errno() != EINTR_:
            raise zmq.ZMQError(zmq_errno())
    return events & ZMQ_POLLIN


cdef int finish(shoal_zmq_msg* part, void* handle) noexcept:
    """Let go of a message, and of parts that are not ours."""
    while zmq_msg_more(part) and zmq_msg_recv(part, handle, ZMQ_DONTWAIT) >= 0:
        pass
    zmq_msg_close(part)
    return 0


cdef bint belongs(shoal_zmq_msg* part, bytes identity) noexcept:
    """Return whether the node that a connection's key belongs to is that of the identity it came under."""
    cdef const char* name = zmq_msg_gets(part, "User-Id")
    cdef size_t length
    if name == NULL:
        return False
    length = strlen(name)
    return (length > 0 and <size_t>len(identity) > length and PyBytes_AS_STRING(identity)[length] == b"/"
            and memcmp(PyBytes_AS_STRING(identity), name, length) == 0)


@cython.final
cdef class Channel(Lane):
    """Our DEALER to one peer: what is sent waits in it until the peer is there, in order."""

    cdef int send(self, const uint8_t* frame, size_t length) except -1:
        """Send one frame; nothing is lost but what a broken connection or a dead peer had got already."""
        self.due = True
        while zmq_send(self.handle, frame, length, ZMQ_DONTWAIT) < 0:
            if zmq_errno() != EINTR_:
                raise zmq.ZMQError(zmq_errno())
        return 0


@cython.final
cdef class Transport(Carrier):
    """One bound ROUTER, which receives data and sends answers, and a DEALER per peer, which does the reverse.

    Args:
        identity: node/worker/incarnation: what peers' ROUTERs call us.
        endpoint: where the ROUTER is bound, ipc://PATH or tcp://ADDRESS:PORT; port 0 takes a free one.
        keys: our CURVE key pair, (public, secret), each of 40 bytes of Z85; None leaves all in the clear.
        names: with keys, the node that each known public key belongs to; nobody else is let in, and who comes under an
            identity of another node is not heard.

    Raises zmq.ZMQError if the endpoint cannot be bound.
    """

    def __init__(self, bytes identity not None, endpoint: str, *, keys: tuple[bytes, bytes] | None = None, names=None):
        assert 1 <= len(identity) <= 255 and identity[0], identity
        self.identity = identity
        self.channels = []
        self.context = zmq.Context()
        self.keys = keys
        if keys is not None:
            self.gate = Gate(self.context, names)
        try:
            self.socket = self.make(zmq.ROUTER)
            self.socket.router_mandatory = True
            self.socket.router_handover = True
            if keys is not None:
                self.socket.curve_server = True
                self.socket.zap_domain = b"shoal"
            self.socket.bind(endpoint)
        except BaseException:
            self.context.destroy(linger=0)
            raise
        self.endpoint = self.socket.last_endpoint.decode()
        self.handle = <void*><uintptr_t>self.socket.underlying
        self.fd = self.socket.getsockopt(zmq.FD)
        self.due = True

    cdef make(self, int kind):
        socket = self.context.socket(kind)
        socket.linger = 0
        socket.sndhwm = socket.rcvhwm = 0
        socket.heartbeat_ivl = HEARTBEAT_MS
        socket.heartbeat_timeout = HEARTBEAT_TIMEOUT_MS
        if self.keys is not None:
            socket.curve_publickey, socket.curve_secretkey = self.keys
        return socket

    def connect(self, bytes key not None, endpoint: str, server_key: bytes | None = None) -> Channel:
        """Make a DEALER to a peer, which need not be there yet. Its fd is to be watched from now on.

        Args:
            key: what received() calls the peer when it answers.
            server_key: its public CURVE key, if we have keys.
        """
        cdef Channel channel = Channel.__new__(Channel)
        socket = self.make(zmq.DEALER)
        try:
            socket.routing_id = self.identity
            socket.reconnect_ivl = RECONNECT_MS
            socket.reconnect_ivl_max = RECONNECT_MS_MAX
            if self.keys is not None:
                socket.curve_serverkey = server_key
            socket.connect(endpoint)
        except BaseException:
            socket.close()
            raise
        channel.key = key
        channel.endpoint = endpoint
        channel.socket = socket
        channel.handle = <void*><uintptr_t>socket.underlying
        channel.fd = socket.getsockopt(zmq.FD)
        channel.due = True
        self.channels.append(channel)
        return channel

    def disconnect(self, Channel channel not None) -> None:
        """Close a DEALER; what it has not sent is lost. Its fd must not be watched any more."""
        self.channels.remove(channel)
        channel.handle = NULL
        channel.due = False
        channel.socket.close()

    def close(self) -> None:
        """Close everything; what is unsent is lost."""
        self.handle = NULL
        for channel in list(self.channels):
            self.disconnect(channel)
        if not self.context.closed:
            self.context.destroy(linger=0)

    @property
    def fds(self) -> list[int]:
        """What has to be watched: receive() is called when one of them is readable."""
        found = [self.fd] + [(<Channel>channel).fd for channel in self.channels]
        return found + [self.gate.fd] if self.gate is not None else found

    @property
    def refused(self) -> int:
        """Connections that were not let in."""
        return self.gate.refused if self.gate is not None else 0

    cdef int answer(self, bytes identity, const uint8_t* frame, size_t length) except -1:
        self.due = True
        while zmq_send(self.handle, PyBytes_AS_STRING(identity), len(identity), ZMQ_DONTWAIT | ZMQ_SNDMORE) < 0:
            if zmq_errno() == EHOSTUNREACH_:
                self.unanswerable += 1
                return 1
            if zmq_errno() != EINTR_:
                raise zmq.ZMQError(zmq_errno())
        while zmq_send(self.handle, frame, length, ZMQ_DONTWAIT) < 0:
            if zmq_errno() != EINTR_:
                raise zmq.ZMQError(zmq_errno())
        return 0

    cdef int readable(self, int fd) except -1:
        cdef Channel channel
        cdef Py_ssize_t index
        if fd == self.fd:
            self.due = True
            return 0
        for index in range(len(self.channels)):
            channel = <Channel>self.channels[index]
            if channel.fd == fd:
                channel.due = True
                break
        return 0

    cdef int receive(self, FrameHandler handler) except -1:
        """Hand over what has come, at most RECEIVE_MAX frames of each socket that may have some; returns how many.

        What the handler raises leaves the rest for the next call.
        """
        cdef Channel channel
        cdef int count
        cdef int total = 0
        cdef Py_ssize_t index
        if self.gate is not None:
            self.gate.answer()
        if self.due:
            total = self.drain(self.handle, None, handler)       # raising leaves it due
            self.due = total == RECEIVE_MAX
        for index in range(len(self.channels)):
            channel = <Channel>self.channels[index]
            if channel.due:
                count = self.drain(channel.handle, channel.key, handler)
                channel.due = count == RECEIVE_MAX
                total += count
        return total

    cdef int drain(self, void* handle, bytes identity, FrameHandler handler) except -1:
        """Hand over the frames of one socket: the ROUTER if there is no identity."""
        cdef shoal_zmq_msg part
        cdef bint router = identity is None
        cdef int count = 0
        cdef int error
        while count < RECEIVE_MAX:
            zmq_msg_init(&part)
            if zmq_msg_recv(&part, handle, ZMQ_DONTWAIT) < 0:
                error = zmq_errno()
                zmq_msg_close(&part)
                if error == EINTR_:
                    continue
                if error == EAGAIN_:
                    return count
                raise zmq.ZMQError(error)
            count += 1
            if router:
                # The rest of a message is there when its first part is.
                identity = PyBytes_FromStringAndSize(<const char*>zmq_msg_data(&part), <Py_ssize_t>zmq_msg_size(&part))
                if not zmq_msg_more(&part) or zmq_msg_recv(&part, handle, ZMQ_DONTWAIT) < 0:
                    zmq_msg_close(&part)
                    continue
                if self.gate is not None and not belongs(&part, identity):
                    self.impostors += 1
                    finish(&part, handle)
                    continue
            try:
                handler.received(identity, not router, <const uint8_t*>zmq_msg_data(&part), zmq_msg_size(&part))
            finally:
                finish(&part, handle)
        return count

    cdef bint pending(self) except -1:
        """Look once more at every socket that was used since it was last found empty.

        Cost: nothing for the others; a call of libzmq for each of these.
        """
        cdef Channel channel
        cdef Py_ssize_t index
        cdef bint found = False
        if self.due:
            self.due = readable(self.handle)
            found = self.due
        for index in range(len(self.channels)):
            channel = <Channel>self.channels[index]
            if channel.due:
                channel.due = readable(channel.handle)
                found = found or channel.due
        return found

    # For Python ------------------------------------------------------------------------------------------------------

    def mark_readable(self, fd: int) -> None:
        """readable() for Python callers."""
        self.readable(fd)

    def is_pending(self) -> bool:
        """pending() for Python callers."""
        return self.pending()
