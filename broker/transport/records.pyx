"""Records of TLS 1.3 behind the handshake (RFC 8446, 4.6.3, 5, 6 and 7.2), with the ciphers of OpenSSL.

An object of OpenSSL for a connection has 13 KiB, most of it for handshakes, and copies each record twice more. So it is
let go of when the handshake is over, and the traffic secrets go on here: a key for each direction, and nothing else but
what must be remembered of a record that has come in part. All that a client may send now is application data, a
KeyUpdate and an alert; the rest ends the connection.
"""

cimport cython
from broker.transport.key_schedule cimport IV, KEY_MAX, expand_label, sha256, sha384
from broker.transport.layer cimport Layer, Layers, plain, plain_room
from broker.transport.openssl cimport *
from broker.wire.output_buffer cimport output_room
from broker.wire.reasons import ClientError, CloseReason, Reason
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy

cdef enum:
    TAG = 16
    PLAIN_MAX = 16384                # bytes of content in a record
    BODY_MAX = PLAIN_MAX + 256       # and of the record without its header
    COPIED_MAX = 1024                # content that is copied, to be sealed in one go with its type
    WORK_KEY = 60                    # units of a turn's work: some 3 us
    TYPE_ALERT = 21
    TYPE_HANDSHAKE = 22
    TYPE_DATA = 23
    KEY_UPDATE = 24
    WARNING = 1
    FATAL = 2
    CLOSE_NOTIFY = 0
    UNEXPECTED_MESSAGE = 10
    BAD_RECORD_MAC = 20
    RECORD_OVERFLOW = 22
    ILLEGAL_PARAMETER = 47
    DECODE_ERROR = 50
    USER_CANCELED = 90
    CTRL_GET_TAG = 0x10              # openssl/evp.h: part of the binary interface
    CTRL_SET_TAG = 0x11

cdef uint8_t[BODY_MAX] scratch       # what is opened for another layer


cdef uint64_t records_per_key = 1 << 23  # of AES-GCM 2^24.5 full records may have the same key (section 5.5)
cdef Suite[3] suites


cdef int fetch_suites() except -1:
    """Ask OpenSSL for the ciphers once: it takes its time for that."""
    suites[0] = Suite(0x1301, EVP_CIPHER_fetch(NULL, b"AES-128-GCM", NULL), &sha256, 16)
    suites[1] = Suite(0x1302, EVP_CIPHER_fetch(NULL, b"AES-256-GCM", NULL), &sha384, 32)
    suites[2] = Suite(0x1303, EVP_CIPHER_fetch(NULL, b"ChaCha20-Poly1305", NULL), &sha256, 32)
    return 0


fetch_suites()


def set_records_per_key(uint64_t number) -> int:
    """Set how many records are sent with a key, which tests have no patience for; returns how many they were."""
    global records_per_key
    before = records_per_key
    records_per_key = number
    return before


@cython.final
cdef class Records:
    """Both directions of one connection, which begin with the traffic secrets of its handshake: see take()."""

    def __dealloc__(self):
        EVP_CIPHER_CTX_free(self.received.cipher)
        EVP_CIPHER_CTX_free(self.sent.cipher)
        OPENSSL_cleanse(&self.received, sizeof(Direction))
        OPENSSL_cleanse(&self.sent, sizeof(Direction))
        free(self.partial)

    cdef bint take(self, const SSL_CIPHER* cipher, Secrets* secrets, uint64_t sent_records) except -1:
        """Go on from a handshake. Returns whether that can be: not with every cipher suite, nor if another provider of
        OpenSSL's than ours has derived its keys.

        Args:
            sent_records: that OpenSSL has sent with the key of application data: tickets.
        """
        cdef unsigned short name = SSL_CIPHER_get_protocol_id(cipher)
        cdef int index
        for index in range(3):
            if suites[index].name == name and suites[index].cipher != NULL:
                self.suite = &suites[index]
        if self.suite == NULL or not self.fits(&secrets.sent) or not self.fits(&secrets.received):
            return False
        self.begin(&self.received, &secrets.received, False)
        self.begin(&self.sent, &secrets.sent, True)
        self.sent.number = sent_records
        return True

    cdef bint fits(self, const Keys* keys) noexcept:
        return keys.secret_length == self.suite.digest.length and keys.key_length == self.suite.key_length

    cdef int begin(self, Direction* direction, const Keys* keys, bint seals) except -1:
        memcpy(direction.secret, keys.secret, SECRET_MAX)
        memcpy(direction.iv, keys.iv, IV)
        direction.cipher = EVP_CIPHER_CTX_new()
        if direction.cipher == NULL or EVP_CipherInit_ex(
                direction.cipher, self.suite.cipher, NULL, keys.key, NULL, seals) <= 0:
            raise MemoryError()
        return 0

    cdef int next_key(self, Direction* direction) except -1:
        """Go on with the next secret (section 7.2), and what follows from it, for the records from number 0 on (7.3)."""
        cdef uint8_t[KEY_MAX] key
        cdef uint8_t[SECRET_MAX] former
        cdef Digest* digest = self.suite.digest
        memcpy(former, direction.secret, SECRET_MAX)
        cdef bint done = (
            expand_label(digest, former, "traffic upd", direction.secret, digest.length)
            and expand_label(digest, direction.secret, "key", key, self.suite.key_length)
            and expand_label(digest, direction.secret, "iv", direction.iv, IV)
            and EVP_CipherInit_ex(direction.cipher, NULL, NULL, key, NULL, -1) > 0)
        direction.number = 0
        OPENSSL_cleanse(key, sizeof(key))
        OPENSSL_cleanse(former, sizeof(former))
        if not done:
            raise MemoryError()
        return 0

    # What comes ------------------------------------------------------------------------------------------------------

    cdef int receive(self, Layer layer, const uint8_t* data, size_t length) except -1:
        cdef size_t wanted, taken
        cdef uint8_t* held
        # Who closes while a record is dealt with takes the layer out of its stack.
        while length and not layer.ended and layer.stack is not None:
            if self.partial_length == 0 and length >= HEADER:
                wanted = HEADER + <size_t>self.body_of(layer, data)
                if length >= wanted:
                    self.open_record(layer, data, <int>(wanted - HEADER))
                    data += wanted
                    length -= wanted
                    continue
            wanted = HEADER
            if self.partial_length >= HEADER:
                wanted += <size_t>self.body_of(layer, self.header)
            taken = min(wanted - self.partial_length, length)
            held = self.partial if self.partial != NULL else &self.header[0]
            memcpy(held + self.partial_length, data, taken)
            self.partial_length += <uint32_t>taken
            data += taken
            length -= taken
            if self.partial == NULL:
                if self.partial_length == HEADER:
                    self.partial = <uint8_t*>malloc(HEADER + <size_t>self.body_of(layer, self.header))
                    if self.partial == NULL:
                        raise MemoryError()
                    memcpy(self.partial, self.header, HEADER)
            elif self.partial_length == wanted:
                try:
                    self.open_record(layer, self.partial, <int>(wanted - HEADER))
                finally:
                    free(self.partial)
                    self.partial = NULL
                    self.partial_length = 0
        return 0

    cdef int body_of(self, Layer layer, const uint8_t* header) except -1:
        """Return how many bytes of a record follow its header."""
        cdef int body = header[3] << 8 | header[4]
        if header[0] != TYPE_DATA:
            raise self.fault(layer, UNEXPECTED_MESSAGE, f"a record of type {header[0]} that is not encrypted")
        if body > BODY_MAX:
            raise self.fault(layer, RECORD_OVERFLOW, f"a record of {body} bytes")
        if body <= TAG:
            raise self.fault(layer, BAD_RECORD_MAC, f"a record of {body} bytes")
        return body

    cdef int open_record(self, Layer layer, const uint8_t* record, int body) except -1:
        cdef uint8_t* content = plain_room(<size_t>body) if layer.inward is None else scratch
        cdef int length = body - TAG
        cdef int made = 0
        self.begin_record(&self.received, record)
        if (EVP_CipherUpdate(self.received.cipher, content, &made, record + HEADER, length) <= 0
                or EVP_CIPHER_CTX_ctrl(self.received.cipher, CTRL_SET_TAG, TAG, <void*>(record + HEADER + length)) <= 0
                or EVP_CipherFinal_ex(self.received.cipher, content + made, &made) <= 0):
            ERR_clear_error()
            raise self.fault(layer, BAD_RECORD_MAC, "a record that was changed on its way")
        while length and content[length - 1] == 0:       # padding; the type stands before it (section 5.4)
            length -= 1
        if length == 0:
            raise self.fault(layer, UNEXPECTED_MESSAGE, "a record without a type")
        length -= 1
        kind = content[length]
        if length > PLAIN_MAX:
            raise self.fault(layer, RECORD_OVERFLOW, f"a record with {length} bytes of content")
        if kind == TYPE_DATA and not self.message_length:
            if layer.inward is None:
                plain.length += length
            elif length:
                layer.inward.receive(content, length)
            return 0
        if kind == TYPE_ALERT and not self.message_length:
            return self.on_alert(layer, content, length)
        if kind == TYPE_HANDSHAKE and length:
            return self.on_handshake(layer, content, length)
        raise self.fault(layer, UNEXPECTED_MESSAGE, f"a record of type {kind} with {length} bytes")

    cdef int on_alert(self, Layer layer, const uint8_t* content, int length) except -1:
        if length != 2:
            raise self.fault(layer, DECODE_ERROR, f"an alert of {length} bytes")
        if content[1] == CLOSE_NOTIFY:
            layer.ended = True
        elif content[1] != USER_CANCELED:                # a close_notify follows that
            raise ClientError(Reason.PROTOCOL_ERROR, "RFC 8446, 6.2", f"the client says: TLS alert {content[1]}",
                              CloseReason.TLS_REFUSED_BY_CLIENT)
        return 0

    cdef int on_handshake(self, Layer layer, const uint8_t* content, int length) except -1:
        """Take a KeyUpdate (section 4.6.3), which may come in pieces."""
        if length > HEADER - self.message_length:
            raise self.fault(layer, UNEXPECTED_MESSAGE, "a handshake message that is no KeyUpdate, or goes on behind one")
        memcpy(self.message + self.message_length, content, length)
        self.message_length += length
        if self.message[0] != KEY_UPDATE:
            raise self.fault(layer, UNEXPECTED_MESSAGE, f"a handshake message of type {self.message[0]}")
        if self.message_length < HEADER:
            return 0
        self.message_length = 0
        if self.message[1] or self.message[2] or self.message[3] != 1:
            raise self.fault(layer, DECODE_ERROR, "a KeyUpdate of another length")
        if self.message[4] > 1:
            raise self.fault(layer, ILLEGAL_PARAMETER, f"a KeyUpdate that asks for {self.message[4]}")
        self.next_key(&self.received)
        layer.stack.work += WORK_KEY
        # Ours goes out before our next data, so that however many ask while we are silent are answered by one.
        self.update_owed = self.update_owed or self.message[4] == 1
        return 0

    cdef object fault(self, Layer layer, uint8_t alert, str detail):
        """Tell the client what it did, and return the error to raise."""
        self.send_alert(layer.stack, FATAL, alert)
        return ClientError(Reason.PROTOCOL_ERROR, "RFC 8446, 6.2", detail, CloseReason.TLS_RECORD_WRONG)

    # What is sent ----------------------------------------------------------------------------------------------------

    cdef int send(self, Layers stack, const uint8_t* data, size_t length) except -1:
        cdef size_t size
        while length:
            size = min(length, <size_t>PLAIN_MAX)
            if self.update_owed or self.sent.number >= records_per_key:
                self.send_key_update(stack)
            self.seal(stack, TYPE_DATA, data, <int>size)
            data += size
            length -= size
        return 0

    cdef int send_key_update(self, Layers stack) except -1:
        cdef uint8_t[HEADER] message
        message[0], message[1], message[2], message[3], message[4] = KEY_UPDATE, 0, 0, 1, 0
        self.seal(stack, TYPE_HANDSHAKE, message, HEADER)
        self.next_key(&self.sent)
        self.update_owed = False
        return 0

    cdef int send_close(self, Layers stack) except -1:
        """Say that nothing more will come (close_notify)."""
        return self.send_alert(stack, WARNING, CLOSE_NOTIFY)

    cdef int send_alert(self, Layers stack, uint8_t level, uint8_t alert) except -1:
        cdef uint8_t[2] content
        content[0], content[1] = level, alert
        return self.seal(stack, TYPE_ALERT, content, 2)

    cdef int seal(self, Layers stack, uint8_t kind, const uint8_t* data, int length) except -1:
        """Put a record with some content into the stack's raw output."""
        cdef EVP_CIPHER_CTX* cipher = self.sent.cipher
        cdef int body = length + 1 + TAG
        cdef int made = 0
        cdef uint8_t* record = output_room(&stack.raw, <size_t>(HEADER + body))
        cdef uint8_t* content = record + HEADER
        cdef bint done
        record[0], record[1], record[2], record[3], record[4] = TYPE_DATA, 3, 3, <uint8_t>(body >> 8), <uint8_t>body
        self.begin_record(&self.sent, record)
        if length <= COPIED_MAX:
            memcpy(content, data, length)
            content[length] = kind
            done = EVP_CipherUpdate(cipher, content, &made, content, length + 1) > 0
        else:
            done = (EVP_CipherUpdate(cipher, content, &made, data, length) > 0
                    and EVP_CipherUpdate(cipher, content + length, &made, &kind, 1) > 0)
        if (not done or EVP_CipherFinal_ex(cipher, content + length + 1, &made) <= 0
                or EVP_CIPHER_CTX_ctrl(cipher, CTRL_GET_TAG, TAG, content + length + 1) <= 0):
            raise OSError(f"OpenSSL did not seal {length} bytes")
        return 0

    cdef int begin_record(self, Direction* direction, const uint8_t* header) except -1:
        """Set the nonce of the next record (section 5.3), and what is authenticated of its header."""
        cdef uint8_t[IV] nonce
        cdef uint64_t number = direction.number
        cdef int made = 0
        cdef int index
        memcpy(nonce, direction.iv, IV)
        for index in range(8):
            nonce[IV - 1 - index] ^= <uint8_t>(number >> (8 * index))
        direction.number += 1
        if (EVP_CipherInit_ex(direction.cipher, NULL, NULL, NULL, nonce, -1) <= 0
                or EVP_CipherUpdate(direction.cipher, NULL, &made, header, HEADER) <= 0):
            raise OSError("OpenSSL did not begin a record")
        return 0
