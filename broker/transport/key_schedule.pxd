"""The key schedule of TLS 1.3, and what it derives for the records behind a handshake."""

from broker.transport.openssl cimport EVP_MAC_CTX, EVP_MD
from libc.stdint cimport uint8_t, uint32_t

cdef enum:
    SECRET_MAX = 48                  # bytes of the longest traffic secret
    KEY_MAX = 32
    IV = 12


cdef struct Keys:                    # of one direction, for application data
    uint8_t[SECRET_MAX] secret
    uint8_t[KEY_MAX] key             # which follows from the secret, as the IV does
    uint8_t[IV] iv
    uint32_t secret_length           # 0: not derived yet
    uint32_t key_length              # 0: likewise


cdef struct Secrets:                 # what a handshake derives for the records behind it
    Keys sent
    Keys received


cdef struct Digest:                  # of a cipher suite
    EVP_MD* digest
    EVP_MAC_CTX* hmac
    uint32_t length                  # of a digest, and of a traffic secret
    uint8_t[SECRET_MAX] of_nothing
    uint8_t[SECRET_MAX] key          # that `hmac` has: some four values in a row are derived from one secret
    size_t key_length                # 0: it has none yet
    uint8_t[SECRET_MAX] early        # the Early Secret of a handshake without a pre-shared key
    uint8_t[SECRET_MAX] early_salt   # Derive-Secret(early, "derived", "")


cdef struct Bytes:
    const uint8_t* data
    size_t length

cdef Digest sha256
cdef Digest sha384

cdef const char* PREFERRED           # the property query of contexts whose handshakes have their keys derived here

cdef void note_into(Secrets* place) noexcept nogil       # what is derived from now on; NULL: nothing is noted
cdef bint expand(Digest* digest, Bytes secret, Bytes prefix, Bytes label, Bytes data, uint8_t* into,
                 size_t length) noexcept nogil
cdef bint expand_label(Digest* digest, const uint8_t* secret, const char* label, uint8_t* into,
                       size_t length) noexcept nogil
