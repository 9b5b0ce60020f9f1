"""A listener's TLS: certificates, keys, who is trusted. Each connection is made of one of these."""

from broker.transport.openssl cimport SSL_CTX
from libc.stdint cimport uint64_t

cdef void begin_counting() noexcept nogil
cdef uint64_t records_sent() noexcept nogil          # by OpenSSL, since begin_counting()


cdef class TlsContext:
    cdef SSL_CTX* context            # of a client that names no server, or none that we know
    cdef list others                 # of Certified: contexts with other certificates, chosen by server name
    cdef dict by_name                # server name in lower case, "*.example.org" likewise -> Certified
    cdef dict keys                   # pre-shared keys by their identity, bytes; empty: none
    cdef readonly tuple certificates # broker.transport.facts.Certificate of each certificate file, in their order
    cdef public dict handshakes      # how many were made, "full" and "resumed": of its listener, whatever it was read again
    cdef readonly bint alpn_http     # WebSocket: HTTP/1.1 is spoken inside

    cdef SSL_CTX* _make(self, settings, bytes identity, list files) except NULL
    cdef int _configure(self, SSL_CTX* context, settings, bytes identity) except -1


cdef class Certified:
    cdef SSL_CTX* context
