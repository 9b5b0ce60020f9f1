"""The sockets of the mesh: libzmq, called from compiled code."""

from libc.stdint cimport uint8_t, uint64_t
from mesh.base_transport cimport Carrier, FrameHandler, Lane

cdef enum:
    RECEIVE_MAX = 256            # frames taken of one socket in a call; what it has more is the next call's


cdef class Channel(Lane):        # our DEALER to one peer
    cdef readonly bytes key
    cdef readonly str endpoint
    cdef object socket           # zmq.Socket
    cdef void* handle            # libzmq's
    cdef readonly int fd
    cdef bint due                # it may have frames that its fd does not tell of


cdef class Transport(Carrier):
    cdef readonly bytes identity
    cdef readonly str endpoint
    cdef object context          # zmq.Context
    cdef object socket           # the ROUTER
    cdef void* handle
    cdef readonly int fd
    cdef bint due
    cdef list channels           # Channel
    cdef object keys             # (public, secret) of CURVE, or None
    cdef object gate             # mesh.zap.Gate, who lets peers in; None without encryption
    cdef readonly uint64_t unanswerable      # answers to peers that were not there
    cdef readonly uint64_t impostors         # frames of a peer under an identity that is not its
    cdef int drain(self, void* handle, bytes identity, FrameHandler handler) except -1
    cdef make(self, int kind)    # a socket as all of ours are
