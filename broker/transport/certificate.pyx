"""What a certificate says: read once for each connection that has one, and for each of our own."""

import ipaddress

from broker.transport.facts import Certificate
from broker.transport.openssl cimport *
from libc.string cimport memset

cdef enum:                       # openssl/obj_mac.h, openssl/x509v3.h, openssl/asn1.h: parts of the binary interface
    NID_COMMON_NAME = 13
    NID_SUBJECT_ALT_NAME = 85
    GEN_EMAIL = 1
    GEN_DNS = 2
    GEN_URI = 6
    GEN_IP_ADDRESS = 7

cdef unsigned long FLAG_RFC2253 = 0x01 | 0x02 | 0x04 | 0x10 | 0x100 | 0x200 | (1 << 16) | (1 << 20)
cdef unsigned long FLAG_UTF8 = 0xFFFFFFFF & ~0x04    # letters of other alphabets stay what they are


cdef str name_text(X509_NAME* name):
    cdef BIO* out = BIO_new(BIO_s_mem())
    cdef char[4096] text
    cdef int size
    if out == NULL:
        raise MemoryError()
    X509_NAME_print_ex(out, name, 0, FLAG_RFC2253 & FLAG_UTF8)
    size = BIO_read(out, text, sizeof(text))
    BIO_free(out)
    return text[:max(size, 0)].decode("utf-8", "replace")


cdef str string_text(const ASN1_STRING* value):
    """The text of a string, its NULs too: a name with one is refused where it is used."""
    cdef unsigned char* data = NULL
    cdef int size = ASN1_STRING_to_UTF8(&data, value)
    if size < 0:
        ERR_clear_error()
        return None
    text = data[:size].decode("utf-8", "replace")
    CRYPTO_free(data, b"", 0)
    return text


cdef str common_name(X509_NAME* name):
    """The last common name, which is the most particular one; None without one."""
    cdef int index = -1, found = -1
    while True:
        index = X509_NAME_get_index_by_NID(name, NID_COMMON_NAME, index)
        if index < 0:
            break
        found = index
    return string_text(X509_NAME_ENTRY_get_data(X509_NAME_get_entry(name, found))) if found >= 0 else None


cdef tuple alternative_names(X509* certificate):
    cdef OPENSSL_STACK* names = <OPENSSL_STACK*>X509_get_ext_d2i(certificate, NID_SUBJECT_ALT_NAME, NULL, NULL)
    cdef int index, kind = 0
    cdef const ASN1_STRING* value
    cdef dict found = {GEN_DNS: [], GEN_URI: [], GEN_EMAIL: []}
    if names != NULL:
        for index in range(OPENSSL_sk_num(names)):
            value = <const ASN1_STRING*>GENERAL_NAME_get0_value(OPENSSL_sk_value(names, index), &kind)
            if kind in found:
                found[kind].append(ASN1_STRING_get0_data(value)[:ASN1_STRING_length(value)].decode("utf-8", "replace"))
        GENERAL_NAMES_free(names)
    return tuple(found[GEN_DNS]), tuple(found[GEN_URI]), tuple(found[GEN_EMAIL])


cdef tuple server_names(X509* certificate):
    """The host names and IP addresses that a server's certificate is for; without any, its common name."""
    cdef OPENSSL_STACK* names = <OPENSSL_STACK*>X509_get_ext_d2i(certificate, NID_SUBJECT_ALT_NAME, NULL, NULL)
    cdef int index, kind = 0
    cdef const ASN1_STRING* value
    found = []
    if names != NULL:
        for index in range(OPENSSL_sk_num(names)):
            value = <const ASN1_STRING*>GENERAL_NAME_get0_value(OPENSSL_sk_value(names, index), &kind)
            if kind not in (GEN_DNS, GEN_IP_ADDRESS):
                continue
            data = ASN1_STRING_get0_data(value)[:ASN1_STRING_length(value)]
            if kind == GEN_DNS:
                found.append(data.decode("utf-8", "replace"))
            elif len(data) in (4, 16):
                found.append(str(ipaddress.ip_address(data)))
        GENERAL_NAMES_free(names)
    name = None if found else common_name(X509_get_subject_name(certificate))
    return tuple(found) if name is None else (name,)


cdef object unix_s(const ASN1_STRING* when):
    cdef tm taken
    memset(&taken, 0, sizeof(taken))
    return timegm(&taken) if ASN1_TIME_to_tm(when, &taken) == 1 else None


cdef str serial_text(X509* certificate):
    cdef BIGNUM* number = ASN1_INTEGER_to_BN(X509_get_serialNumber(certificate), NULL)
    cdef char* digits = BN_bn2hex(number)
    text = (<bytes>digits).decode("ascii") if digits != NULL else ""
    CRYPTO_free(digits, b"", 0)
    BN_free(number)
    return text


cdef object certificate_of(X509* certificate):
    cdef unsigned char[64] digest
    cdef unsigned int size = 0
    X509_digest(certificate, EVP_sha256(), digest, &size)
    dns, uris, emails = alternative_names(certificate)
    return Certificate(
        cn=common_name(X509_get_subject_name(certificate)), dn=name_text(X509_get_subject_name(certificate)),
        san_dns=dns, san_uri=uris, san_email=emails, sha256=digest[:size].hex(),
        not_before_s=unix_s(X509_get0_notBefore(certificate)), not_after_s=unix_s(X509_get0_notAfter(certificate)),
        serial=serial_text(certificate), issuer=name_text(X509_get_issuer_name(certificate)))
