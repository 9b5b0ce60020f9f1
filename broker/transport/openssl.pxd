"""What is used of OpenSSL 3 (libssl.so.3, libcrypto.so.3), with its constants: they are part of its binary interface.

Declared here, so that a build needs the libraries that every system has, and not their headers.
"""

cdef extern from *:
    """
    #ifndef SHOAL_OPENSSL
    #define SHOAL_OPENSSL
    #include <stddef.h>
    #include <time.h>
    typedef struct ssl_st SSL;
    typedef struct ssl_ctx_st SSL_CTX;
    typedef struct ssl_method_st SSL_METHOD;
    typedef struct ssl_cipher_st SSL_CIPHER;
    typedef struct bio_st BIO;
    typedef struct bio_method_st BIO_METHOD;
    typedef struct x509_st X509;
    typedef struct X509_name_st X509_NAME;
    typedef struct X509_name_entry_st X509_NAME_ENTRY;
    typedef struct x509_store_st X509_STORE;
    typedef struct x509_lookup_st X509_LOOKUP;
    typedef struct x509_lookup_method_st X509_LOOKUP_METHOD;
    typedef struct x509_store_ctx_st X509_STORE_CTX;
    typedef struct x509_verify_param_st X509_VERIFY_PARAM;
    typedef struct asn1_string_st ASN1_STRING;
    typedef struct evp_pkey_st EVP_PKEY;
    typedef struct evp_md_st EVP_MD;
    typedef struct evp_cipher_st EVP_CIPHER;
    typedef struct evp_cipher_ctx_st EVP_CIPHER_CTX;
    typedef struct evp_mac_st EVP_MAC;
    typedef struct evp_mac_ctx_st EVP_MAC_CTX;
    typedef struct ossl_provider_st OSSL_PROVIDER;
    typedef struct bignum_st BIGNUM;
    typedef struct stack_st OPENSSL_STACK;
    typedef struct {
        const char* key;
        unsigned int data_type;
        void* data;
        size_t data_size, return_size;
    } OSSL_PARAM;
    typedef struct {
        int function_id;
        void (*function)(void);
    } OSSL_DISPATCH;
    typedef struct {
        const char* algorithm_names;
        const char* property_definition;
        const OSSL_DISPATCH* implementation;
        const char* algorithm_description;
    } OSSL_ALGORITHM;

    const SSL_METHOD* TLS_server_method(void);
    const SSL_METHOD* TLS_client_method(void);
    SSL_CTX* SSL_CTX_new(const SSL_METHOD*);
    SSL_CTX* SSL_CTX_new_ex(void*, const char*, const SSL_METHOD*);
    void SSL_CTX_free(SSL_CTX*);
    long SSL_CTX_ctrl(SSL_CTX*, int, long, void*);
    long SSL_CTX_callback_ctrl(SSL_CTX*, int, void (*)(void));
    unsigned long SSL_CTX_set_options(SSL_CTX*, unsigned long);
    int SSL_CTX_set_cipher_list(SSL_CTX*, const char*);
    int SSL_CTX_set_ciphersuites(SSL_CTX*, const char*);
    int SSL_CTX_use_certificate_chain_file(SSL_CTX*, const char*);
    int SSL_CTX_use_PrivateKey_file(SSL_CTX*, const char*, int);
    int SSL_CTX_check_private_key(const SSL_CTX*);
    X509* SSL_CTX_get0_certificate(const SSL_CTX*);
    EVP_PKEY* SSL_CTX_get0_privatekey(const SSL_CTX*);
    void SSL_CTX_set_default_passwd_cb(SSL_CTX*, int (*)(char*, int, int, void*));
    void SSL_CTX_set_default_passwd_cb_userdata(SSL_CTX*, void*);
    int SSL_CTX_load_verify_file(SSL_CTX*, const char*);
    int SSL_CTX_load_verify_dir(SSL_CTX*, const char*);
    OPENSSL_STACK* SSL_load_client_CA_file(const char*);
    void SSL_CTX_set_client_CA_list(SSL_CTX*, OPENSSL_STACK*);
    void SSL_CTX_set_verify(SSL_CTX*, int, int (*)(int, void*));
    void SSL_CTX_set_verify_depth(SSL_CTX*, int);
    int SSL_CTX_set_default_verify_paths(SSL_CTX*);
    int SSL_CTX_set_alpn_protos(SSL_CTX*, const unsigned char*, unsigned int);
    X509_STORE* SSL_CTX_get_cert_store(const SSL_CTX*);
    X509_LOOKUP* X509_STORE_add_lookup(X509_STORE*, X509_LOOKUP_METHOD*);
    X509_LOOKUP_METHOD* X509_LOOKUP_file(void);
    int X509_load_crl_file(X509_LOOKUP*, const char*, int);
    int X509_STORE_set_flags(X509_STORE*, unsigned long);
    int X509_VERIFY_PARAM_set1_host(X509_VERIFY_PARAM*, const char*, size_t);
    int X509_VERIFY_PARAM_set1_ip_asc(X509_VERIFY_PARAM*, const char*);
    void X509_VERIFY_PARAM_set_hostflags(X509_VERIFY_PARAM*, unsigned int);
    int X509_STORE_CTX_get_error(const X509_STORE_CTX*);
    int X509_STORE_CTX_get_error_depth(const X509_STORE_CTX*);
    X509* X509_STORE_CTX_get_current_cert(const X509_STORE_CTX*);
    void* X509_STORE_CTX_get_ex_data(const X509_STORE_CTX*, int);
    int SSL_CTX_set_session_id_context(SSL_CTX*, const unsigned char*, unsigned int);
    int SSL_CTX_set_num_tickets(SSL_CTX*, size_t);
    int SSL_CTX_set_tlsext_ticket_key_evp_cb(SSL_CTX*, int (*)(SSL*, unsigned char*, unsigned char*, EVP_CIPHER_CTX*,
                                                               EVP_MAC_CTX*, int));
    void SSL_CTX_set_alpn_select_cb(SSL_CTX*, int (*)(SSL*, const unsigned char**, unsigned char*,
            const unsigned char*,
                                                      unsigned int, void*), void*);
    void SSL_CTX_set_psk_server_callback(SSL_CTX*, unsigned int (*)(SSL*, const char*, unsigned char*, unsigned int));
    void SSL_CTX_set_psk_client_callback(SSL_CTX*, unsigned int (*)(SSL*, const char*, char*, unsigned int,
                                                                    unsigned char*, unsigned int));
    int SSL_CTX_use_psk_identity_hint(SSL_CTX*, const char*);
    void SSL_CTX_set_keylog_callback(SSL_CTX*, void (*)(const SSL*, const char*));
    int SSL_CTX_set_ex_data(SSL_CTX*, int, void*);
    void* SSL_CTX_get_ex_data(const SSL_CTX*, int);

    SSL* SSL_new(SSL_CTX*);
    void SSL_free(SSL*);
    void SSL_set_bio(SSL*, BIO*, BIO*);
    void SSL_set_accept_state(SSL*);
    void SSL_set_connect_state(SSL*);
    long SSL_ctrl(SSL*, int, long, void*);
    X509_VERIFY_PARAM* SSL_get0_param(SSL*);
    int SSL_get_ex_data_X509_STORE_CTX_idx(void);
    int SSL_do_handshake(SSL*);
    int SSL_read(SSL*, void*, int);
    int SSL_write(SSL*, const void*, int);
    int SSL_shutdown(SSL*);
    int SSL_get_error(const SSL*, int);
    long SSL_get_verify_result(const SSL*);
    X509* SSL_get1_peer_certificate(const SSL*);
    const char* SSL_get_version(const SSL*);
    const SSL_CIPHER* SSL_get_current_cipher(const SSL*);
    const char* SSL_CIPHER_get_name(const SSL_CIPHER*);
    const char* SSL_get_servername(const SSL*, int);
    const char* SSL_get_psk_identity(const SSL*);
    int SSL_session_reused(const SSL*);
    SSL_CTX* SSL_get_SSL_CTX(const SSL*);
    int SSL_set_ex_data(SSL*, int, void*);
    void* SSL_get_ex_data(const SSL*, int);
    SSL_CTX* SSL_set_SSL_CTX(SSL*, SSL_CTX*);

    int BIO_get_new_index(void);
    BIO_METHOD* BIO_meth_new(int, const char*);
    int BIO_meth_set_write(BIO_METHOD*, int (*)(BIO*, const char*, int));
    int BIO_meth_set_read(BIO_METHOD*, int (*)(BIO*, char*, int));
    int BIO_meth_set_ctrl(BIO_METHOD*, long (*)(BIO*, int, long, void*));
    BIO* BIO_new(const BIO_METHOD*);
    int BIO_up_ref(BIO*);
    void BIO_set_init(BIO*, int);
    void BIO_set_flags(BIO*, int);
    void BIO_clear_flags(BIO*, int);
    BIO* BIO_new_mem_buf(const void*, int);
    const BIO_METHOD* BIO_s_mem(void);
    int BIO_read(BIO*, void*, int);
    int BIO_write(BIO*, const void*, int);
    size_t BIO_ctrl_pending(BIO*);
    int BIO_free(BIO*);
    BIO* BIO_new_file(const char*, const char*);
    X509* PEM_read_bio_X509(BIO*, X509**, void*, void*);

    unsigned long ERR_get_error(void);
    unsigned long ERR_peek_last_error(void);
    void ERR_clear_error(void);
    const char* ERR_reason_error_string(unsigned long);
    const char* X509_verify_cert_error_string(long);

    void X509_free(X509*);
    X509_NAME* X509_get_subject_name(const X509*);
    X509_NAME* X509_get_issuer_name(const X509*);
    int X509_NAME_print_ex(BIO*, const X509_NAME*, int, unsigned long);
    int X509_NAME_get_index_by_NID(X509_NAME*, int, int);
    X509_NAME_ENTRY* X509_NAME_get_entry(const X509_NAME*, int);
    ASN1_STRING* X509_NAME_ENTRY_get_data(const X509_NAME_ENTRY*);
    int ASN1_STRING_to_UTF8(unsigned char**, const ASN1_STRING*);
    const unsigned char* ASN1_STRING_get0_data(const ASN1_STRING*);
    int ASN1_STRING_length(const ASN1_STRING*);
    void* X509_get_ext_d2i(const X509*, int, int*, int*);
    int OPENSSL_sk_num(const OPENSSL_STACK*);
    void* OPENSSL_sk_value(const OPENSSL_STACK*, int);
    void* GENERAL_NAME_get0_value(const void*, int*);
    void GENERAL_NAMES_free(void*);
    const ASN1_STRING* X509_get0_notBefore(const X509*);
    const ASN1_STRING* X509_get0_notAfter(const X509*);
    int ASN1_TIME_to_tm(const ASN1_STRING*, struct tm*);
    ASN1_STRING* X509_get_serialNumber(X509*);
    BIGNUM* ASN1_INTEGER_to_BN(const ASN1_STRING*, BIGNUM*);
    char* BN_bn2hex(const BIGNUM*);
    void BN_free(BIGNUM*);
    void CRYPTO_free(void*, const char*, int);
    int X509_digest(const X509*, const EVP_MD*, unsigned char*, unsigned int*);
    EVP_PKEY* X509_get0_pubkey(const X509*);
    int EVP_PKEY_get_base_id(const EVP_PKEY*);
    const EVP_MD* EVP_sha256(void);
    const EVP_CIPHER* EVP_aes_256_cbc(void);
    int EVP_EncryptInit_ex(EVP_CIPHER_CTX*, const EVP_CIPHER*, void*, const unsigned char*, const unsigned char*);
    int EVP_DecryptInit_ex(EVP_CIPHER_CTX*, const EVP_CIPHER*, void*, const unsigned char*, const unsigned char*);
    EVP_CIPHER_CTX* EVP_CIPHER_CTX_new(void);
    void EVP_CIPHER_CTX_free(EVP_CIPHER_CTX*);
    int EVP_CIPHER_CTX_ctrl(EVP_CIPHER_CTX*, int, int, void*);
    int EVP_CipherInit_ex(EVP_CIPHER_CTX*, const EVP_CIPHER*, void*, const unsigned char*, const unsigned char*, int);
    int EVP_CipherUpdate(EVP_CIPHER_CTX*, unsigned char*, int*, const unsigned char*, int);
    int EVP_CipherFinal_ex(EVP_CIPHER_CTX*, unsigned char*, int*);
    EVP_MD* EVP_MD_fetch(void*, const char*, const char*);
    EVP_CIPHER* EVP_CIPHER_fetch(void*, const char*, const char*);
    void OPENSSL_cleanse(void*, size_t);
    int SSL_version(const SSL*);
    unsigned short SSL_CIPHER_get_protocol_id(const SSL_CIPHER*);
    const char* EVP_MD_get0_name(const EVP_MD*);
    int EVP_MD_is_a(const EVP_MD*, const char*);
    EVP_MAC* EVP_MAC_fetch(void*, const char*, const char*);
    EVP_MAC_CTX* EVP_MAC_CTX_new(EVP_MAC*);
    void EVP_MAC_CTX_free(EVP_MAC_CTX*);
    int EVP_MAC_init(EVP_MAC_CTX*, const unsigned char*, size_t, const OSSL_PARAM*);
    int EVP_MAC_update(EVP_MAC_CTX*, const unsigned char*, size_t);
    int EVP_MAC_final(EVP_MAC_CTX*, unsigned char*, size_t*, size_t);
    int EVP_MAC_CTX_set_params(EVP_MAC_CTX*, const OSSL_PARAM*);
    int OSSL_PROVIDER_add_builtin(void*, const char*, int (*)(const void*, const OSSL_DISPATCH*, const OSSL_DISPATCH**,
                                                              void**));
    OSSL_PROVIDER* OSSL_PROVIDER_try_load(void*, const char*, int);
    OSSL_PARAM OSSL_PARAM_construct_octet_string(const char*, void*, size_t);
    OSSL_PARAM OSSL_PARAM_construct_utf8_string(const char*, char*, size_t);
    OSSL_PARAM OSSL_PARAM_construct_end(void);
    int RAND_bytes(unsigned char*, int);
    const char* OpenSSL_version(int);
    #endif
    """
    ctypedef struct SSL:
        pass
    ctypedef struct SSL_CTX:
        pass
    ctypedef struct SSL_METHOD:
        pass
    ctypedef struct SSL_CIPHER:
        pass
    ctypedef struct BIO:
        pass
    ctypedef struct BIO_METHOD:
        pass
    ctypedef struct X509:
        pass
    ctypedef struct X509_NAME:
        pass
    ctypedef struct X509_NAME_ENTRY:
        pass
    ctypedef struct X509_STORE:
        pass
    ctypedef struct X509_LOOKUP:
        pass
    ctypedef struct X509_LOOKUP_METHOD:
        pass
    ctypedef struct X509_STORE_CTX:
        pass
    ctypedef struct X509_VERIFY_PARAM:
        pass
    ctypedef struct ASN1_STRING:
        pass
    ctypedef struct EVP_PKEY:
        pass
    ctypedef struct EVP_MD:
        pass
    ctypedef struct EVP_CIPHER:
        pass
    ctypedef struct EVP_CIPHER_CTX:
        pass
    ctypedef struct EVP_MAC:
        pass
    ctypedef struct EVP_MAC_CTX:
        pass
    ctypedef struct OSSL_PROVIDER:
        pass
    ctypedef struct BIGNUM:
        pass
    ctypedef struct OPENSSL_STACK:
        pass
    ctypedef struct OSSL_PARAM:
        const char* key
        unsigned int data_type
        void* data
        size_t data_size
    ctypedef struct OSSL_DISPATCH:
        int function_id
        void (*function)() noexcept nogil
    ctypedef struct OSSL_ALGORITHM:
        const char* algorithm_names
        const char* property_definition
        const OSSL_DISPATCH* implementation
        const char* algorithm_description
    ctypedef long time_t
    struct tm:
        pass
    const SSL_METHOD* TLS_server_method() nogil
    const SSL_METHOD* TLS_client_method() nogil
    SSL_CTX* SSL_CTX_new(const SSL_METHOD*) nogil
    SSL_CTX* SSL_CTX_new_ex(void*, const char*, const SSL_METHOD*) nogil
    void SSL_CTX_free(SSL_CTX*) nogil
    long SSL_CTX_ctrl(SSL_CTX*, int, long, void*) nogil
    long SSL_CTX_callback_ctrl(SSL_CTX*, int, void (*)() noexcept nogil) nogil
    unsigned long SSL_CTX_set_options(SSL_CTX*, unsigned long) nogil
    int SSL_CTX_set_cipher_list(SSL_CTX*, const char*) nogil
    int SSL_CTX_set_ciphersuites(SSL_CTX*, const char*) nogil
    int SSL_CTX_use_certificate_chain_file(SSL_CTX*, const char*) nogil
    int SSL_CTX_use_PrivateKey_file(SSL_CTX*, const char*, int) nogil
    int SSL_CTX_check_private_key(const SSL_CTX*) nogil
    X509* SSL_CTX_get0_certificate(const SSL_CTX*) nogil
    EVP_PKEY* SSL_CTX_get0_privatekey(const SSL_CTX*) nogil
    void SSL_CTX_set_default_passwd_cb(SSL_CTX*, int (*)(char*, int, int, void*) noexcept nogil) nogil
    void SSL_CTX_set_default_passwd_cb_userdata(SSL_CTX*, void*) nogil
    int SSL_CTX_load_verify_file(SSL_CTX*, const char*) nogil
    int SSL_CTX_load_verify_dir(SSL_CTX*, const char*) nogil
    OPENSSL_STACK* SSL_load_client_CA_file(const char*) nogil
    void SSL_CTX_set_client_CA_list(SSL_CTX*, OPENSSL_STACK*) nogil
    void SSL_CTX_set_verify(SSL_CTX*, int, int (*)(int, void*) noexcept nogil) nogil
    void SSL_CTX_set_verify_depth(SSL_CTX*, int) nogil
    int SSL_CTX_set_default_verify_paths(SSL_CTX*) nogil
    int SSL_CTX_set_alpn_protos(SSL_CTX*, const unsigned char*, unsigned int) nogil
    X509_STORE* SSL_CTX_get_cert_store(const SSL_CTX*) nogil
    X509_LOOKUP* X509_STORE_add_lookup(X509_STORE*, X509_LOOKUP_METHOD*) nogil
    X509_LOOKUP_METHOD* X509_LOOKUP_file() nogil
    int X509_load_crl_file(X509_LOOKUP*, const char*, int) nogil
    int X509_STORE_set_flags(X509_STORE*, unsigned long) nogil
    int X509_VERIFY_PARAM_set1_host(X509_VERIFY_PARAM*, const char*, size_t) nogil
    int X509_VERIFY_PARAM_set1_ip_asc(X509_VERIFY_PARAM*, const char*) nogil
    void X509_VERIFY_PARAM_set_hostflags(X509_VERIFY_PARAM*, unsigned int) nogil
    int X509_STORE_CTX_get_error(const X509_STORE_CTX*) nogil
    int X509_STORE_CTX_get_error_depth(const X509_STORE_CTX*) nogil
    X509* X509_STORE_CTX_get_current_cert(const X509_STORE_CTX*) nogil
    void* X509_STORE_CTX_get_ex_data(const X509_STORE_CTX*, int) nogil
    int SSL_CTX_set_session_id_context(SSL_CTX*, const unsigned char*, unsigned int) nogil
    int SSL_CTX_set_num_tickets(SSL_CTX*, size_t) nogil
    int SSL_CTX_set_tlsext_ticket_key_evp_cb(SSL_CTX*, int (*)(SSL*, unsigned char*, unsigned char*,
            EVP_CIPHER_CTX*, EVP_MAC_CTX*, int) noexcept nogil) nogil
    void SSL_CTX_set_alpn_select_cb(SSL_CTX*, int (*)(SSL*, const unsigned char**, unsigned char*,
            const unsigned char*, unsigned int, void*) noexcept nogil, void*) nogil
    void SSL_CTX_set_psk_server_callback(SSL_CTX*, unsigned int (*)(SSL*, const char*, unsigned char*,
            unsigned int) noexcept nogil) nogil
    void SSL_CTX_set_psk_client_callback(SSL_CTX*, unsigned int (*)(SSL*, const char*, char*, unsigned int,
            unsigned char*, unsigned int) noexcept nogil) nogil
    int SSL_CTX_use_psk_identity_hint(SSL_CTX*, const char*) nogil
    ctypedef void (*KeylogCallback)(const SSL*, const char*) noexcept nogil
    void SSL_CTX_set_keylog_callback(SSL_CTX*, KeylogCallback) nogil
    int SSL_CTX_set_ex_data(SSL_CTX*, int, void*) nogil
    void* SSL_CTX_get_ex_data(const SSL_CTX*, int) nogil
    SSL* SSL_new(SSL_CTX*) nogil
    void SSL_free(SSL*) nogil
    void SSL_set_bio(SSL*, BIO*, BIO*) nogil
    void SSL_set_accept_state(SSL*) nogil
    void SSL_set_connect_state(SSL*) nogil
    long SSL_ctrl(SSL*, int, long, void*) nogil
    X509_VERIFY_PARAM* SSL_get0_param(SSL*) nogil
    int SSL_get_ex_data_X509_STORE_CTX_idx() nogil
    int SSL_do_handshake(SSL*) nogil
    int SSL_read(SSL*, void*, int) nogil
    int SSL_write(SSL*, const void*, int) nogil
    int SSL_shutdown(SSL*) nogil
    int SSL_get_error(const SSL*, int) nogil
    long SSL_get_verify_result(const SSL*) nogil
    X509* SSL_get1_peer_certificate(const SSL*) nogil
    const char* SSL_get_version(const SSL*) nogil
    const SSL_CIPHER* SSL_get_current_cipher(const SSL*) nogil
    const char* SSL_CIPHER_get_name(const SSL_CIPHER*) nogil
    const char* SSL_get_servername(const SSL*, int) nogil
    const char* SSL_get_psk_identity(const SSL*) nogil
    int SSL_session_reused(const SSL*) nogil
    SSL_CTX* SSL_get_SSL_CTX(const SSL*) nogil
    int SSL_set_ex_data(SSL*, int, void*) nogil
    void* SSL_get_ex_data(const SSL*, int) nogil
    SSL_CTX* SSL_set_SSL_CTX(SSL*, SSL_CTX*) nogil
    int BIO_get_new_index() nogil
    BIO_METHOD* BIO_meth_new(int, const char*) nogil
    int BIO_meth_set_write(BIO_METHOD*, int (*)(BIO*, const char*, int) noexcept nogil) nogil
    int BIO_meth_set_read(BIO_METHOD*, int (*)(BIO*, char*, int) noexcept nogil) nogil
    int BIO_meth_set_ctrl(BIO_METHOD*, long (*)(BIO*, int, long, void*) noexcept nogil) nogil
    BIO* BIO_new(const BIO_METHOD*) nogil
    int BIO_up_ref(BIO*) nogil
    void BIO_set_init(BIO*, int) nogil
    void BIO_set_flags(BIO*, int) nogil
    void BIO_clear_flags(BIO*, int) nogil
    const BIO_METHOD* BIO_s_mem() nogil
    int BIO_read(BIO*, void*, int) nogil
    int BIO_write(BIO*, const void*, int) nogil
    size_t BIO_ctrl_pending(BIO*) nogil
    int BIO_free(BIO*) nogil
    BIO* BIO_new_file(const char*, const char*) nogil
    X509* PEM_read_bio_X509(BIO*, X509**, void*, void*) nogil
    unsigned long ERR_get_error() nogil
    unsigned long ERR_peek_last_error() nogil
    void ERR_clear_error() nogil
    const char* ERR_reason_error_string(unsigned long) nogil
    const char* X509_verify_cert_error_string(long) nogil
    void X509_free(X509*) nogil
    X509_NAME* X509_get_subject_name(const X509*) nogil
    X509_NAME* X509_get_issuer_name(const X509*) nogil
    int X509_NAME_print_ex(BIO*, const X509_NAME*, int, unsigned long) nogil
    int X509_NAME_get_index_by_NID(X509_NAME*, int, int) nogil
    X509_NAME_ENTRY* X509_NAME_get_entry(const X509_NAME*, int) nogil
    ASN1_STRING* X509_NAME_ENTRY_get_data(const X509_NAME_ENTRY*) nogil
    int ASN1_STRING_to_UTF8(unsigned char**, const ASN1_STRING*) nogil
    const unsigned char* ASN1_STRING_get0_data(const ASN1_STRING*) nogil
    int ASN1_STRING_length(const ASN1_STRING*) nogil
    void* X509_get_ext_d2i(const X509*, int, int*, int*) nogil
    int OPENSSL_sk_num(const OPENSSL_STACK*) nogil
    void* OPENSSL_sk_value(const OPENSSL_STACK*, int) nogil
    void* GENERAL_NAME_get0_value(const void*, int*) nogil
    void GENERAL_NAMES_free(void*) nogil
    const ASN1_STRING* X509_get0_notBefore(const X509*) nogil
    const ASN1_STRING* X509_get0_notAfter(const X509*) nogil
    int ASN1_TIME_to_tm(const ASN1_STRING*, tm*) nogil
    ASN1_STRING* X509_get_serialNumber(X509*) nogil
    BIGNUM* ASN1_INTEGER_to_BN(const ASN1_STRING*, BIGNUM*) nogil
    char* BN_bn2hex(const BIGNUM*) nogil
    void BN_free(BIGNUM*) nogil
    void CRYPTO_free(void*, const char*, int) nogil
    int X509_digest(const X509*, const EVP_MD*, unsigned char*, unsigned int*) nogil
    EVP_PKEY* X509_get0_pubkey(const X509*) nogil
    int EVP_PKEY_get_base_id(const EVP_PKEY*) nogil
    const EVP_MD* EVP_sha256() nogil
    const EVP_CIPHER* EVP_aes_256_cbc() nogil
    int EVP_EncryptInit_ex(EVP_CIPHER_CTX*, const EVP_CIPHER*, void*, const unsigned char*,
            const unsigned char*) nogil
    int EVP_DecryptInit_ex(EVP_CIPHER_CTX*, const EVP_CIPHER*, void*, const unsigned char*,
            const unsigned char*) nogil
    EVP_CIPHER_CTX* EVP_CIPHER_CTX_new() nogil
    void EVP_CIPHER_CTX_free(EVP_CIPHER_CTX*) nogil
    int EVP_CIPHER_CTX_ctrl(EVP_CIPHER_CTX*, int, int, void*) nogil
    int EVP_CipherInit_ex(EVP_CIPHER_CTX*, const EVP_CIPHER*, void*, const unsigned char*, const unsigned char*, int) nogil
    int EVP_CipherUpdate(EVP_CIPHER_CTX*, unsigned char*, int*, const unsigned char*, int) nogil
    int EVP_CipherFinal_ex(EVP_CIPHER_CTX*, unsigned char*, int*) nogil
    EVP_MD* EVP_MD_fetch(void*, const char*, const char*) nogil
    EVP_CIPHER* EVP_CIPHER_fetch(void*, const char*, const char*) nogil
    void OPENSSL_cleanse(void*, size_t) nogil
    int SSL_version(const SSL*) nogil
    unsigned short SSL_CIPHER_get_protocol_id(const SSL_CIPHER*) nogil
    const char* EVP_MD_get0_name(const EVP_MD*) nogil
    int EVP_MD_is_a(const EVP_MD*, const char*) nogil
    EVP_MAC* EVP_MAC_fetch(void*, const char*, const char*) nogil
    EVP_MAC_CTX* EVP_MAC_CTX_new(EVP_MAC*) nogil
    void EVP_MAC_CTX_free(EVP_MAC_CTX*) nogil
    int EVP_MAC_init(EVP_MAC_CTX*, const unsigned char*, size_t, const OSSL_PARAM*) nogil
    int EVP_MAC_update(EVP_MAC_CTX*, const unsigned char*, size_t) nogil
    int EVP_MAC_final(EVP_MAC_CTX*, unsigned char*, size_t*, size_t) nogil
    int EVP_MAC_CTX_set_params(EVP_MAC_CTX*, const OSSL_PARAM*) nogil
    int OSSL_PROVIDER_add_builtin(void*, const char*, int (*)(const void*, const OSSL_DISPATCH*,
            const OSSL_DISPATCH**, void**) noexcept nogil) nogil
    OSSL_PROVIDER* OSSL_PROVIDER_try_load(void*, const char*, int) nogil
    OSSL_PARAM OSSL_PARAM_construct_octet_string(const char*, void*, size_t) nogil
    OSSL_PARAM OSSL_PARAM_construct_utf8_string(const char*, char*, size_t) nogil
    OSSL_PARAM OSSL_PARAM_construct_end() nogil
    int RAND_bytes(unsigned char*, int) nogil
    const char* OpenSSL_version(int) nogil
    time_t timegm(tm*) nogil
