/* What is used of libssl 3: declared here, so that its headers are not needed, as in broker/transport/openssl.pxd. */
#ifndef WAYS_H
#define WAYS_H
#include <stddef.h>

typedef struct ssl_st SSL;
typedef struct ssl_ctx_st SSL_CTX;
typedef struct ssl_method_st SSL_METHOD;
typedef struct ssl_session_st SSL_SESSION;
typedef struct bio_st BIO;
typedef struct bio_method_st BIO_METHOD;

enum {
	ERROR_WANT_READ = 2,
	ERROR_ZERO_RETURN = 6,
	FILETYPE_PEM = 1,
	CTRL_MODE = 33,
	CTRL_SET_SESS_CACHE_MODE = 44,
	CTRL_SET_MIN_PROTO_VERSION = 123,
	CTRL_SET_MAX_PROTO_VERSION = 124,
	MODE_RELEASE_BUFFERS = 0x10,
	SESS_CACHE_OFF = 0,
	SESS_CACHE_CLIENT = 0x1,
	SESS_CACHE_NO_INTERNAL = 0x300,
	TLS1_3_VERSION = 0x0304,
	SENT_AND_RECEIVED_SHUTDOWN = 3,
	BIO_RETRY_READ = 0x01 | 0x08,
	BIO_FLAGS_ANY = 0x0F,
	BIO_FLUSH = 11,
};

const SSL_METHOD *TLS_server_method(void);
const SSL_METHOD *TLS_client_method(void);
SSL_CTX *SSL_CTX_new(const SSL_METHOD *);
long SSL_CTX_ctrl(SSL_CTX *, int, long, void *);
int SSL_CTX_set_ciphersuites(SSL_CTX *, const char *);
int SSL_CTX_set_num_tickets(SSL_CTX *, size_t);
int SSL_CTX_use_certificate_chain_file(SSL_CTX *, const char *);
int SSL_CTX_use_PrivateKey_file(SSL_CTX *, const char *, int);
void SSL_CTX_sess_set_new_cb(SSL_CTX *, int (*)(SSL *, SSL_SESSION *));
SSL *SSL_new(SSL_CTX *);
void SSL_free(SSL *);
void SSL_set_bio(SSL *, BIO *, BIO *);
void SSL_set_accept_state(SSL *);
void SSL_set_connect_state(SSL *);
int SSL_set_session(SSL *, SSL_SESSION *);
int SSL_session_reused(const SSL *);
void SSL_set_shutdown(SSL *, int);
int SSL_do_handshake(SSL *);
int SSL_read(SSL *, void *, int);
int SSL_write(SSL *, const void *, int);
int SSL_has_pending(const SSL *);
int SSL_get_error(const SSL *, int);
int BIO_get_new_index(void);
BIO_METHOD *BIO_meth_new(int, const char *);
int BIO_meth_set_write(BIO_METHOD *, int (*)(BIO *, const char *, int));
int BIO_meth_set_read(BIO_METHOD *, int (*)(BIO *, char *, int));
int BIO_meth_set_ctrl(BIO_METHOD *, long (*)(BIO *, int, long, void *));
BIO *BIO_new(const BIO_METHOD *);
int BIO_up_ref(BIO *);
void BIO_set_init(BIO *, int);
void BIO_set_flags(BIO *, int);
void BIO_clear_flags(BIO *, int);
void ERR_clear_error(void);
unsigned long ERR_peek_last_error(void);
const char *ERR_reason_error_string(unsigned long);
#endif
