"""Layers between a socket and the protocol: TLS, WebSocket, the header of a proxy, or a filter of the embedding program.

A connection without them costs nothing. One with them reads into the buffer that all connections share, has the bytes go
through its layers into `plain`, which they share as well, and parses what is there; what it sends goes through the layers
into `raw` and from there to the socket. So a layer keeps what it must remember of an incomplete record or frame, and
nothing else.
"""

cimport cython
from broker.wire.output_buffer cimport output_clear, output_room
from libc.stdlib cimport free, realloc
from libc.string cimport memcpy

cdef enum:
    PLAIN_KEPT = 262144          # of the shared buffer, when it is empty


cdef uint8_t* plain_room(size_t size) except NULL:
    cdef uint8_t* grown
    cdef size_t capacity
    if plain.capacity - plain.length < size:
        capacity = max(plain.length + size, plain.capacity * 2)
        grown = <uint8_t*>realloc(plain.data, capacity)
        if grown == NULL:
            raise MemoryError()
        plain.data = grown
        plain.capacity = capacity
    return plain.data + plain.length


cdef class Layer:
    """One layer. This one lets everything through."""

    cdef int receive(self, uint8_t* data, size_t length) except -1:
        return self.pass_in(data, length)

    cdef int send(self, const uint8_t* data, size_t length) except -1:
        return self.pass_out(data, length)

    cdef int finish(self) except -1:
        return 0

    cdef int pass_in(self, uint8_t* data, size_t length) except -1:
        """Hand bytes to the next layer, or to the protocol."""
        if length == 0:
            return 0
        if self.inward is not None:
            return self.inward.receive(data, length)
        memcpy(plain_room(length), data, length)
        plain.length += length
        return 0

    cdef int pass_out(self, const uint8_t* data, size_t length) except -1:
        """Hand bytes to the next layer, or to the socket."""
        if length == 0:
            return 0
        if self.outward is not None:
            return self.outward.send(data, length)
        memcpy(output_room(&self.stack.raw, length), data, length)
        return 0


@cython.final
cdef class Layers:
    """The layers of one connection.

    Args:
        layers: the one at the socket first. They are this connection's alone.
        facts: what they find out about the client is put here.
    """

    def __init__(self, list layers not None, facts):
        cdef Layer layer, before = None
        self.facts = facts
        for layer in layers:
            layer.stack = self
            layer.outward = before
            if before is None:
                self.outermost = layer
            else:
                before.inward = layer
            before = layer
        self.innermost = before

    def __dealloc__(self):
        output_clear(&self.raw)

    cdef bint is_open(self) noexcept:
        cdef Layer layer = self.innermost
        if self.closed:
            return False
        while layer is not None:
            if not layer.opened:
                return False
            layer = layer.outward
        return True

    cdef bint has_ended(self) noexcept:
        cdef Layer layer = self.innermost
        while layer is not None:
            if layer.ended:
                return True
            layer = layer.outward
        return False

    cdef int receive(self, uint8_t* data, size_t length) except -1:
        if plain.capacity > PLAIN_KEPT:
            free(plain.data)
            plain.data = NULL
            plain.capacity = 0
        plain.length = 0
        return 0 if self.closed else self.outermost.receive(data, length)

    cdef int send(self, const uint8_t* data, size_t length) except -1:
        return 0 if self.closed else self.innermost.send(data, length)

    cdef int finish(self) except -1:
        cdef Layer layer = self.innermost
        if not self.finished and not self.closed:
            self.finished = True
            while layer is not None:
                layer.finish()
                layer = layer.outward
        return 0

    def close(self) -> None:
        """Let nothing through any more. The layers are let go of."""
        cdef Layer layer = self.innermost
        cdef Layer outward
        self.closed = True
        output_clear(&self.raw)
        while layer is not None:
            outward = layer.outward
            layer.stack = None
            layer.inward = layer.outward = None
            layer = outward
        self.outermost = self.innermost = None

    def layers(self) -> list[Layer]:
        """Return the layers, the one at the socket first."""
        cdef list found = []
        cdef Layer layer = self.outermost
        while layer is not None:
            found.append(layer)
            layer = layer.inward
        return found


@cython.final
cdef class Filter(Layer):
    """A layer of the embedding program, in Python: see `transform` of broker.worker.worker.Worker.

    Args:
        filter: its `received(data)` returns an iterable of the plain bytes in what came, `send(data)` what goes to the
            socket for plain bytes, or for none, and `wants_to_send()` whether it has something to say of its own.
    """

    cdef object filter

    def __init__(self, filter):
        self.filter = filter
        self.opened = True

    cdef int receive(self, uint8_t* data, size_t length) except -1:
        cdef bytes piece
        pieces = [bytes(memoryview(part)) for part in self.filter.received((<const uint8_t*>data)[:length])]
        answers = self.filter.wants_to_send()
        for piece in pieces:
            self.pass_in(<uint8_t*><const uint8_t*>piece, len(piece))
        if answers:
            self.send(NULL, 0)
        return 0

    cdef int send(self, const uint8_t* data, size_t length) except -1:
        made = self.filter.send((<const uint8_t*>data)[:length] if length else b"")
        cdef bytes encoded = bytes(memoryview(made))
        return self.pass_out(<const uint8_t*>encoded, len(encoded))
