"""Layers between a socket and the protocol, and the stack of them that one connection has."""

from broker.wire.output_buffer cimport Output
from libc.stdint cimport uint8_t, uint32_t, uint64_t

cdef struct Plain:               # what the layers of one connection have let through, until its protocol has looked at it
    uint8_t* data
    size_t length
    size_t capacity

cdef Plain plain                 # one for all connections of a worker: it is empty between two reads

cdef uint8_t* plain_room(size_t size) except NULL          # where `size` more bytes go, which are not counted yet


cdef class Layer:
    # What comes from the socket enters by receive() and leaves by pass_in(); what goes to it enters by send() and leaves
    # by pass_out().
    cdef Layer inward                # the next one towards the protocol; None: that itself
    cdef Layer outward               # the next one towards the socket; None: that itself
    cdef Layers stack                # None once it is closed
    cdef bint opened                 # its opening (handshake, upgrade, header) is over; before, nothing is sent through it
    cdef bint ended                  # the peer has said in this layer's words that it sends no more

    cdef int receive(self, uint8_t* data, size_t length) except -1      # may change data; raises ClientError: theirs
    cdef int send(self, const uint8_t* data, size_t length) except -1
    cdef int finish(self) except -1                                     # say in its own words that nothing more will come
    cdef int pass_in(self, uint8_t* data, size_t length) except -1
    cdef int pass_out(self, const uint8_t* data, size_t length) except -1


cdef class Layers:
    cdef Layer outermost             # at the socket; None: bytes go through as they are
    cdef Layer innermost             # at the protocol
    cdef Output raw                  # for the socket, which has not taken it yet
    # broker.reactor.pending_handshakes.PendingHandshakes until all layers are open, or it is closed; None then.
    cdef public object pending_handshakes
    cdef readonly object facts       # what the layers found out about the client: broker.transport.facts.Facts
    cdef uint32_t work               # that they did and no turn has counted yet: see Turn.work
    cdef bint closed                 # nothing comes through any more, either way
    cdef bint finished               # the peer was told that nothing more will come
    cdef object close_reason         # CloseReason of the connection; None while it is open
    cdef uint64_t said               # bytes that came from the client itself, not counting a proxy's header

    cdef bint is_open(self) noexcept                                    # what is sent goes through all layers
    cdef bint has_ended(self) noexcept
    cdef int receive(self, uint8_t* data, size_t length) except -1      # into `plain`
    cdef int send(self, const uint8_t* data, size_t length) except -1   # into `raw`
    cdef int finish(self) except -1
    cdef int note_opened(self) except -1
    cdef int take_out(self, Layer layer) except -1                      # it has done its work: it is in the stack no more
