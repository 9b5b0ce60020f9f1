"""The ways to a client that another worker serves, though its bytes come and go here: TLS and WebSocket stay where they are.

There are two ends, each the other's partner: the client's connection, with its layers, and the connection to the worker at
home. What comes by the one goes out by the other, and nothing is looked at. Neither reads while the other one has much to
send, so what is on its way is bounded.
"""

cimport cython
from broker.reactor.protocol cimport PAUSE_OUTPUT_FULL, RELAYED
from broker.transport.layer cimport plain
from broker.wire.output_buffer cimport output_room
from broker.logs import get
from broker.wire.reasons import ClientError, CloseReason
from libc.errno cimport EAGAIN, EINTR, errno
from libc.string cimport memcpy

log = get("connections")


@cython.no_gc
cdef class RelayEnd(SocketEnd):
    """A connection as far as it may be one end of a relay."""

    cdef int end_for(self, object reason) except -1:
        raise TypeError(f"{type(self).__name__} does not end")

    cdef int forget_input(self) except -1:
        raise TypeError(f"{type(self).__name__} keeps nothing")

    cdef int relay_to(self, RelayEnd partner) except -1:
        """From now on what comes here goes out there, and the other way round; its CONNECT has been passed on."""
        self.partner = partner
        self.relays = True
        self.state = RELAYED
        self.forget_input()
        return self.update_reading()

    cdef int read_relayed(self, uint8_t* shared, size_t shared_size) except -1:
        """readable() where another worker serves the client: receive once, and pass it on."""
        cdef RelayEnd partner = self.partner
        cdef ssize_t received = timed_recv(self.turn, self.fd, shared, shared_size)
        cdef size_t length
        if received < 0:
            return 0 if errno == EAGAIN or errno == EINTR else self.socket_failed(errno)
        self.bytes_in += received
        self.turn.bytes_in += received
        length = received
        if received and self.layers is not None:
            try:
                self.layers.receive(shared, received)
            except Exception as error:
                if not isinstance(error, ClientError):
                    log.error("filter_failed", exc_info=error)
                self.layers.close()
                return self.close_relay()
            if self.layers.raw.pending:
                self.touch()
            shared = plain.data
            length = plain.length
        if length and partner is not None and partner.state == RELAYED:
            memcpy(output_room(&partner.out, length), shared, length)
            partner.touch()
            if partner.unsent() > RELAY_BYTES_MAX:
                self.pauses |= PAUSE_OUTPUT_FULL         # the partner's, where what comes here goes to
                self.update_reading()
        if received == 0 or (self.layers is not None and self.layers.has_ended()):
            return self.close_relay()
        return 0

    cdef int close_relay(self) except -1:
        """One end is gone: what it sent before still leaves by the other one."""
        cdef RelayEnd partner = self.partner
        self.end_for(CloseReason.CONNECTION_LOST)
        if partner is not None and partner.state == RELAYED:
            partner.end_for(CloseReason.RELAY_ENDED)
        return 0

    cdef int relay_on(self) except -1:
        """What was to leave here has left, or nearly: more may come by the partner."""
        if self.partner is not None and self.partner.pauses & PAUSE_OUTPUT_FULL and self.unsent() * 2 <= RELAY_BYTES_MAX:
            self.partner.pauses &= ~PAUSE_OUTPUT_FULL
            self.partner.update_reading()
        return 0
