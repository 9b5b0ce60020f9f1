"""The key schedule of TLS 1.3 (RFC 8446, 7.1), as a provider of OpenSSL.

A handshake asks some twenty times for a secret or a key that follows from another one. Contexts that are made with
PREFERRED have that answered here, by the HMAC of OpenSSL, at less than its own "TLS13-KDF" costs; and what is
for the records behind the handshake is noted on the way, because those are ours (records.pyx). Everybody else in the
process goes on with OpenSSL's.
"""

from broker.transport.openssl cimport *
from libc.stddef cimport size_t
from libc.stdint cimport uint8_t, uint32_t
from libc.string cimport memcmp, memcpy, memset, strcmp, strlen
import hashlib

cdef enum:                           # openssl/core_dispatch.h, openssl/core.h, openssl/kdf.h: parts of the binary interface
    OPERATION_KDF = 4
    PROVIDER_QUERY_OPERATION = 1027
    KDF_NEWCTX = 1
    KDF_FREECTX = 3
    KDF_DERIVE = 5
    PARAM_INTEGER = 1
    MODE_EXTRACT = 1
    MODE_EXPAND = 2

cdef enum:
    INFO_MAX = 2 + 1 + 255 + 1 + 255     # HkdfLabel: length, label, context

cdef extern from *:
    """
    static _Thread_local void* noted_here = NULL;
    """
    void* noted_here                 # Secrets of the handshake under way in this thread; NULL: there is none of ours

cdef EVP_MAC* mac = EVP_MAC_fetch(NULL, "HMAC", NULL)

PREFERRED = b"?provider=shoal"


cdef void note_into(Secrets* place) noexcept nogil:
    global noted_here
    noted_here = place


cdef inline Bytes bytes_at(const void* data, size_t length) noexcept nogil:
    return Bytes(<const uint8_t*>data, length)


# HKDF (RFC 5869), with the label of TLS 1.3 ----------------------------------------------------------------------------

cdef bint keeps_keys = False         # whether an HMAC may begin anew with the key that it has: not in OpenSSL 3.0.0 to 3.0.2


cdef bint hmac(Digest* digest, Bytes key, const uint8_t* data, size_t length, uint8_t* into) noexcept nogil:
    cdef Bytes given = key
    cdef bint done
    if keeps_keys and key.length == digest.key_length and memcmp(key.data, digest.key, key.length) == 0:
        given = bytes_at(NULL, 0)
    digest.key_length = 0
    done = (EVP_MAC_init(digest.hmac, given.data, given.length, NULL) > 0
            and EVP_MAC_update(digest.hmac, data, length) > 0
            and EVP_MAC_final(digest.hmac, into, NULL, digest.length) > 0)
    if done and key.length <= SECRET_MAX:
        if given.data != NULL:
            memcpy(digest.key, key.data, key.length)
        digest.key_length = key.length
    return done


cdef bint expand(Digest* digest, Bytes secret, Bytes prefix, Bytes label, Bytes data, uint8_t* into,
                 size_t length) noexcept nogil:
    """HKDF-Expand-Label; the label is in two parts. False: it does not fit, or OpenSSL fails."""
    cdef uint8_t[SECRET_MAX + INFO_MAX + 1] text         # what came of the turn before, the info, the turn's number
    cdef uint8_t[SECRET_MAX] made
    cdef uint8_t* at = text + SECRET_MAX
    cdef size_t before = 0, size
    cdef uint8_t turn = 0
    cdef bint done = True
    if prefix.length + label.length > 255 or data.length > 255 or length > 255 * <size_t>digest.length:
        return False
    at[0], at[1], at[2] = <uint8_t>(length >> 8), <uint8_t>length, <uint8_t>(prefix.length + label.length)
    at += 3
    memcpy(at, prefix.data, prefix.length)
    at += prefix.length
    memcpy(at, label.data, label.length)
    at += label.length
    at[0] = <uint8_t>data.length
    at += 1
    if data.length:
        memcpy(at, data.data, data.length)
        at += data.length
    while length and done:
        turn += 1
        at[0] = turn
        done = hmac(digest, secret, text + SECRET_MAX - before, at + 1 - (text + SECRET_MAX - before), made)
        size = min(length, <size_t>digest.length)
        memcpy(into, made, size)
        into += size
        length -= size
        before = digest.length
        memcpy(text + SECRET_MAX - before, made, before)
    OPENSSL_cleanse(made, sizeof(made))
    OPENSSL_cleanse(text, SECRET_MAX)
    return done


cdef bint expand_label(Digest* digest, const uint8_t* secret, const char* label, uint8_t* into,
                       size_t length) noexcept nogil:
    """The same of a traffic secret, without context."""
    return expand(digest, bytes_at(secret, digest.length), bytes_at("tls13 ", 6), bytes_at(label, strlen(label)),
                  bytes_at(NULL, 0), into, length)


cdef inline bint is_early(const Digest* digest, Bytes before, Bytes prefix, Bytes label) noexcept nogil:
    """Whether the secret before is the one that every handshake without a pre-shared key begins with."""
    return (before.length == digest.length and memcmp(before.data, digest.early, digest.length) == 0
            and prefix.length == 6 and memcmp(prefix.data, "tls13 ", 6) == 0
            and label.length == 7 and memcmp(label.data, "derived", 7) == 0)


cdef bint extract(Digest* digest, Bytes before, Bytes prefix, Bytes label, Bytes material,
                  uint8_t* into) noexcept nogil:
    """HKDF-Extract of new key material, with what Derive-Secret makes of the secret before, if there is one."""
    cdef uint8_t[SECRET_MAX] salt
    cdef uint8_t[SECRET_MAX] zeros
    cdef bint done = True
    if before.data == NULL and material.data == NULL:
        memcpy(into, digest.early, digest.length)
        return True
    memset(salt, 0, sizeof(salt))
    memset(zeros, 0, sizeof(zeros))
    if is_early(digest, before, prefix, label):
        memcpy(salt, digest.early_salt, digest.length)
    elif before.data != NULL:
        done = expand(digest, before, prefix, label, bytes_at(digest.of_nothing, digest.length), salt, digest.length)
    if material.data == NULL:
        material = bytes_at(zeros, digest.length)
    done = done and hmac(digest, bytes_at(salt, digest.length), material.data, material.length, into)
    OPENSSL_cleanse(salt, sizeof(salt))
    return done


# The provider -----------------------------------------------------------------------------------------------------------

cdef struct Asked:                   # of "TLS13-KDF": EVP_KDF-TLS13_KDF(7)
    int mode
    Digest* digest                   # NULL: none that we know
    Bytes key
    Bytes salt
    Bytes prefix
    Bytes label
    Bytes data


cdef inline bint is_called(const Digest* digest, const char* name) noexcept nogil:
    return strcmp(name, EVP_MD_get0_name(digest.digest)) == 0 or EVP_MD_is_a(digest.digest, name)


cdef Asked read_question(const OSSL_PARAM* parameter) noexcept nogil:
    cdef Asked asked
    cdef Bytes value
    memset(&asked, 0, sizeof(asked))
    while parameter != NULL and parameter.key != NULL:
        value = bytes_at(parameter.data, parameter.data_size)
        if strcmp(parameter.key, "mode") == 0:
            if parameter.data_type == PARAM_INTEGER and parameter.data_size == sizeof(int):
                asked.mode = (<const int*>parameter.data)[0]
        elif strcmp(parameter.key, "digest") == 0:
            if is_called(&sha384, <const char*>parameter.data):
                asked.digest = &sha384
            elif is_called(&sha256, <const char*>parameter.data):
                asked.digest = &sha256
        elif strcmp(parameter.key, "key") == 0:
            asked.key = value
        elif strcmp(parameter.key, "salt") == 0:
            asked.salt = value
        elif strcmp(parameter.key, "prefix") == 0:
            asked.prefix = value
        elif strcmp(parameter.key, "label") == 0:
            asked.label = value
        elif strcmp(parameter.key, "data") == 0:
            asked.data = value
        parameter += 1
    return asked


cdef int on_derive(void* context, uint8_t* into, size_t length, const OSSL_PARAM* parameters) noexcept nogil:
    cdef Asked asked = read_question(parameters)
    cdef Digest others
    cdef bint done = False
    if asked.digest == NULL:
        return False
    if noted_here == NULL:
        # Whoever that is, a handshake of ours may be under way in another thread.
        others = asked.digest[0]
        others.key_length = 0
        others.hmac = new_hmac(EVP_MD_get0_name(others.digest))
        asked.digest = &others
    if asked.digest.hmac == NULL:
        pass
    elif asked.mode == MODE_EXPAND and asked.key.data != NULL:
        done = expand(asked.digest, asked.key, asked.prefix, asked.label, asked.data, into, length)
        if done and noted_here != NULL:
            note(<Secrets*>noted_here, &asked, into, length)
    elif asked.mode == MODE_EXTRACT and length == asked.digest.length:
        done = extract(asked.digest, asked.salt, asked.prefix, asked.label, asked.key, into)
    if asked.digest == &others:
        EVP_MAC_CTX_free(others.hmac)
        OPENSSL_cleanse(others.key, sizeof(others.key))
    return done


cdef inline bint is_label(const Asked* asked, const char* label, size_t length) noexcept nogil:
    return asked.label.length == length and memcmp(asked.label.data, label, length) == 0


cdef void note(Secrets* noted, const Asked* asked, const uint8_t* made, size_t length) noexcept nogil:
    """Keep what was derived, if it is for application data."""
    if is_label(asked, "s ap traffic", 12):
        note_secret(&noted.sent, made, length)
    elif is_label(asked, "c ap traffic", 12):
        note_secret(&noted.received, made, length)
    elif is_label(asked, "key", 3) or is_label(asked, "iv", 2):
        note_key(&noted.sent, asked, made, length)
        note_key(&noted.received, asked, made, length)


cdef void note_secret(Keys* keys, const uint8_t* made, size_t length) noexcept nogil:
    if length <= SECRET_MAX:
        memcpy(keys.secret, made, length)
        keys.secret_length = <uint32_t>length


cdef void note_key(Keys* keys, const Asked* asked, const uint8_t* made, size_t length) noexcept nogil:
    """Keep a key or an IV that follows from the secret of one direction; those of the handshake follow from others."""
    if keys.secret_length == 0 or asked.key.length != keys.secret_length or memcmp(
            asked.key.data, keys.secret, keys.secret_length) != 0:
        return
    if asked.label.length == 2:
        if length == IV:
            memcpy(keys.iv, made, IV)
    elif length <= KEY_MAX:
        memcpy(keys.key, made, length)
        keys.key_length = <uint32_t>length


cdef void* on_new(void* provider) noexcept nogil:
    return &sha256                   # something: there is no state between two questions


cdef void on_free(void* context) noexcept nogil:
    pass


cdef const OSSL_ALGORITHM* on_query(void* provider, int operation, int* may_not_keep) noexcept nogil:
    may_not_keep[0] = 0
    return algorithms if operation == OPERATION_KDF else NULL


cdef int on_load(const void* handle, const OSSL_DISPATCH* offered, const OSSL_DISPATCH** ours,
                 void** context) noexcept nogil:
    ours[0] = provider_functions
    context[0] = <void*>handle
    return 1


cdef OSSL_DISPATCH[4] kdf_functions
cdef OSSL_DISPATCH[2] provider_functions
cdef OSSL_ALGORITHM[2] algorithms


cdef EVP_MAC_CTX* new_hmac(const char* name) noexcept nogil:
    """Return an HMAC with a digest; NULL: OpenSSL has none."""
    cdef EVP_MAC_CTX* made = EVP_MAC_CTX_new(mac)
    cdef OSSL_PARAM[2] parameters
    parameters[0] = OSSL_PARAM_construct_utf8_string("digest", <char*>name, 0)
    parameters[1] = OSSL_PARAM_construct_end()
    if made != NULL and EVP_MAC_CTX_set_params(made, parameters) <= 0:
        EVP_MAC_CTX_free(made)
        return NULL
    return made


cdef int fetch(Digest* digest, const char* name, bytes of_nothing) except -1:
    """Ask OpenSSL for a digest once: it takes its time for that."""
    digest.digest = EVP_MD_fetch(NULL, name, NULL)
    digest.hmac = new_hmac(name)
    digest.length = <uint32_t>len(of_nothing)
    memcpy(digest.of_nothing, <const uint8_t*>of_nothing, digest.length)
    if digest.digest == NULL or digest.hmac == NULL:
        raise OSError("OpenSSL has no HMAC with SHA-2")
    return 0


cdef bint is_repeatable(Digest* digest) except -1:
    """Whether a second HMAC with the key of the first one comes out as with a key of its own."""
    cdef uint8_t[2 * SECRET_MAX] made
    cdef bytes key = bytes(digest.length)
    cdef Bytes zeros = bytes_at(<const uint8_t*>key, digest.length)
    if not (hmac(digest, zeros, <const uint8_t*>b"shoal", 5, made)
            and EVP_MAC_init(digest.hmac, NULL, 0, NULL) > 0
            and EVP_MAC_update(digest.hmac, <const uint8_t*>b"shoal", 5) > 0
            and EVP_MAC_final(digest.hmac, made + SECRET_MAX, NULL, digest.length) > 0):
        return False
    return memcmp(made, made + SECRET_MAX, digest.length) == 0


cdef int begin_early(Digest* digest) except -1:
    """Derive what is the same in every handshake without a pre-shared key (RFC 8446, 7.1)."""
    cdef uint8_t[SECRET_MAX] zeros
    memset(zeros, 0, sizeof(zeros))
    if not (hmac(digest, bytes_at(zeros, digest.length), zeros, digest.length, digest.early)
            and expand(digest, bytes_at(digest.early, digest.length), bytes_at("tls13 ", 6), bytes_at("derived", 7),
                       bytes_at(digest.of_nothing, digest.length), digest.early_salt, digest.length)):
        raise OSError("OpenSSL computes no HMAC with SHA-2")
    return 0


cdef int load_provider() except -1:
    kdf_functions[0] = OSSL_DISPATCH(KDF_NEWCTX, <void (*)() noexcept nogil>on_new)
    kdf_functions[1] = OSSL_DISPATCH(KDF_FREECTX, <void (*)() noexcept nogil>on_free)
    kdf_functions[2] = OSSL_DISPATCH(KDF_DERIVE, <void (*)() noexcept nogil>on_derive)
    provider_functions[0] = OSSL_DISPATCH(PROVIDER_QUERY_OPERATION, <void (*)() noexcept nogil>on_query)
    algorithms[0] = OSSL_ALGORITHM("TLS13-KDF", "provider=shoal", &kdf_functions[0], NULL)
    if OSSL_PROVIDER_add_builtin(NULL, "shoal", on_load) <= 0 or OSSL_PROVIDER_try_load(NULL, "shoal", 1) == NULL:
        raise OSError("OpenSSL takes no provider of ours")
    return 0


# What the system's configuration says of providers is taken up by the first of these; from then on there is one more.
fetch(&sha256, "SHA2-256", hashlib.sha256().digest())
fetch(&sha384, "SHA2-384", hashlib.sha384().digest())
keeps_keys = is_repeatable(&sha256) and is_repeatable(&sha384)
begin_early(&sha256)
begin_early(&sha384)
load_provider()
