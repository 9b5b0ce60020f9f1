"""Our own end of TLS where we are the client."""

from broker.transport.openssl cimport BIO, SSL, SSL_CTX


cdef class ClientContext:
    cdef SSL_CTX* context
    cdef readonly bint insecure      # the server's certificate may be for another name
    cdef readonly object alpn        # protocol name that is offered; None: none
    cdef readonly bytes psk          # pre-shared key; None: the server has to have a certificate
    cdef bytes psk_identity
    cdef object ask                  # asks a person for the password of the key; None: nobody is there
    cdef object asking_failed        # the exception that ended that question; None: none did

    cdef int trust(self, str cafile, str capath) except -1
    cdef int load(self, str certfile, str keyfile) except -1
    cdef int choose_ciphers(self, str ciphers) except -1


cdef class TlsClient:
    cdef SSL* ssl
    cdef BIO* incoming               # what has come and is not decrypted; SSL's own
    cdef BIO* outgoing               # what is to be sent; SSL's own
    cdef ClientContext context
    cdef readonly str host           # that the server's certificate has to be for
    cdef readonly bint opened        # the handshake is over
    cdef readonly bint ended         # the server has said that nothing more comes
    cdef bint server_is_known        # its certificate was taken
    cdef bint begun                  # something came from the server
    cdef str problem                 # with its certificate, in words; None: there is none

    cdef object failure(self)
