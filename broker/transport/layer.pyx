"""Layers between a socket and the protocol: TLS, WebSocket, the header of a proxy, or a filter of the embedding program.

A connection without them costs nothing. One with them reads into the buffer that all connections share, has the bytes go
through its layers into `plain`, which they share as well, and parses what is there; what it sends goes through the layers
into `raw` and from there to the socket. So a layer keeps what it must remember of an incomplete record or frame, and
nothing else.
"""

cimport cython
from broker.wire.output_buffer cimport output_bytes, output_clear, output_room
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memcpy

cdef enum:
    PLAIN_KEPT = 262144          # of the shared buffer, when it is empty
    PLAIN_LEAST = 4096


cdef uint8_t* plain_room(size_t size) except NULL:
    cdef uint8_t* grown
    cdef size_t capacity
    if plain.data == NULL or plain.capacity - plain.length < size:     # NULL would say that something was raised
        capacity = max(plain.length + size, plain.capacity * 2, <size_t>PLAIN_LEAST)
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
        if self.closed:
            return 0
        self.said += length
        if self.outermost is None:
            memcpy(plain_room(length), data, length)
            plain.length = length
        else:
            self.outermost.receive(data, length)
        if self.pending_handshakes is not None and self.is_open():
            self.note_opened()
        return 0

    cdef int note_opened(self) except -1:
        if self.pending_handshakes is not None:
            self.pending_handshakes.waiting.pop(self, None)
            self.pending_handshakes = None
        return 0

    cdef int send(self, const uint8_t* data, size_t length) except -1:
        if self.closed:
            return 0
        if self.innermost is not None:
            return self.innermost.send(data, length)
        memcpy(output_room(&self.raw, length), data, length)
        return 0

    cdef int finish(self) except -1:
        cdef Layer layer = self.innermost
        if not self.finished and not self.closed:
            self.finished = True
            while layer is not None:
                if layer.opened:
                    layer.finish()
                layer = layer.outward
        return 0

    cdef int take_out(self, Layer layer) except -1:
        cdef Layer kept = layer          # the stack may hold the last reference to it
        if layer.outward is None:
            self.outermost = layer.inward
        else:
            layer.outward.inward = layer.inward
        if layer.inward is None:
            self.innermost = layer.outward
        else:
            layer.inward.outward = layer.outward
        kept.stack = None
        kept.inward = kept.outward = None
        return 0

    def close(self) -> None:
        """Let nothing through any more. The layers are let go of."""
        cdef Layer layer = self.innermost
        cdef Layer outward
        self.closed = True
        self.note_opened()
        output_clear(&self.raw)
        while layer is not None:
            outward = layer.outward
            layer.stack = None
            layer.inward = layer.outward = None
            layer = outward
        self.outermost = self.innermost = None

    # By hand, for tests ----------------------------------------------------------------------------------------------

    def feed(self, bytes data not None) -> tuple[bytes, Exception | None]:
        """Have bytes come from the socket. Returns what the layers let through of them, and what they raised."""
        cdef uint8_t* copy = <uint8_t*>malloc(len(data))     # of this size: a sanitizer sees who looks beyond it
        error = None
        if copy == NULL:
            raise MemoryError()
        memcpy(copy, <const uint8_t*>data, len(data))
        try:
            self.receive(copy, len(data))
        except Exception as raised:
            error = raised
        finally:
            free(copy)
        return (<const uint8_t*>plain.data)[:plain.length] if plain.length else b"", error

    def put(self, bytes data not None) -> None:
        """Send bytes through the layers."""
        self.send(<const uint8_t*>data, len(data))

    def end(self, reason) -> None:
        """The connection ends for a CloseReason."""
        self.close_reason = reason
        self.finish()

    def take_raw(self) -> bytes:
        """Take what is for the socket."""
        taken = output_bytes(&self.raw, self.raw.pending)
        output_clear(&self.raw)
        return taken

    @property
    def state(self) -> tuple[bool, bool]:
        """Whether all layers are open, and whether the peer sends no more."""
        return self.is_open(), self.has_ended()

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
