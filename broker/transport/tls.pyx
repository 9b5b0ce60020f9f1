"""TLS on one connection: handshakes and TLS 1.2 by OpenSSL, the records of TLS 1.3 by records.pyx.

OpenSSL reads what has come straight from the reactor's receive buffer and decrypts into the buffer that all connections
share; what it makes of our output goes straight into the output of the connection's layers. So it needs no buffers of its
own between two calls, and lets go of those it has (SSL_MODE_RELEASE_BUFFERS).
"""

cimport cython
from broker.transport.certificate cimport certificate_of
from broker.transport.key_schedule cimport Secrets, note_into
from broker.transport.layer cimport Layers, plain, plain_room
from broker.transport.openssl cimport *
from broker.transport.records cimport Records
from broker.transport.tls_context cimport begin_counting, records_sent
from broker.wire.output_buffer cimport output_room
from broker.wire.reasons import ClientError, CloseReason, Reason
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy
import time

cdef enum:                       # openssl/ssl.h, openssl/bio.h: parts of the binary interface
    ERROR_SSL = 1
    ERROR_WANT_READ = 2
    ERROR_SYSCALL = 5
    ERROR_ZERO_RETURN = 6
    BIO_FLAGS_READ_RETRY = 0x01 | 0x08
    BIO_FLAGS_ANY = 0x0F
    BIO_CTRL_FLUSH = 11
    NAMETYPE_HOST_NAME = 0
    VERIFY_OK = 0
    RECORD_BYTES = 16384         # the largest plain text of a record
    MQTT_CONNECT = 0x10
    HANDSHAKE_RECORD = 22
    # Units of a turn's work. A client's first words have keys made, agreed on and signed with: some 350 us.
    WORK_ANSWER = 7000
    WORK_END = 1500              # its last ones: some 75 us,
    WORK_CERTIFICATE = 7000      # or more with a certificate
    TLS1_3_VERSION = 0x0304

# What OpenSSL reads from and writes to while one of its functions runs. One BIO serves all connections.
cdef const uint8_t* incoming = NULL
cdef size_t incoming_length = 0
cdef Layers outgoing = None      # whose raw output takes what is written; None: it is thrown away
cdef BIO* shared_bio = NULL
cdef uint8_t[RECORD_BYTES] scratch
# An alert record of TLS 1.0 (RFC 5246, 7.2): fatal, unexpected_message.
cdef uint8_t[7] NO_TLS_ALERT = [0x15, 0x03, 0x01, 0x00, 0x02, 0x02, 0x0A]


cdef int on_bio_read(BIO* bio, char* data, int size) noexcept nogil:
    global incoming, incoming_length
    cdef size_t taken = min(<size_t>size, incoming_length)
    BIO_clear_flags(bio, BIO_FLAGS_ANY)
    if taken == 0:
        BIO_set_flags(bio, BIO_FLAGS_READ_RETRY)
        return -1
    memcpy(data, incoming, taken)
    incoming += taken
    incoming_length -= taken
    return <int>taken


cdef int on_bio_write(BIO* bio, const char* data, int size) noexcept with gil:
    BIO_clear_flags(bio, BIO_FLAGS_ANY)
    if outgoing is not None:
        try:
            memcpy(output_room(&outgoing.raw, size), data, size)
        except MemoryError:
            return -1
    return size


cdef long on_bio_control(BIO* bio, int command, long number, void* pointer) noexcept nogil:
    return 1 if command == BIO_CTRL_FLUSH else 0


cdef int make_bio() except -1:
    global shared_bio
    cdef BIO_METHOD* method = BIO_meth_new(BIO_get_new_index() | 0x0400, b"shoal")
    if method == NULL:
        raise MemoryError()
    BIO_meth_set_read(method, on_bio_read)
    BIO_meth_set_write(method, on_bio_write)
    BIO_meth_set_ctrl(method, on_bio_control)
    shared_bio = BIO_new(method)
    if shared_bio == NULL:
        raise MemoryError()
    BIO_set_init(shared_bio, 1)
    return 0


make_bio()

# What OpenSSL calls it, what it is called here, and which end that is. The rest is tls_handshake_failed.
FAILURES = {
    "no shared cipher": ("the client and we have no cipher suite in common", CloseReason.TLS_NOTHING_IN_COMMON),
    "unsupported protocol": ("the client knows older versions of TLS only", CloseReason.TLS_NOTHING_IN_COMMON),
    "no suitable signature algorithm": (
        "the client takes no signature of our certificates", CloseReason.TLS_NOTHING_IN_COMMON),
    "no suitable key share": ("the client and we have no key exchange in common", CloseReason.TLS_NOTHING_IN_COMMON),
    "no shared group": ("the client and we have no key exchange in common", CloseReason.TLS_NOTHING_IN_COMMON),
    "peer did not return a certificate": ("the client sent no certificate", CloseReason.TLS_NO_CERTIFICATE),
    "psk identity not found": ("the client's pre-shared key is not known", CloseReason.TLS_UNKNOWN_KEY),
    "binder does not verify": ("the client has another pre-shared key", CloseReason.TLS_UNKNOWN_KEY),
    "decrypt error": ("the client has another pre-shared key, or another one's", CloseReason.TLS_UNKNOWN_KEY),
    "decryption failed or bad record mac": (
        "a record that was changed on its way, or another pre-shared key", CloseReason.TLS_HANDSHAKE_FAILED),
}
WITHOUT_KEY = frozenset({"no shared cipher", "no suitable signature algorithm"})     # where there is no certificate either
ALERTS = {
    "unknown ca": "the client does not know who signed our certificate",
    "bad certificate": "the client does not take our certificate",
    "certificate unknown": "the client does not take our certificate",
    "certificate expired": "to the client, our certificate has expired",
    "certificate revoked": "to the client, our certificate was revoked",
    "unsupported certificate": "the client does not take certificates like ours",
    "protocol version": "the client takes no version of TLS that we speak",
    "handshake failure": "the client found nothing in common",
    "access denied": "the client refuses us",
}


@cython.final
cdef class Tls(Layer):
    """The server's end of one TLS connection.

    Args:
        context: of its listener.
        facts: of the connection.
        opening_bytes_max: that the client may send before the handshake is over.
    """

    def __init__(self, TlsContext context not None, facts, uint32_t opening_bytes_max):
        self.context = context
        self.opening_bytes_max = opening_bytes_max
        self.ssl = SSL_new(context.context)
        self.secrets = <Secrets*>calloc(1, sizeof(Secrets))
        if self.ssl == NULL or self.secrets == NULL:
            raise MemoryError()
        BIO_up_ref(shared_bio)
        SSL_set_bio(self.ssl, shared_bio, shared_bio)
        SSL_set_ex_data(self.ssl, 0, <void*>facts)       # held by the stack, which is given the same
        SSL_set_accept_state(self.ssl)

    def __dealloc__(self):
        SSL_free(self.ssl)
        self.forget_secrets()

    cdef int receive(self, uint8_t* data, size_t length) except -1:
        global incoming, incoming_length, outgoing
        cdef uint8_t* room
        cdef int size, error
        if self.records is not None:
            return self.records.receive(self, data, length)
        incoming, incoming_length, outgoing = data, length, self.stack
        try:
            if not self.opened:
                if self.opening_bytes == 0:
                    self.check_first_byte(data[0])
                self.opening_bytes += <uint32_t>length
                if not self.shake_hands():
                    return 0
                if self.records is not None:
                    return self.records.receive(self, incoming, incoming_length)
            while not self.ended:
                room = plain_room(RECORD_BYTES) if self.inward is None else scratch
                ERR_clear_error()
                size = SSL_read(self.ssl, room, RECORD_BYTES)
                if size > 0:
                    if self.inward is None:
                        plain.length += size
                    else:
                        self.inward.receive(room, size)
                    continue
                error = SSL_get_error(self.ssl, size)
                if error == ERROR_WANT_READ:
                    break
                if error == ERROR_ZERO_RETURN:
                    self.ended = True
                    break
                raise self.failure(error)
        finally:
            incoming, incoming_length, outgoing = NULL, 0, None
        return 0

    cdef int check_first_byte(self, uint8_t first) except -1:
        if first != HANDSHAKE_RECORD:
            # Whoever takes it for an answer to a CONNECT or to an HTTP request can say what is wrong.
            self.pass_out(NO_TLS_ALERT, sizeof(NO_TLS_ALERT))
        if first == MQTT_CONNECT:
            raise ClientError(Reason.PROTOCOL_ERROR, "RFC 8446, 5.1", "a CONNECT without TLS on a port with TLS",
                              CloseReason.PLAIN_ON_TLS_PORT)
        if first != HANDSHAKE_RECORD:
            raise ClientError(Reason.PROTOCOL_ERROR, "RFC 8446, 5.1", "no TLS on a port with TLS",
                              CloseReason.PLAIN_ON_TLS_PORT)
        return 0

    cdef int shake_hands(self) except -1:
        """Go on with the handshake. Returns 1 when it is over, 0 if more has to come."""
        cdef int outcome, error
        cdef uint64_t unsent = self.stack.raw.pending
        ERR_clear_error()
        note_into(self.secrets)
        begin_counting()
        outcome = SSL_do_handshake(self.ssl)
        note_into(NULL)
        if outcome == 1:
            self.opened = True
            self.note_facts()
            self.stack.work += WORK_END if self.stack.facts.certificate is None else WORK_CERTIFICATE
            self.take_over(records_sent())
            return 1
        if self.stack.raw.pending > unsent:
            self.stack.work += WORK_ANSWER       # an alert, too: what has failed has taken its time
        error = SSL_get_error(self.ssl, outcome)
        if error != ERROR_WANT_READ:
            raise self.failure(error)
        if self.opening_bytes > self.opening_bytes_max:
            raise ClientError(Reason.PROTOCOL_ERROR, "section 4.13",
                              f"a TLS handshake of more than {self.opening_bytes_max} bytes",
                              CloseReason.TLS_HANDSHAKE_FAILED)
        return 0

    cdef int note_facts(self) except -1:
        cdef const char* text
        cdef X509* certificate
        facts = self.stack.facts
        facts.tls_version = SSL_get_version(self.ssl).decode("ascii")
        facts.tls_cipher = SSL_CIPHER_get_name(SSL_get_current_cipher(self.ssl)).decode("ascii")
        facts.tls_resumed = SSL_session_reused(self.ssl) == 1
        text = SSL_get_servername(self.ssl, NAMETYPE_HOST_NAME)
        if text != NULL:
            facts.server_name = (<bytes>text).decode("utf-8", "replace")
        text = SSL_get_psk_identity(self.ssl)
        if text != NULL and self.context.keys and facts.psk_identity is None:
            facts.psk_identity = (<bytes>text).decode("utf-8", "replace")
        certificate = SSL_get1_peer_certificate(self.ssl)
        if certificate != NULL:
            try:
                facts.certificate = certificate_of(certificate)
            finally:
                X509_free(certificate)
            if facts.tls_resumed and facts.certificate.not_after_s < time.time():
                # A full handshake would have found it.
                raise ClientError(Reason.NOT_AUTHORIZED, "RFC 5280, 4.1.2.5",
                                  f"the client's certificate has expired: {facts.certificate.dn}",
                                  CloseReason.TLS_CERTIFICATE_REFUSED)
        self.context.handshakes["resumed" if facts.tls_resumed else "full"] += 1
        return 0

    cdef int take_over(self, uint64_t sent_records) except -1:
        """Go on without OpenSSL's object, if that can be.

        Args:
            sent_records: since the client's last message: tickets, which have the key of application data already.
        """
        cdef Records records
        if SSL_version(self.ssl) == TLS1_3_VERSION:
            records = Records()
            if records.take(SSL_get_current_cipher(self.ssl), self.secrets, sent_records):
                self.records = records
                SSL_free(self.ssl)
                self.ssl = NULL
        self.forget_secrets()
        return 0

    cdef int forget_secrets(self) noexcept:
        if self.secrets != NULL:
            OPENSSL_cleanse(self.secrets, sizeof(Secrets))
            free(self.secrets)
            self.secrets = NULL
        return 0

    cdef object failure(self, int outcome):
        """Return the error to raise for what OpenSSL did not take, in words."""
        cdef unsigned long code = ERR_get_error()
        cdef const char* found = ERR_reason_error_string(code)
        cdef long verified = SSL_get_verify_result(self.ssl)
        reason = (<bytes>found).decode("ascii") if found != NULL else "its end"
        ERR_clear_error()
        if reason == "certificate verify failed" and verified != VERIFY_OK:
            why = (<bytes>X509_verify_cert_error_string(verified)).decode("ascii")
            return ClientError(Reason.NOT_AUTHORIZED, "RFC 5280, 6", f"the client's certificate: {why}",
                               CloseReason.TLS_CERTIFICATE_REFUSED)
        if " alert " in reason:
            alert = reason.partition(" alert ")[2]
            return ClientError(Reason.PROTOCOL_ERROR, "RFC 8446, 6.2", ALERTS.get(alert, f"the client says: {alert}"),
                               CloseReason.TLS_REFUSED_BY_CLIENT)
        if reason in WITHOUT_KEY and self.context.keys and not self.context.certificates:
            reason = "psk identity not found"
        detail, end = FAILURES.get(reason, (f"TLS: {reason}", CloseReason.TLS_HANDSHAKE_FAILED))
        return ClientError(Reason.PROTOCOL_ERROR, "RFC 8446, 6.2", detail,
                           end if not self.opened else CloseReason.TLS_RECORD_WRONG)

    cdef int send(self, const uint8_t* data, size_t length) except -1:
        global outgoing
        if self.records is not None:
            return self.records.send(self.stack, data, length)
        if length == 0:
            return 0
        before = outgoing                # what came may be answered while it is read: a ping of WebSocket
        ERR_clear_error()
        outgoing = self.stack
        sent = SSL_write(self.ssl, data, <int>length)
        outgoing = before
        if sent != <int>length:
            raise OSError(f"TLS took {sent} of {length} bytes")
        return 0

    cdef int finish(self) except -1:
        """Tell the peer that nothing more will come (close_notify)."""
        global outgoing
        if self.records is not None:
            return self.records.send_close(self.stack)
        if self.opened:
            ERR_clear_error()
            before = outgoing
            outgoing = self.stack
            SSL_shutdown(self.ssl)
            outgoing = before
        return 0
