"""The records of one TLS 1.3 connection, once its handshake is over."""

from broker.transport.key_schedule cimport IV, SECRET_MAX, Digest, Keys, Secrets
from broker.transport.layer cimport Layer, Layers
from broker.transport.openssl cimport EVP_CIPHER, EVP_CIPHER_CTX, SSL_CIPHER
from libc.stdint cimport uint8_t, uint32_t, uint64_t

cdef enum:
    HEADER = 5                       # bytes of a record's header, and of a KeyUpdate


cdef struct Suite:                   # a cipher suite of TLS 1.3
    uint32_t name                    # its number
    EVP_CIPHER* cipher
    Digest* digest
    uint32_t key_length


cdef struct Direction:
    EVP_CIPHER_CTX* cipher           # has the key
    uint8_t[SECRET_MAX] secret       # which the next key comes from
    uint8_t[IV] iv
    uint64_t number                  # of the next record


cdef class Records:
    cdef Direction received
    cdef Direction sent
    cdef Suite* suite
    cdef uint8_t* partial            # header and body of a record that has come in part; NULL: there is none
    cdef uint32_t partial_length     # what has come of it, of its header first
    cdef uint8_t[HEADER] header      # of that record
    cdef uint8_t[HEADER] message     # of a KeyUpdate, as far as it has come
    cdef uint8_t message_length
    cdef bint update_owed            # the client asked for our next key; it comes before what we send next

    cdef bint take(self, const SSL_CIPHER* cipher, Secrets* secrets, uint64_t sent_records) except -1
    cdef int receive(self, Layer layer, const uint8_t* data, size_t length) except -1
    cdef int send(self, Layers stack, const uint8_t* data, size_t length) except -1
    cdef int send_close(self, Layers stack) except -1
    cdef bint fits(self, const Keys* keys) noexcept
    cdef int begin(self, Direction* direction, const Keys* keys, bint seals) except -1
    cdef int next_key(self, Direction* direction) except -1
    cdef int begin_record(self, Direction* direction, const uint8_t* header) except -1
    cdef int body_of(self, Layer layer, const uint8_t* header) except -1
    cdef int open_record(self, Layer layer, const uint8_t* record, int body) except -1
    cdef int on_alert(self, Layer layer, const uint8_t* content, int length) except -1
    cdef int on_handshake(self, Layer layer, const uint8_t* content, int length) except -1
    cdef object fault(self, Layer layer, uint8_t alert, str detail)
    cdef int send_key_update(self, Layers stack) except -1
    cdef int send_alert(self, Layers stack, uint8_t level, uint8_t alert) except -1
    cdef int seal(self, Layers stack, uint8_t kind, const uint8_t* data, int length) except -1
