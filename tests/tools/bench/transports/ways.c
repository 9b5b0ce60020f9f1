/* Other ways in for yardstick and mqload: the linker puts these functions in the place of the system's, so that both
 * speak TLS or WebSocket, or meet at a Unix socket, and know nothing of it.
 *
 *   cc -O2 -Wl,--wrap=socket,--wrap=bind,... -o yardstick yardstick.c ways.c -l:libssl.so.3 -l:libcrypto.so.3
 *
 * WAY is tcp, tls, ws or unix:PATH. For TLS the floor's certificate and key are WAY_CERT and WAY_KEY; the load's
 * connections resume a session if WAY_RESUME is set, and it ends if one of them did not. What the floor does is the least
 * that there is: one read per ready socket, all records or frames in it into the program's buffer, one record for each
 * 16 KiB or one frame that it sends, one write. It holds OpenSSL's buffers, unless WAY_RELEASE is set.
 */
#define _GNU_SOURCE
#include "ways.h"
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

typedef uint8_t u8;
typedef uint32_t u32;
typedef uint64_t u64;

int __real_socket(int, int, int);
int __real_bind(int, const struct sockaddr *, socklen_t);
int __real_connect(int, const struct sockaddr *, socklen_t);
int __real_accept4(int, struct sockaddr *, socklen_t *, int);
ssize_t __real_send(int, const void *, size_t, int);
ssize_t __real_recv(int, void *, size_t, int);
int __real_close(int);

enum { TCP, TLS, WS, UNIX };
enum { FDS = 131072, RAW = 65536, SENT_AT_ONCE = 131072, RECORD = 16384, HEADER_MAX = 14 };

typedef struct {
	SSL *ssl;
	u8 *out;                 /* written by a layer, not taken by the socket */
	u8 *early;               /* of the program, sent before the opening was over */
	u32 out_length, early_length;
	u32 committed;           /* of what the program sends next: that is in `out` already */
	u64 left;                /* of the frame's payload */
	u32 mask;                /* for the next byte of it first */
	u8 header[HEADER_MAX], header_length;
	bool client, open, has_ended;
} way;

static way *ways[FDS];
static int kind = -1;
static char path[108];
static SSL_CTX *context;
static BIO *shared;
static SSL_SESSION *session;
static bool resumes;
static u8 raw[RAW], written[SENT_AT_ONCE * 2 + 65536];
static u32 written_length, raw_length, raw_at;
static u32 chance = 0x9e3779b9u;

static const char request[] =
	"GET /mqtt HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
	"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Protocol: mqtt\r\n\r\n";
static const char answer[] =
	"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
	"Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\nSec-WebSocket-Protocol: mqtt\r\n\r\n";

static void fail(const char *what) {
	const char *reason = kind == TLS ? ERR_reason_error_string(ERR_peek_last_error()) : NULL;
	fprintf(stderr, "ways: %s%s%s\n", what, reason ? ": " : "", reason ? reason : "");
	exit(2);
}

/* ---- OpenSSL reads from `raw` and writes to `written`: one BIO serves all connections ---- */
static int on_read(BIO *bio, char *data, int size) {
	u32 taken = raw_length - raw_at < (u32)size ? raw_length - raw_at : (u32)size;
	BIO_clear_flags(bio, BIO_FLAGS_ANY);
	if (!taken) {
		BIO_set_flags(bio, BIO_RETRY_READ);
		return -1;
	}
	memcpy(data, raw + raw_at, taken);
	raw_at += taken;
	return (int)taken;
}
static int on_write(BIO *bio, const char *data, int size) {
	BIO_clear_flags(bio, BIO_FLAGS_ANY);
	if (written_length + (u32)size > sizeof written) return -1;
	memcpy(written + written_length, data, (size_t)size);
	written_length += (u32)size;
	return size;
}
static long on_control(BIO *bio, int command, long number, void *pointer) {
	(void)bio, (void)number, (void)pointer;
	return command == BIO_FLUSH;
}
static int on_session(SSL *ssl, SSL_SESSION *made) {
	(void)ssl;
	if (session) return 0;
	session = made;
	return 1;
}

static void choose(void) {
	const char *text = getenv("WAY");
	if (kind >= 0) return;
	kind = !text || !strcmp(text, "tcp") ? TCP : !strcmp(text, "tls") ? TLS : !strcmp(text, "ws") ? WS : UNIX;
	if (kind == UNIX) {
		if (strncmp(text, "unix:", 5) || strlen(text) - 5 >= sizeof path) fail("WAY is tcp, tls, ws or unix:PATH");
		strcpy(path, text + 5);
	}
}
static void begin(bool client) { /* what TLS needs, once */
	if (kind != TLS || context) return;
	BIO_METHOD *method = BIO_meth_new(BIO_get_new_index() | 0x0400, "ways");
	BIO_meth_set_read(method, on_read);
	BIO_meth_set_write(method, on_write);
	BIO_meth_set_ctrl(method, on_control);
	shared = BIO_new(method);
	BIO_set_init(shared, 1);
	context = SSL_CTX_new(client ? TLS_client_method() : TLS_server_method());
	SSL_CTX_ctrl(context, CTRL_SET_MIN_PROTO_VERSION, TLS1_3_VERSION, NULL);
	SSL_CTX_ctrl(context, CTRL_SET_MAX_PROTO_VERSION, TLS1_3_VERSION, NULL);
	if (!SSL_CTX_set_ciphersuites(context, "TLS_AES_256_GCM_SHA384")) fail("cipher suite");
	if (client || getenv("WAY_RELEASE")) SSL_CTX_ctrl(context, CTRL_MODE, MODE_RELEASE_BUFFERS, NULL);
	SSL_CTX_ctrl(context, CTRL_SET_SESS_CACHE_MODE, SESS_CACHE_OFF, NULL);
	resumes = client && getenv("WAY_RESUME");
	if (resumes) {
		SSL_CTX_ctrl(context, CTRL_SET_SESS_CACHE_MODE, SESS_CACHE_CLIENT | SESS_CACHE_NO_INTERNAL, NULL);
		SSL_CTX_sess_set_new_cb(context, on_session);
	}
	if (!client) {
		const char *certificate = getenv("WAY_CERT"), *key = getenv("WAY_KEY");
		SSL_CTX_set_num_tickets(context, 1);
		if (!certificate || !key || SSL_CTX_use_certificate_chain_file(context, certificate) != 1 ||
		    SSL_CTX_use_PrivateKey_file(context, key, FILETYPE_PEM) != 1)
			fail("WAY_CERT, WAY_KEY");
	}
}
static way *made(int fd, bool client) {
	if (fd >= FDS) fail("too many sockets");
	way *w = calloc(1, sizeof *w);
	if (!w) fail("out of memory");
	w->client = client;
	if (kind == TLS) {
		w->ssl = SSL_new(context);
		if (!w->ssl) fail("out of memory");
		BIO_up_ref(shared);
		SSL_set_bio(w->ssl, shared, shared);
		if (client) SSL_set_connect_state(w->ssl);
		else SSL_set_accept_state(w->ssl);
		if (client && session) SSL_set_session(w->ssl, session);
	}
	return w;
}

/* ---- sending ---- */
static bool pushed(int fd, way *w) { /* whether the socket has taken everything that waited */
	if (!w->out_length) return true;
	ssize_t n = __real_send(fd, w->out, w->out_length, MSG_NOSIGNAL | MSG_DONTWAIT);
	if (n <= 0) return false;
	w->out_length -= (u32)n;
	memmove(w->out, w->out + n, w->out_length);
	return !w->out_length;
}
static bool push_written(int fd, way *w) { /* what was written goes to the socket, and what that does not take waits */
	u32 length = written_length;
	ssize_t n = 0;
	written_length = 0;
	if (!length) return true;
	if (!w->out_length) {
		n = __real_send(fd, written, length, MSG_NOSIGNAL | MSG_DONTWAIT);
		if (n == (ssize_t)length) return true;
		if (n < 0) n = 0;
	}
	w->out = realloc(w->out, w->out_length + length);
	if (!w->out) fail("out of memory");
	memcpy(w->out + w->out_length, written + n, length - (u32)n);
	w->out_length += length - (u32)n;
	return false;
}
static void put_frame(way *w, const u8 *data, u32 n) {
	u8 *o = written + written_length;
	u32 k = 2, i = 0;
	o[0] = 0x82;
	if (n < 126) o[1] = (u8)n;
	else if (n < 65536) {
		o[1] = 126;
		o[2] = (u8)(n >> 8);
		o[3] = (u8)n;
		k = 4;
	} else {
		o[1] = 127;
		memset(o + 2, 0, 4);
		for (u32 j = 0; j < 4; j++) o[6 + j] = (u8)(n >> (24 - 8 * j));
		k = 10;
	}
	if (w->client) {
		chance ^= chance << 13;
		chance ^= chance >> 17;
		chance ^= chance << 5;
		u64 twice = (u64)chance << 32 | chance, word;
		o[1] |= 0x80;
		memcpy(o + k, &chance, 4);
		k += 4;
		for (; i + 8 <= n; i += 8) {
			memcpy(&word, data + i, 8);
			word ^= twice;
			memcpy(o + k + i, &word, 8);
		}
		for (; i < n; i++) o[k + i] = data[i] ^ (u8)(chance >> 8 * (i & 3));
	} else
		memcpy(o + k, data, n);
	written_length += k + n;
}
static void put_wrapped(way *w, const u8 *data, u32 n) {
	if (kind == WS) {
		put_frame(w, data, n);
		return;
	}
	for (u32 at = 0; at < n; at += RECORD) {
		int size = (int)(n - at < RECORD ? n - at : RECORD);
		if (SSL_write(w->ssl, data + at, size) != size) fail("SSL_write");
	}
}
ssize_t __wrap_send(int fd, const void *data, size_t size, int flags) {
	way *w = fd >= 0 && fd < FDS ? ways[fd] : NULL;
	if (!w) return __real_send(fd, data, size, flags);
	if (!pushed(fd, w)) {
		errno = EAGAIN;
		return -1;
	}
	if (w->committed) { /* the first of these bytes have been wrapped before, and have gone now */
		u32 done = w->committed;
		w->committed = 0;
		return (ssize_t)done;
	}
	u32 n = size > SENT_AT_ONCE ? SENT_AT_ONCE : (u32)size;
	if (!w->open) {
		w->early = realloc(w->early, w->early_length + n);
		if (!w->early) fail("out of memory");
		memcpy(w->early + w->early_length, data, n);
		w->early_length += n;
		return (ssize_t)n;
	}
	written_length = 0;
	put_wrapped(w, data, n);
	if (push_written(fd, w)) return (ssize_t)n;
	w->committed = n;
	errno = EAGAIN;
	return -1;
}

/* ---- receiving ---- */
static void opened(way *w) {
	w->open = true;
	if (w->client && w->early_length) put_wrapped(w, w->early, w->early_length);
	free(w->early);
	w->early = NULL;
	w->early_length = 0;
}
static void shake_hands(way *w) {
	int outcome = SSL_do_handshake(w->ssl);
	if (outcome == 1) {
		if (w->client && session && !SSL_session_reused(w->ssl)) fail("a session was not resumed");
		opened(w);
	} else if (SSL_get_error(w->ssl, outcome) != ERROR_WANT_READ)
		w->has_ended = true;
}
static void upgrade(way *w) { /* of the server, the request; of the client, the answer */
	const u8 *end = memmem(raw, raw_length, "\r\n\r\n", 4);
	if (!end) fail("an upgrade in pieces");
	if (w->client && !memmem(raw, (size_t)(end - raw), "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=", 28)) {
		w->has_ended = true;
		return;
	}
	raw_at = (u32)(end - raw) + 4;
	if (!w->client) {
		memcpy(written + written_length, answer, sizeof answer - 1);
		written_length += sizeof answer - 1;
	}
	opened(w);
}
static u32 unmask(way *w, u8 *to, const u8 *from, u32 n) {
	u64 twice = (u64)w->mask << 32 | w->mask, word;
	u32 i = 0, turned;
	for (; i + 8 <= n; i += 8) {
		memcpy(&word, from + i, 8);
		word ^= twice;
		memcpy(to + i, &word, 8);
	}
	for (; i < n; i++) to[i] = from[i] ^ (u8)(w->mask >> 8 * (i & 3));
	turned = 8 * (n & 3);
	if (turned) w->mask = w->mask >> turned | w->mask << (32 - turned);
	return n;
}
static u32 take_frames(way *w, u8 *to, u32 size) {
	u32 got = 0;
	while (raw_at < raw_length) {
		if (w->left) {
			u32 n = raw_length - raw_at < w->left ? raw_length - raw_at : (u32)w->left;
			if (n > size - got) fail("frames of more than the buffer");
			if (w->mask) unmask(w, to + got, raw + raw_at, n);
			else memcpy(to + got, raw + raw_at, n);
			got += n;
			raw_at += n;
			w->left -= n;
			continue;
		}
		w->header[w->header_length++] = raw[raw_at++];
		if (w->header_length < 2) continue;
		u32 code = w->header[1] & 127, lengths = code == 127 ? 8 : code == 126 ? 2 : 0;
		u32 masked = w->header[1] & 128 ? 4 : 0;
		if (w->header_length < 2 + lengths + masked) continue;
		w->left = lengths ? 0 : code;
		for (u32 i = 0; i < lengths; i++) w->left = w->left << 8 | w->header[2 + i];
		w->mask = 0;
		if (masked) memcpy(&w->mask, w->header + 2 + lengths, 4);
		w->header_length = 0;
		if ((w->header[0] & 15) == 8) { /* close */
			w->has_ended = true;
			break;
		}
		if ((w->header[0] & 15) > 2) fail("a frame that is no data");
	}
	return got;
}
static u32 take_records(way *w, u8 *to, u32 size) {
	u32 got = 0;
	while (raw_at < raw_length || SSL_has_pending(w->ssl)) {
		if (got == size) fail("records of more than the buffer");
		int n = SSL_read(w->ssl, to + got, (int)(size - got));
		if (n <= 0) {
			if (SSL_get_error(w->ssl, n) != ERROR_WANT_READ) w->has_ended = true;
			ERR_clear_error();
			break;
		}
		got += (u32)n;
	}
	return got;
}
ssize_t __wrap_recv(int fd, void *data, size_t size, int flags) {
	way *w = fd >= 0 && fd < FDS ? ways[fd] : NULL;
	if (!w) return __real_recv(fd, data, size, flags);
	/* What has come in pieces before may be a record more than what comes now. */
	size_t most = size - RECORD < RAW ? size - RECORD : RAW;
	ssize_t n = __real_recv(fd, raw, most, flags);
	if (n <= 0) return n;
	raw_length = (u32)n;
	raw_at = written_length = 0;
	if (!w->open) {
		if (kind == TLS) shake_hands(w);
		else upgrade(w);
	}
	u32 got = w->open ? kind == TLS ? take_records(w, data, (u32)size) : take_frames(w, data, (u32)size) : 0;
	push_written(fd, w);
	if (got) return (ssize_t)got;
	if (w->has_ended) return 0;
	errno = EAGAIN;
	return -1;
}

/* ---- connections ---- */
int __wrap_socket(int family, int type, int protocol) {
	choose();
	return __real_socket(kind == UNIX ? AF_UNIX : family, type, protocol);
}
static struct sockaddr_un at_path(void) {
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	strcpy(address.sun_path, path);
	return address;
}
int __wrap_bind(int fd, const struct sockaddr *address, socklen_t length) {
	if (ntohs(((const struct sockaddr_in *)address)->sin_port) == 0) /* the load's own end */
		return kind == UNIX ? 0 : __real_bind(fd, address, length);
	begin(false);
	if (kind != UNIX) return __real_bind(fd, address, length);
	struct sockaddr_un here = at_path();
	unlink(path);
	return __real_bind(fd, (void *)&here, sizeof here);
}
static void start(way *w) { /* the client's first words */
	written_length = raw_length = raw_at = 0;
	if (kind == TLS) shake_hands(w);
	else {
		memcpy(written, request, sizeof request - 1);
		written_length = sizeof request - 1;
	}
}
static void get_session(const struct sockaddr *address, socklen_t length) {
	struct timeval patience = {.tv_sec = 10};
	int fd = __real_socket(AF_INET, SOCK_STREAM, 0);
	static u8 ignored[RAW];
	if (fd < 0 || __real_connect(fd, address, length)) fail("connect");
	setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
	way *w = ways[fd] = made(fd, true);
	start(w);
	push_written(fd, w);
	while (!session) {
		raw_length = 0;
		__wrap_recv(fd, ignored, sizeof ignored, 0);
		if (!raw_length || w->has_ended) fail("no session to resume");
	}
	/* With a cache OpenSSL takes care that no ticket is used twice. */
	SSL_CTX_ctrl(context, CTRL_SET_SESS_CACHE_MODE, SESS_CACHE_OFF, NULL);
	SSL_set_shutdown(w->ssl, SENT_AND_RECEIVED_SHUTDOWN);
	SSL_free(w->ssl);
	free(w);
	ways[fd] = NULL;
	__real_close(fd);
}
int __wrap_connect(int fd, const struct sockaddr *address, socklen_t length) {
	begin(true);
	if (kind == TCP) return __real_connect(fd, address, length);
	if (kind == UNIX) {
		struct sockaddr_un there = at_path();
		return __real_connect(fd, (void *)&there, sizeof there);
	}
	if (resumes && !session) get_session(address, length);
	int outcome = __real_connect(fd, address, length);
	if (outcome && errno != EINPROGRESS) return outcome;
	int why = errno;
	way *w = ways[fd] = made(fd, true);
	start(w);
	push_written(fd, w);
	errno = why;
	return outcome;
}
int __wrap_accept4(int listener, struct sockaddr *address, socklen_t *length, int flags) {
	int fd = __real_accept4(listener, address, length, flags);
	if (fd >= 0 && kind != TCP && kind != UNIX) ways[fd] = made(fd, false);
	return fd;
}
int __wrap_close(int fd) {
	way *w = fd >= 0 && fd < FDS ? ways[fd] : NULL;
	if (w) {
		ways[fd] = NULL;
		if (w->ssl) {
			SSL_set_shutdown(w->ssl, SENT_AND_RECEIVED_SHUTDOWN);
			SSL_free(w->ssl);
		}
		free(w->out);
		free(w->early);
		free(w);
	}
	return __real_close(fd);
}
