"""A listener's TLS: certificates, keys, who is trusted.

A context is made as a whole and never changed: what is read again becomes another one, and connections keep the one that
they began with. Only OpenSSL's own functions are used per connection, no object of Python's `ssl`.
"""

import hashlib
import time

from broker.config.start_error import StartError
from broker.logs import get
from broker.transport.certificate cimport certificate_of
from broker.transport.key_schedule cimport PREFERRED
from broker.transport.openssl cimport *
from cpython.bytes cimport PyBytes_AS_STRING
from libc.stdint cimport uint64_t
from libc.string cimport memcmp, memcpy

cdef enum:                       # openssl/ssl.h, openssl/x509*.h, openssl/tls1.h: parts of the binary interface
    FILETYPE_PEM = 1
    VERIFY_NONE = 0
    VERIFY_PEER = 1
    VERIFY_FAIL_IF_NO_PEER_CERT = 2
    CTRL_SET_MSG_CALLBACK = 15
    CTRL_MODE = 33
    CTRL_SET_SESS_CACHE_MODE = 44
    CTRL_SET_TLSEXT_SERVERNAME_CB = 53
    CTRL_SET_MIN_PROTO_VERSION = 123
    MODE_RELEASE_BUFFERS = 0x10
    SESS_CACHE_OFF = 0
    TLS1_2_VERSION = 0x0303
    TLS1_3_VERSION = 0x0304
    TLSEXT_NAMETYPE_HOST_NAME = 0
    TLSEXT_ERR_OK = 0
    TLSEXT_ERR_NOACK = 3
    V_FLAG_CRL_CHECK = 0x4
    V_FLAG_CRL_CHECK_ALL = 0x8
    TICKET_NAME_BYTES = 16
    TICKET_KEY_BYTES = 80        # name, key of HMAC-SHA-256, key of AES-256-CBC
    PSK_BYTES_MAX = 256
    RECORD_HEADER = 0x100        # what the message callback calls the header of a record

cdef unsigned long OPTIONS = (
    (1 << 7)                     # SSL_OP_IGNORE_UNEXPECTED_EOF: an end without close_notify is an end
    | (1 << 17)                  # SSL_OP_NO_COMPRESSION
    | (1 << 22)                  # SSL_OP_CIPHER_SERVER_PREFERENCE
    | (1 << 30)                  # SSL_OP_NO_RENEGOTIATION
)
CIPHERS = "ECDHE+AESGCM:ECDHE+CHACHA20"
CIPHERS_PSK = "ECDHE-PSK-CHACHA20-POLY1305:DHE-PSK-AES256-GCM-SHA384:DHE-PSK-AES128-GCM-SHA256:" \
    "PSK-AES256-GCM-SHA384:PSK-AES128-GCM-SHA256:PSK-CHACHA20-POLY1305:" \
    "ECDHE-PSK-AES256-CBC-SHA384:ECDHE-PSK-AES128-CBC-SHA256:PSK-AES128-CBC-SHA256"

log = get("tls")

# The keys of session tickets, of this process: those of all workers of a node are the same, once they were told.
cdef unsigned char[TICKET_KEY_BYTES] ticket_key
cdef unsigned char[TICKET_KEY_BYTES] former_ticket_key
cdef bint has_former_ticket_key = False
cdef uint64_t sent_count = 0         # of records
cdef object keylog = None            # file that keys are written to, unbuffered; None: they are not

TICKET_KEYS_BYTES = TICKET_KEY_BYTES
if RAND_bytes(ticket_key, TICKET_KEY_BYTES) <= 0:
    raise OSError("no random bytes")


def set_ticket_keys(bytes current not None, bytes former=None) -> None:
    """Set what session tickets are sealed with from now on, and what those may be sealed with that clients have.

    Args:
        current, former: 80 random bytes each; the former one may be missing.
    """
    global has_former_ticket_key
    assert len(current) == TICKET_KEY_BYTES, len(current)
    memcpy(ticket_key, PyBytes_AS_STRING(current), TICKET_KEY_BYTES)
    has_former_ticket_key = former is not None
    if former is not None:
        assert len(former) == TICKET_KEY_BYTES, len(former)
        memcpy(former_ticket_key, PyBytes_AS_STRING(former), TICKET_KEY_BYTES)


cdef int on_ticket(SSL* ssl, unsigned char* name, unsigned char* iv, EVP_CIPHER_CTX* cipher, EVP_MAC_CTX* mac,
                   int sealing) noexcept nogil:
    """Choose the key of a session ticket: 1 it fits, 2 it fits and the client gets a new ticket, 0 no such key."""
    cdef unsigned char* key
    cdef int answer = 1
    cdef OSSL_PARAM[3] parameters
    if sealing:
        if RAND_bytes(iv, 16) <= 0:
            return -1
        key = ticket_key
        memcpy(name, key, TICKET_NAME_BYTES)
    elif memcmp(name, ticket_key, TICKET_NAME_BYTES) == 0:
        key = ticket_key
    elif has_former_ticket_key and memcmp(name, former_ticket_key, TICKET_NAME_BYTES) == 0:
        key = former_ticket_key
        answer = 2
    else:
        return 0
    parameters[0] = OSSL_PARAM_construct_octet_string("key", key + 16, 32)
    parameters[1] = OSSL_PARAM_construct_utf8_string("digest", "SHA256", 0)
    parameters[2] = OSSL_PARAM_construct_end()
    if EVP_MAC_CTX_set_params(mac, parameters) <= 0:
        return -1
    if sealing:
        return 1 if EVP_EncryptInit_ex(cipher, EVP_aes_256_cbc(), NULL, key + 48, iv) > 0 else -1
    return answer if EVP_DecryptInit_ex(cipher, EVP_aes_256_cbc(), NULL, key + 48, iv) > 0 else -1


cdef int on_password(char* buffer, int size, int writing, void* data) noexcept nogil:
    """No password is asked for: a broker has no terminal that a person sits at."""
    return 0


cdef int on_alpn(SSL* ssl, const unsigned char** chosen, unsigned char* chosen_length, const unsigned char* offered,
                 unsigned int length, void* data) noexcept nogil:
    """Take `mqtt`, or HTTP/1.1 where WebSocket is spoken; who offers neither goes on without."""
    cdef unsigned int at = 0
    cdef unsigned char size
    cdef bint http = data != NULL
    while at < length:
        size = offered[at]
        if at + 1 + size > length:
            break
        if (size == 4 and memcmp(offered + at + 1, b"mqtt", 4) == 0) or (
                http and size == 8 and memcmp(offered + at + 1, b"http/1.1", 8) == 0):
            chosen[0] = offered + at + 1
            chosen_length[0] = size
            return TLSEXT_ERR_OK
        at += 1 + size
    return TLSEXT_ERR_NOACK


cdef int on_server_name(SSL* ssl, int* alert, void* data) noexcept with gil:
    """Take the certificates of the server that the client names; of one that we do not know, the first ones."""
    cdef TlsContext ours
    cdef Certified certified
    cdef const char* name = SSL_get_servername(ssl, TLSEXT_NAMETYPE_HOST_NAME)
    if name == NULL:
        return TLSEXT_ERR_NOACK
    ours = <TlsContext>SSL_CTX_get_ex_data(SSL_get_SSL_CTX(ssl), 0)
    asked = (<bytes>name).lower()
    certified = ours.by_name.get(asked)
    if certified is None:
        certified = ours.by_name.get(b"*." + asked.partition(b".")[2])
    if certified is not None:
        SSL_set_SSL_CTX(ssl, certified.context)
    return TLSEXT_ERR_OK


cdef unsigned int on_psk(SSL* ssl, const char* identity, unsigned char* key, unsigned int size) noexcept with gil:
    """Give the pre-shared key of an identity; 0: there is none."""
    cdef TlsContext ours = <TlsContext>SSL_CTX_get_ex_data(SSL_get_SSL_CTX(ssl), 0)
    cdef bytes found = ours.keys.get(<bytes>identity)
    if found is None or <unsigned int>len(found) > size:
        return 0
    memcpy(key, PyBytes_AS_STRING(found), len(found))
    # A session of TLS 1.3 does not keep it. Who names another one's has another key, and the handshake fails.
    (<object>SSL_get_ex_data(ssl, 0)).psk_identity = (<bytes>identity).decode("utf-8", "replace")
    return <unsigned int>len(found)


cdef void begin_counting() noexcept nogil:
    global sent_count
    sent_count = 0


cdef uint64_t records_sent() noexcept nogil:
    return sent_count


cdef void on_message(int sent, int version, int kind, const void* data, size_t length, SSL* ssl, void* our) noexcept nogil:
    global sent_count
    if sent and kind == RECORD_HEADER:
        sent_count += 1


cdef void on_keys(const SSL* ssl, const char* line) noexcept with gil:
    if keylog is not None:
        try:
            keylog.write(line + b"\n")
        except OSError as error:
            log.warning("tls_keylog_failed", what=str(error))


def write_keys_to(path: str) -> None:
    """Write the keys of all connections that have a key log to a file from now on. Raises StartError."""
    global keylog
    try:
        keylog = open(path, "ab", buffering=0)       # noqa: SIM115  (it lives as long as the process)
    except OSError as error:
        raise StartError(f"The file {path} of tls_keylog cannot be opened: {error.strerror}.") from error
    log.warning("tls_keys_are_logged", file=path, what="who has this file can read what these connections carry")


cdef str last_error():
    """Return what OpenSSL says was wrong last, and forget it."""
    cdef const char* reason = ERR_reason_error_string(ERR_peek_last_error())
    text = reason.decode() if reason != NULL else "unknown error"
    ERR_clear_error()
    return text


def read_keys(path: str) -> dict[bytes, bytes]:
    """Return the pre-shared keys of a file: a line `IDENTITY:HEXADECIMAL` for each. Raises StartError."""
    keys = {}
    try:
        with open(path, "rb") as file:
            lines = file.read().splitlines()
    except OSError as error:
        raise StartError(f"The psk_file {path} cannot be read: {error.strerror}.") from error
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.startswith(b"#"):
            continue
        identity, separator, text = line.strip().partition(b":")
        try:
            key = bytes.fromhex(text.decode("ascii"))
        except ValueError:
            key = b""
        if not separator or not identity or not 1 <= len(key) <= PSK_BYTES_MAX:
            raise StartError(
                f"The psk_file {path}, line {number}: expected IDENTITY:KEY, the key of 1 to {PSK_BYTES_MAX} bytes in "
                f"hexadecimal.")
        keys[identity] = key
    return keys


cdef class Certified:
    """A context with some of the certificates."""

    def __dealloc__(self):
        if self.context != NULL:
            SSL_CTX_free(self.context)


cdef class TlsContext:
    """What a listener's handshakes are made with. It takes milliseconds to make, and reads files.

    Args:
        settings: the listener's (broker.config.listener.Listener).

    Raises StartError: a file cannot be used; which one and why is in the sentence.
    """

    def __init__(self, settings):
        self.keys = read_keys(settings.psk_file) if settings.psk_file else {}
        self.alpn_http = settings.where.is_websocket
        self.handshakes = {"full": 0, "resumed": 0}
        self.others = []
        self.by_name = {}
        identity = self._identity(settings)
        files = list(zip(settings.certfile, settings.keyfile))
        self.certificates = tuple(read_certificate(path) for path, _ in files)
        names = [names_of(certificate) for certificate in self.certificates]
        kinds = [key_kind(path) for path, _ in files]
        first = groups_of(names, kinds, names[0] if names else ())
        self.context = self._make(settings, identity, [files[index] for index in first])
        made = {first: None}
        for name in dict.fromkeys(name for of_one in names for name in of_one):
            group = groups_of(names, kinds, (name,))
            if group not in made:
                certified = Certified()
                certified.context = self._make(settings, identity, [files[index] for index in group])
                self.others.append(certified)
                made[group] = certified
            if made[group] is not None:
                self.by_name[name.encode()] = made[group]

    def __dealloc__(self):
        if self.context != NULL:
            SSL_CTX_free(self.context)

    def _identity(self, settings) -> bytes:
        """Return what sessions belong to: a ticket of another listener, or of before a change of trust, is no pass."""
        digest = hashlib.sha256(repr((settings.address, settings.require_certificate, settings.verify_depth,
                                      settings.crl_check)).encode())
        for path in (settings.cafile, settings.crlfile, settings.psk_file):
            if path is not None:
                try:
                    with open(path, "rb") as file:
                        digest.update(file.read())
                except OSError as error:
                    raise StartError(f"The file {path} cannot be read: {error.strerror}.") from error
        return digest.digest()

    cdef SSL_CTX* _make(self, settings, bytes identity, list files) except NULL:
        cdef SSL_CTX* context = SSL_CTX_new_ex(NULL, PREFERRED, TLS_server_method())
        if context == NULL:
            raise MemoryError()
        try:
            self._configure(context, settings, identity)
            for certfile, keyfile in files:
                load_pair(context, certfile, keyfile)
            if settings.cafile or settings.capath:
                trust(context, settings)
        except BaseException:
            SSL_CTX_free(context)
            raise
        return context

    cdef int _configure(self, SSL_CTX* context, settings, bytes identity) except -1:
        SSL_CTX_set_options(context, OPTIONS)
        SSL_CTX_ctrl(context, CTRL_MODE, MODE_RELEASE_BUFFERS, NULL)
        SSL_CTX_ctrl(context, CTRL_SET_SESS_CACHE_MODE, SESS_CACHE_OFF, NULL)
        SSL_CTX_ctrl(context, CTRL_SET_MIN_PROTO_VERSION,
                     TLS1_3_VERSION if settings.min_version == "1.3" else TLS1_2_VERSION, NULL)
        SSL_CTX_set_ex_data(context, 0, <void*>self)
        SSL_CTX_set_session_id_context(context, <const unsigned char*>PyBytes_AS_STRING(identity), 32)
        SSL_CTX_set_num_tickets(context, 0 if self.keys else 1)      # who resumes would have no identity
        SSL_CTX_set_tlsext_ticket_key_evp_cb(context, on_ticket)
        SSL_CTX_set_alpn_select_cb(context, on_alpn, <void*>context if self.alpn_http else NULL)
        SSL_CTX_callback_ctrl(context, CTRL_SET_TLSEXT_SERVERNAME_CB, <void (*)() noexcept nogil>on_server_name)
        SSL_CTX_set_default_passwd_cb(context, on_password)
        ciphers = settings.ciphers or (f"{CIPHERS}:{CIPHERS_PSK}" if self.keys else CIPHERS)
        if not SSL_CTX_set_cipher_list(context, ciphers.encode()):
            raise StartError(f"No cipher suite that OpenSSL knows is in ciphers = {ciphers!r}.")
        if settings.ciphersuites and not SSL_CTX_set_ciphersuites(context, settings.ciphersuites.encode()):
            raise StartError(f"OpenSSL does not know what is in ciphersuites = {settings.ciphersuites!r}.")
        if self.keys:
            SSL_CTX_set_psk_server_callback(context, on_psk)
            if settings.psk_hint:
                SSL_CTX_use_psk_identity_hint(context, settings.psk_hint.encode())
        if settings.tls_keylog:
            SSL_CTX_set_keylog_callback(context, on_keys)
        SSL_CTX_callback_ctrl(context, CTRL_SET_MSG_CALLBACK, <void (*)() noexcept nogil>on_message)
        return 0


cdef int load_pair(SSL_CTX* context, str certfile, str keyfile) except -1:
    readable(certfile, "certfile")
    readable(keyfile, "keyfile")
    if SSL_CTX_use_certificate_chain_file(context, certfile.encode()) != 1:
        raise StartError(f"The certfile {certfile} cannot be used: {last_error()}.")
    if SSL_CTX_use_PrivateKey_file(context, keyfile.encode(), FILETYPE_PEM) != 1:
        why = last_error()
        if "values mismatch" in why:
            raise StartError(f"The keyfile {keyfile} is not the key of {certfile}.")
        raise StartError(f"The keyfile {keyfile} cannot be used (a key with a password cannot): {why}.")
    if SSL_CTX_check_private_key(context) != 1:
        raise StartError(f"The keyfile {keyfile} is not the key of {certfile}: {last_error()}.")
    return 0


cdef int trust(SSL_CTX* context, settings) except -1:
    """Say whose certificates clients may have."""
    cdef X509_LOOKUP* lookup
    cdef int mode = VERIFY_PEER | (VERIFY_FAIL_IF_NO_PEER_CERT if settings.require_certificate else 0)
    if settings.cafile:
        readable(settings.cafile, "cafile")
        if SSL_CTX_load_verify_file(context, settings.cafile.encode()) != 1:
            raise StartError(f"The cafile {settings.cafile} cannot be used: {last_error()}.")
        SSL_CTX_set_client_CA_list(context, SSL_load_client_CA_file(settings.cafile.encode()))
    if settings.capath:
        readable(settings.capath + "/.", "capath")
        if SSL_CTX_load_verify_dir(context, settings.capath.encode()) != 1:
            raise StartError(f"The capath {settings.capath} cannot be used: {last_error()}.")
    SSL_CTX_set_verify(context, mode, NULL)
    SSL_CTX_set_verify_depth(context, settings.verify_depth)
    if settings.crlfile:
        readable(settings.crlfile, "crlfile")
        lookup = X509_STORE_add_lookup(SSL_CTX_get_cert_store(context), X509_LOOKUP_file())
        if lookup == NULL or X509_load_crl_file(lookup, settings.crlfile.encode(), FILETYPE_PEM) <= 0:
            raise StartError(f"The crlfile {settings.crlfile} cannot be used: {last_error()}.")
        X509_STORE_set_flags(SSL_CTX_get_cert_store(context), V_FLAG_CRL_CHECK | (
            V_FLAG_CRL_CHECK_ALL if settings.crl_check == "chain" else 0))
    ERR_clear_error()
    return 0


def readable(path: str, setting: str) -> None:
    """Raise StartError if a file cannot be read, as the system says it."""
    try:
        if not path.endswith("/."):
            with open(path, "rb"):
                pass
        else:
            import os

            os.stat(path)
    except OSError as error:
        raise StartError(f"The {setting} {path.removesuffix('/.')} cannot be read: {error.strerror}.") from error


def read_certificate(path: str) -> object:
    """Return what the first certificate of a PEM file says (broker.transport.facts.Certificate). Raises StartError."""
    cdef BIO* file
    cdef X509* found
    readable(path, "certfile")
    file = BIO_new_file(path.encode(), b"r")
    found = PEM_read_bio_X509(file, NULL, NULL, NULL) if file != NULL else NULL
    BIO_free(file)
    if found == NULL:
        raise StartError(f"The certfile {path} cannot be used: {last_error()}.")
    try:
        return certificate_of(found)
    finally:
        X509_free(found)


def key_kind(path: str) -> int:
    """Return OpenSSL's number for the kind of key in a certificate, RSA or an elliptic curve for instance."""
    cdef BIO* file = BIO_new_file(path.encode(), b"r")
    cdef X509* found = PEM_read_bio_X509(file, NULL, NULL, NULL) if file != NULL else NULL
    BIO_free(file)
    if found == NULL:
        raise StartError(f"The certfile {path} cannot be used: {last_error()}.")
    kind = EVP_PKEY_get_base_id(X509_get0_pubkey(found))
    X509_free(found)
    return kind


def names_of(certificate) -> tuple[str, ...]:
    """Return the server names that a certificate is for, in lower case: its alternative names, else its common name."""
    if certificate.san_dns:
        return tuple(name.lower() for name in certificate.san_dns)
    return (certificate.cn.lower(),) if certificate.cn else ()


def groups_of(names: list, kinds: list, wanted: tuple) -> tuple[int, ...]:
    """Return the certificates, by number, for a server of some names: the first of each kind of key that has one of them.

    Without names it is the first certificate, and the first of each other kind.
    """
    chosen: dict[int, int] = {}
    for index, (of_one, kind) in enumerate(zip(names, kinds)):
        if kind not in chosen and (not wanted or any(name in of_one for name in wanted)):
            chosen[kind] = index
    return tuple(chosen.values())


def days_left(certificate) -> float:
    """Return for how many days a certificate is valid yet; negative: it has expired."""
    return (certificate.not_after_s - time.time()) / 86400
