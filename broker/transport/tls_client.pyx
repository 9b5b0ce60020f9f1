"""Our own end of TLS where we are the client: bytes in, bytes out, no socket.

By OpenSSL itself, as in tls.pyx, because Python's `ssl` of 3.11 knows no pre-shared keys and does not give away a
certificate that it did not take, so that nobody could say what was wrong with it.
"""

cimport cython
from broker.transport.certificate cimport certificate_of, server_names
from broker.transport.openssl cimport *
from broker.transport.tls_words import (
    NO_SUCH_PSK, NO_TLS, PSK_BYTES_MAX, PSK_IDENTITY_BYTES_MAX, TlsError, TlsOptionError, failure_words, is_ip_address,
    wrong_certificate)
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.string cimport memcpy

cdef enum:                       # openssl/ssl.h, openssl/x509*.h, openssl/tls1.h: parts of the binary interface
    FILETYPE_PEM = 1
    VERIFY_PEER = 1
    CTRL_SET_MIN_PROTO_VERSION = 123
    CTRL_SET_TLSEXT_HOSTNAME = 55
    TLS1_2_VERSION = 0x0303
    TLS1_3_VERSION = 0x0304
    NAMETYPE_HOST_NAME = 0
    ERROR_WANT_READ = 2
    ERROR_ZERO_RETURN = 6
    CHECK_NO_PARTIAL_WILDCARDS = 0x4
    READ_BYTES = 16384
    ALERT_RECORD = 21
    HANDSHAKE_RECORD = 22

cdef unsigned long OPTIONS = (
    (1 << 7)                     # SSL_OP_IGNORE_UNEXPECTED_EOF: an end without close_notify is an end
    | (1 << 17)                  # SSL_OP_NO_COMPRESSION
    | (1 << 30)                  # SSL_OP_NO_RENEGOTIATION
)
cdef unsigned long V_FLAG_PARTIAL_CHAIN = 0x80000        # what is in cafile is trusted, though another has signed it
CIPHERS_PSK = "kECDHEPSK:kDHEPSK:kPSK:!eNULL"


cdef str last_error():
    """Return what OpenSSL says was wrong last, and forget it."""
    cdef const char* reason = ERR_reason_error_string(ERR_peek_last_error())
    text = reason.decode() if reason != NULL else "nothing of this kind is in it"
    ERR_clear_error()
    return text


cdef int on_password(char* buffer, int size, int writing, void* data) noexcept with gil:
    """Have a person asked for the password of a key."""
    cdef ClientContext ours = <ClientContext>data
    cdef bytes password
    try:
        password = ours.ask()
    except BaseException as error:
        ours.asking_failed = error
        return 0
    if len(password) > size:
        return 0
    memcpy(buffer, PyBytes_AS_STRING(password), len(password))
    return <int>len(password)


cdef unsigned int on_psk(SSL* ssl, const char* hint, char* identity, unsigned int identity_size, unsigned char* key,
                         unsigned int key_size) noexcept with gil:
    """Give our identity and our pre-shared key."""
    cdef ClientContext ours = <ClientContext>SSL_CTX_get_ex_data(SSL_get_SSL_CTX(ssl), 0)
    if <unsigned int>len(ours.psk_identity) >= identity_size or <unsigned int>len(ours.psk) > key_size:
        return 0
    memcpy(identity, PyBytes_AS_STRING(ours.psk_identity), len(ours.psk_identity) + 1)
    memcpy(key, PyBytes_AS_STRING(ours.psk), len(ours.psk))
    return <unsigned int>len(ours.psk)


cdef int on_certificate(int is_good, void* checked) noexcept with gil:
    """Note what is wrong with the server's certificate, or with one that has signed it."""
    cdef X509_STORE_CTX* store = <X509_STORE_CTX*>checked
    cdef SSL* ssl = <SSL*>X509_STORE_CTX_get_ex_data(store, SSL_get_ex_data_X509_STORE_CTX_idx())
    cdef TlsClient ours = <TlsClient>SSL_get_ex_data(ssl, 0)
    cdef X509* certificate = X509_STORE_CTX_get_current_cert(store)
    cdef int error = X509_STORE_CTX_get_error(store)
    cdef int depth = X509_STORE_CTX_get_error_depth(store)
    if is_good:
        ours.server_is_known = ours.server_is_known or depth == 0
    else:
        ours.server_is_known = False
        text = X509_verify_cert_error_string(error).decode("ascii")
        if certificate == NULL:
            ours.problem = f"the broker's certificate: {text}"
        else:
            ours.problem = wrong_certificate(
                certificate_of(certificate), server_names(certificate), error, text, depth, ours.host)
    return is_good


@cython.final
cdef class ClientContext:
    """What connections are made with: who is trusted, and what proves who we are. It reads files.

    Args:
        cafile, capath: PEM file, and folder prepared by `openssl rehash`, of who is trusted; neither: who the system trusts.
        certfile, keyfile: our certificate with its chain, and its key, PEM; both or neither.
        ask: returns the password of the key, bytes; what it raises is raised here; None: it has to have none.
        insecure: the server's certificate need not be for the name that it is called by.
        alpn: protocol name to offer, 1 to 255 bytes.
        only_1_3: TLS 1.2 is not spoken.
        ciphers: suites under OpenSSL's names; those of TLS 1.3 begin with TLS_.
        psk, psk_identity: a pre-shared key of 1 to 256 bytes and its name of 1 to 128, in place of certificates.

    Raises TlsOptionError: a file or list cannot be used.
    """

    def __init__(self, *, cafile=None, capath=None, certfile=None, keyfile=None, ask=None, insecure=False, alpn=None,
                 only_1_3=False, ciphers=None, psk=None, psk_identity=None):
        self.insecure = insecure
        self.alpn = alpn
        self.psk = psk
        self.psk_identity = psk_identity
        self.ask = ask
        self.context = SSL_CTX_new(TLS_client_method())
        if self.context == NULL:
            raise MemoryError()
        SSL_CTX_set_ex_data(self.context, 0, <void*>self)
        SSL_CTX_set_options(self.context, OPTIONS)
        SSL_CTX_ctrl(self.context, CTRL_SET_MIN_PROTO_VERSION, TLS1_3_VERSION if only_1_3 else TLS1_2_VERSION, NULL)
        # With a pre-shared key nobody is trusted: a server that has a certificate in its place is another one.
        SSL_CTX_set_verify(self.context, VERIFY_PEER, on_certificate)
        if psk is None:
            self.trust(cafile, capath)
        else:
            assert 0 < len(psk) <= PSK_BYTES_MAX, len(psk)
            assert 0 < len(psk_identity) <= PSK_IDENTITY_BYTES_MAX, len(psk_identity)
            SSL_CTX_set_psk_client_callback(self.context, on_psk)
        if certfile is not None:
            self.load(certfile, keyfile)
        self.choose_ciphers(ciphers)
        if alpn is not None:
            name = bytes([len(alpn)]) + alpn
            if SSL_CTX_set_alpn_protos(self.context, name, <unsigned int>len(name)) != 0:
                raise MemoryError()
        ERR_clear_error()

    def __dealloc__(self):
        if self.context != NULL:
            SSL_CTX_free(self.context)

    cdef int trust(self, str cafile, str capath) except -1:
        X509_STORE_set_flags(SSL_CTX_get_cert_store(self.context), V_FLAG_PARTIAL_CHAIN)
        if cafile is not None:
            readable("cafile", cafile)
            if SSL_CTX_load_verify_file(self.context, cafile.encode()) != 1:
                raise TlsOptionError("cafile", f"no certificates can be read from {cafile}: {last_error()}")
        if capath is not None:
            readable("capath", capath)
            if SSL_CTX_load_verify_dir(self.context, capath.encode()) != 1:
                raise TlsOptionError("capath", f"{capath} cannot be used: {last_error()}")
        if cafile is None and capath is None:
            SSL_CTX_set_default_verify_paths(self.context)
        return 0

    cdef int load(self, str certfile, str keyfile) except -1:
        readable("cert", certfile)
        readable("key", keyfile)
        if SSL_CTX_use_certificate_chain_file(self.context, certfile.encode()) != 1:
            raise TlsOptionError("cert", f"no certificate can be read from {certfile}: {last_error()}")
        if self.ask is not None:
            SSL_CTX_set_default_passwd_cb(self.context, on_password)
            SSL_CTX_set_default_passwd_cb_userdata(self.context, <void*>self)
        loaded = SSL_CTX_use_PrivateKey_file(self.context, keyfile.encode(), FILETYPE_PEM) == 1
        if self.asking_failed is not None:
            raise self.asking_failed
        if not loaded:
            why = last_error()
            if "mismatch" in why:
                raise TlsOptionError("key", f"{keyfile} is not the key of {certfile}")
            raise TlsOptionError("key", f"no key can be read from {keyfile}: {why}")
        return 0

    cdef int choose_ciphers(self, str ciphers) except -1:
        names = ciphers.split(":") if ciphers is not None else []
        newer = [name for name in names if name.startswith("TLS_")]
        older = [name for name in names if not name.startswith("TLS_")]
        if self.psk is not None and not older:
            older = [CIPHERS_PSK]
        if newer and not SSL_CTX_set_ciphersuites(self.context, ":".join(newer).encode()):
            raise TlsOptionError("ciphers", f"OpenSSL does not know all of {':'.join(newer)}")
        if older and not SSL_CTX_set_cipher_list(self.context, ":".join(older).encode()):
            raise TlsOptionError("ciphers", f"OpenSSL knows no cipher suite in {':'.join(older)}")
        return 0


def readable(option: str, path: str) -> None:
    """Raise TlsOptionError if a file or folder cannot be read, as the system says it."""
    import os

    try:
        if option == "capath":
            os.listdir(path)
        else:
            with open(path, "rb"):
                pass
    except OSError as error:
        raise TlsOptionError(option, f"{path}: {error.strerror}") from None


@cython.final
cdef class TlsClient:
    """One connection's TLS. What is to be sent lies in take() after each call, and after an error, too.

    Args:
        host: name or IP address that the server is called by.
    """

    def __init__(self, ClientContext context not None, str host not None):
        cdef X509_VERIFY_PARAM* checked
        cdef bytes name
        self.context = context
        self.host = host
        self.ssl = SSL_new(context.context)
        if self.ssl == NULL:
            raise MemoryError()
        self.incoming = BIO_new(BIO_s_mem())
        self.outgoing = BIO_new(BIO_s_mem())
        if self.incoming == NULL or self.outgoing == NULL:
            BIO_free(self.incoming)
            BIO_free(self.outgoing)
            raise MemoryError()
        SSL_set_bio(self.ssl, self.incoming, self.outgoing)
        SSL_set_ex_data(self.ssl, 0, <void*>self)
        SSL_set_connect_state(self.ssl)
        checked = SSL_get0_param(self.ssl)
        if is_ip_address(host):
            name = host.partition("%")[0].encode("ascii")
            if not context.insecure:
                X509_VERIFY_PARAM_set1_ip_asc(checked, name)
        else:
            name = host.rstrip(".").encode("idna") if not host.isascii() else host.rstrip(".").encode("ascii")
            SSL_ctrl(self.ssl, CTRL_SET_TLSEXT_HOSTNAME, NAMETYPE_HOST_NAME, PyBytes_AS_STRING(name))
            X509_VERIFY_PARAM_set_hostflags(checked, CHECK_NO_PARTIAL_WILDCARDS)
            if not context.insecure:
                X509_VERIFY_PARAM_set1_host(checked, name, len(name))
        ERR_clear_error()
        SSL_do_handshake(self.ssl)

    def __dealloc__(self):
        if self.ssl != NULL:
            SSL_free(self.ssl)

    def receive(self, bytes data not None) -> bytes:
        """Take what has come from the server; return what it means. Raises TlsError."""
        cdef char[READ_BYTES] room
        cdef int size
        if data and not self.begun:
            self.begun = True
            if data[0] not in (ALERT_RECORD, HANDSHAKE_RECORD):
                raise TlsError(NO_TLS)
            # Nobody who speaks TLS says so in a record of TLS 1.0 to a client that speaks 1.2: it is Shoal's own answer.
            if data[:7] == b"\x15\x03\x01\x00\x02\x02\x28":
                raise TlsError(NO_TLS)
        if data:
            BIO_write(self.incoming, PyBytes_AS_STRING(data), <int>len(data))
        ERR_clear_error()
        if not self.opened:
            size = SSL_do_handshake(self.ssl)
            if size != 1:
                if SSL_get_error(self.ssl, size) == ERROR_WANT_READ:
                    return b""
                raise self.failure()
            self.opened = True
        parts = []
        while not self.ended:
            size = SSL_read(self.ssl, room, READ_BYTES)
            if size > 0:
                parts.append(room[:size])
                continue
            error = SSL_get_error(self.ssl, size)
            if error == ERROR_WANT_READ:
                break
            if error == ERROR_ZERO_RETURN:
                self.ended = True
                break
            raise self.failure()
        return b"".join(parts)

    def send(self, bytes data not None) -> None:
        """Encrypt what is for the server; only once it is opened."""
        assert self.opened
        if not data:
            return
        ERR_clear_error()
        if SSL_write(self.ssl, PyBytes_AS_STRING(data), <int>len(data)) != len(data):
            raise self.failure()

    def take(self) -> bytes:
        """Return what is to be sent to the server, and forget it."""
        cdef int size = <int>BIO_ctrl_pending(self.outgoing)
        cdef bytes data = PyBytes_FromStringAndSize(NULL, size)       # filled here, before anybody else has it
        if size:
            BIO_read(self.outgoing, PyBytes_AS_STRING(data), size)
        return data

    def finish(self) -> None:
        """Say that nothing more comes from us (close_notify)."""
        if self.opened:
            ERR_clear_error()
            SSL_shutdown(self.ssl)
            ERR_clear_error()

    @property
    def version(self) -> str:
        """Version of TLS and cipher suite: "TLSv1.3, TLS_AES_256_GCM_SHA384"."""
        version = SSL_get_version(self.ssl).decode("ascii")
        return f"{version}, {SSL_CIPHER_get_name(SSL_get_current_cipher(self.ssl)).decode('ascii')}"

    cdef object failure(self):
        """Return the error to raise for what OpenSSL did not take."""
        cdef const char* found = ERR_reason_error_string(ERR_peek_last_error())
        reason = found.decode("ascii") if found != NULL else "its end"
        ERR_clear_error()
        if reason == "certificate verify failed" and self.problem is not None:
            # A server that knows no such pre-shared key goes on with its certificate, if it has one.
            return TlsError(self.problem if self.context.psk is None else NO_SUCH_PSK)
        return TlsError(failure_words(reason, self.context.psk is not None, self.server_is_known))
