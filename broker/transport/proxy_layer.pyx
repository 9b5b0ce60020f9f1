"""The layer that reads the header of a proxy, at the beginning of a connection.

It waits for the header, which may come in pieces, and is out of the way then: what follows is the client's.
"""

cimport cython
from broker.transport.layer cimport Layers
from libc.stdint cimport uint8_t
from broker.transport.proxy_protocol import HEADER_MAX, parse
from broker.wire.reasons import ClientError, CloseReason, Reason

cdef size_t header_max = HEADER_MAX


@cython.final
cdef class ProxyLayer(Layer):
    """Reads a header of the PROXY protocol, version 1 or 2, puts what it says into the facts, and goes.

    Args:
        proxies: the trusted ones. Any other peer is refused by its first byte, so that one that only looks whether the
            port is open is no more to the log here than elsewhere.
        peer: HOST:PORT; None at a Unix socket, and of a peer that has gone.
    """

    def __init__(self, proxies, peer: str | None):
        self.trusted = proxies.trusts(peer)
        self.gone = peer is None and not self.trusted
        self.peer = peer

    cdef int receive(self, uint8_t* data, size_t length) except -1:
        cdef ProxyLayer kept = self          # the stack lets go of it before this has returned
        cdef Layers stack = self.stack
        cdef size_t before, end
        if self.gone:
            stack.said = 0                   # it was reset; nobody can tell any more who sent this, and nobody listens
            return 0
        if not self.trusted:
            raise ClientError(
                Reason.NOT_AUTHORIZED, "PROXY protocol, section 2", "the peer is none of proxy_from",
                CloseReason.PROXY_NOT_TRUSTED)
        if self.gathered is None:
            self.gathered = bytearray()
        before = len(self.gathered)
        self.gathered += (<const uint8_t*>data)[:min(length, header_max - before)]
        found = parse(self.gathered)
        if found is None:
            return 0
        header, end = found
        self.gathered = None
        header.tell(stack.facts, self.peer)
        self.opened = True
        stack.said = before + length - end           # what came before was the proxy's word
        self.pass_in(data + (end - before), before + length - end)
        return stack.take_out(kept)
