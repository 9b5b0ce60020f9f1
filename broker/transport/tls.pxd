"""TLS on one connection."""

from broker.transport.key_schedule cimport Secrets
from broker.transport.layer cimport Layer
from broker.transport.openssl cimport SSL
from broker.transport.records cimport Records
from broker.transport.tls_context cimport TlsContext
from libc.stdint cimport uint8_t, uint32_t, uint64_t


cdef class Tls(Layer):
    cdef SSL* ssl                    # NULL: `records` goes on
    cdef Secrets* secrets            # of the handshake under way; NULL: there is none
    cdef readonly Records records    # TLS 1.3, once the handshake is over; None: OpenSSL has the connection
    cdef TlsContext context          # it is what the connection began with
    cdef uint32_t opening_bytes      # received before the handshake was over
    cdef uint32_t opening_bytes_max

    cdef int check_first_byte(self, uint8_t first) except -1
    cdef int shake_hands(self) except -1
    cdef int note_facts(self) except -1
    cdef int take_over(self, uint64_t sent_records) except -1
    cdef int forget_secrets(self) noexcept
    cdef object failure(self, int outcome)
