/* epoll beside io_uring: the CPU that it costs to hand 64-byte messages from 50 senders to 50 receivers over loopback.

   cc -O2 -o relay relay.c && ./relay [rounds] [seconds]

   One process relays, its child is both ends of every pair and sends a batch again when the last one has come through.
   The two relays do the same in a turn: receive once per ready socket, copy into the receiver's output, send once per
   receiver. Reported are the relay's own user and system time per message and its system calls per message, medians of
   the rounds. Only raw system calls: liburing is not needed. If the kernel refuses io_uring, its errno is printed. */

#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <linux/io_uring.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { PAIRS = 50, MESSAGE = 64, BATCH_MAX = 64, ROUNDS_MAX = 99, ENTRIES = 256,
       BUFFERS = 256, BUFFER_SIZE = 16384, GROUP = 1, OUTPUT_SIZE = 1 << 16 };

static int sender[PAIRS], receiver[PAIRS];      /* the relay's ends */
static double calls, relayed_bytes;

#define CHECK(expression) ({ long value_ = (long)(expression); \
    if (value_ < 0) { fprintf(stderr, "%s: %s\n", #expression, strerror(errno)); exit(1); } value_; })

static double now_s(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec + now.tv_nsec / 1e9;
}

static double cpu_s(void) {
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return usage.ru_utime.tv_sec + usage.ru_stime.tv_sec + (usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1e6;
}

struct figures { double cpu_us, calls, messages_per_s; } figures;

/* Whether the relay goes on; what it did in the first fifth of a second is not counted. */
static int goes_on(double seconds) {
    static double start_s, counted_s, cpu_before_s;
    double at_s = now_s();
    if (start_s == 0) start_s = at_s;
    if (counted_s == 0 && at_s - start_s > 0.2) {
        counted_s = at_s;
        cpu_before_s = cpu_s();
        calls = relayed_bytes = 0;
    }
    if (counted_s == 0 || at_s - counted_s < seconds) return 1;
    figures.cpu_us = (cpu_s() - cpu_before_s) * 1e6 / (relayed_bytes / MESSAGE);
    figures.calls = calls / (relayed_bytes / MESSAGE);
    figures.messages_per_s = relayed_bytes / MESSAGE / (at_s - counted_s);
    return 0;
}

static void pin(int cpu) {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(cpu, &set);
    sched_setaffinity(0, sizeof set, &set);
}

/* epoll: level-triggered, one recv per ready socket, at the end of the turn one send per receiver with output */
static void relay_epoll(double seconds) {
    static char shared[1 << 16], output[PAIRS][OUTPUT_SIZE];
    struct epoll_event events[PAIRS], event;
    int epoll_fd = CHECK(epoll_create1(0)), length[PAIRS] = {0}, dirty[PAIRS];
    for (int pair = 0; pair < PAIRS; pair++) {
        event.events = EPOLLIN;
        event.data.u32 = pair;
        CHECK(epoll_ctl(epoll_fd, EPOLL_CTL_ADD, sender[pair], &event));
    }
    while (goes_on(seconds)) {
        int count = CHECK(epoll_wait(epoll_fd, events, PAIRS, 100)), dirty_count = 0;
        calls++;
        for (int index = 0; index < count; index++) {
            int pair = events[index].data.u32, got = CHECK(recv(sender[pair], shared, sizeof shared, MSG_DONTWAIT));
            calls++;
            memcpy(output[pair] + length[pair], shared, got);
            length[pair] += got;
            dirty[dirty_count++] = pair;
        }
        for (int index = 0; index < dirty_count; index++) {
            int pair = dirty[index], sent = CHECK(send(receiver[pair], output[pair], length[pair], MSG_DONTWAIT));
            calls++;
            if (sent != length[pair]) exit(2);      /* cannot be: a batch is far below the socket's buffer */
            relayed_bytes += sent;
            length[pair] = 0;
        }
    }
    close(epoll_fd);
}

static int uring_setup(struct io_uring_params *params) {
    memset(params, 0, sizeof *params);
    params->flags = IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN | IORING_SETUP_CQSIZE;
    params->cq_entries = 4 * ENTRIES;
    return syscall(__NR_io_uring_setup, ENTRIES, params);
}

/* io_uring at its best: multishot receive into a ring of buffers, and one system call a turn that submits every send
   and waits for what comes next. */
static void relay_uring(double seconds) {
    static char output[PAIRS][OUTPUT_SIZE];
    struct io_uring_params params;
    int ring_fd = CHECK(uring_setup(&params)), length[PAIRS] = {0}, dirty[PAIRS], dirty_count = 0, sending[PAIRS] = {0};
    size_t size = params.cq_off.cqes + params.cq_entries * sizeof(struct io_uring_cqe);
    char *rings = mmap(0, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, ring_fd, IORING_OFF_SQ_RING);
    struct io_uring_sqe *sqes = mmap(0, params.sq_entries * sizeof *sqes, PROT_READ | PROT_WRITE,
                                     MAP_SHARED | MAP_POPULATE, ring_fd, IORING_OFF_SQES);
    char *memory = mmap(0, BUFFERS * BUFFER_SIZE, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    struct io_uring_buf_ring *buffers = mmap(0, BUFFERS * sizeof(struct io_uring_buf), PROT_READ | PROT_WRITE,
                                             MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    struct io_uring_buf_reg registered = {.ring_addr = (uintptr_t)buffers, .ring_entries = BUFFERS, .bgid = GROUP};
    uint32_t *sq_tail = (uint32_t *)(rings + params.sq_off.tail), *sq_array = (uint32_t *)(rings + params.sq_off.array);
    uint32_t *cq_head = (uint32_t *)(rings + params.cq_off.head), *cq_tail = (uint32_t *)(rings + params.cq_off.tail);
    uint32_t sq_mask = params.sq_entries - 1, cq_mask = params.cq_entries - 1, tail = *sq_tail, submit = 0;
    struct io_uring_cqe *cqes = (struct io_uring_cqe *)(rings + params.cq_off.cqes);
    uint16_t buffer_tail = 0;

    if (rings == MAP_FAILED || sqes == MAP_FAILED || memory == MAP_FAILED || buffers == MAP_FAILED) exit(1);
    CHECK(syscall(__NR_io_uring_register, ring_fd, IORING_REGISTER_PBUF_RING, &registered, 1));

    void give_buffer(int number) {
        struct io_uring_buf *buffer = &buffers->bufs[buffer_tail++ & (BUFFERS - 1)];
        buffer->addr = (uintptr_t)(memory + (size_t)number * BUFFER_SIZE);
        buffer->len = BUFFER_SIZE;
        buffer->bid = number;
        __atomic_store_n(&buffers->tail, buffer_tail, __ATOMIC_RELEASE);
    }
    struct io_uring_sqe *next_sqe(void) {
        struct io_uring_sqe *sqe = &sqes[tail & sq_mask];
        sq_array[tail & sq_mask] = tail & sq_mask;
        tail++;
        submit++;
        return memset(sqe, 0, sizeof *sqe);
    }
    void receive(int pair) {
        struct io_uring_sqe *sqe = next_sqe();
        sqe->opcode = IORING_OP_RECV;
        sqe->fd = sender[pair];
        sqe->ioprio = IORING_RECV_MULTISHOT;
        sqe->flags = IOSQE_BUFFER_SELECT;
        sqe->buf_group = GROUP;
        sqe->user_data = pair;
    }

    for (int number = 0; number < BUFFERS; number++) give_buffer(number);
    for (int pair = 0; pair < PAIRS; pair++) receive(pair);
    while (goes_on(seconds)) {
        int sends = 0, still_dirty = 0;
        for (int index = 0; index < dirty_count; index++) {
            int pair = dirty[index];
            if (sending[pair]) { dirty[still_dirty++] = pair; continue; }
            struct io_uring_sqe *sqe = next_sqe();
            sqe->opcode = IORING_OP_SEND;
            sqe->fd = receiver[pair];
            sqe->addr = (uintptr_t)output[pair];
            sqe->len = sending[pair] = length[pair];
            sqe->user_data = PAIRS + pair;
            sends++;
        }
        dirty_count = still_dirty;
        __atomic_store_n(sq_tail, tail, __ATOMIC_RELEASE);
        /* the sends complete at once: one event more is something to do */
        long entered = syscall(__NR_io_uring_enter, ring_fd, submit, sends + 1, IORING_ENTER_GETEVENTS, NULL, 0);
        if (entered < 0 && errno != EINTR) { perror("io_uring_enter"); exit(1); }
        calls++;
        submit -= entered > 0 ? entered : 0;
        uint32_t head = *cq_head;
        for (; head != __atomic_load_n(cq_tail, __ATOMIC_ACQUIRE); head++) {
            struct io_uring_cqe *cqe = &cqes[head & cq_mask];
            int pair = cqe->user_data % PAIRS;
            if (cqe->user_data >= PAIRS) {
                if (cqe->res != sending[pair]) exit(2);
                relayed_bytes += cqe->res;
                length[pair] -= cqe->res;
                memmove(output[pair], output[pair] + cqe->res, length[pair]);
                sending[pair] = 0;
                continue;
            }
            if (cqe->res > 0) {
                int number = cqe->flags >> IORING_CQE_BUFFER_SHIFT;
                memcpy(output[pair] + length[pair], memory + (size_t)number * BUFFER_SIZE, cqe->res);
                give_buffer(number);
                if (length[pair] == 0) dirty[dirty_count++] = pair;
                length[pair] += cqe->res;
            } else if (cqe->res != -ENOBUFS) exit(3);
            if (!(cqe->flags & IORING_CQE_F_MORE)) receive(pair);
        }
        __atomic_store_n(cq_head, head, __ATOMIC_RELEASE);
    }
    close(ring_fd);
}

/* Both ends of every pair; a pair's next batch goes out when its last one has arrived whole. */
static void load(int *out, int *in, int batch) {
    static char data[BATCH_MAX * MESSAGE];
    struct epoll_event events[PAIRS], event;
    int epoll_fd = CHECK(epoll_create1(0)), missing[PAIRS];
    for (int pair = 0; pair < PAIRS; pair++) {
        event.events = EPOLLIN;
        event.data.u32 = pair;
        CHECK(epoll_ctl(epoll_fd, EPOLL_CTL_ADD, in[pair], &event));
        missing[pair] = batch * MESSAGE;
        CHECK(send(out[pair], data, batch * MESSAGE, 0));
    }
    for (;;) {
        int count = CHECK(epoll_wait(epoll_fd, events, PAIRS, -1));
        for (int index = 0; index < count; index++) {
            int pair = events[index].data.u32;
            missing[pair] -= CHECK(recv(in[pair], data, sizeof data, MSG_DONTWAIT));
            if (missing[pair] == 0) {
                missing[pair] = batch * MESSAGE;
                CHECK(send(out[pair], data, batch * MESSAGE, 0));
            }
        }
    }
}

static void connected_pair(int *ours, int *theirs) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof address;
    int listening = CHECK(socket(AF_INET, SOCK_STREAM, 0)), one = 1;
    CHECK(bind(listening, (struct sockaddr *)&address, length));
    CHECK(listen(listening, 1));
    CHECK(getsockname(listening, (struct sockaddr *)&address, &length));
    *theirs = CHECK(socket(AF_INET, SOCK_STREAM, 0));
    CHECK(connect(*theirs, (struct sockaddr *)&address, length));
    *ours = CHECK(accept(listening, NULL, NULL));
    setsockopt(*ours, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    setsockopt(*theirs, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    close(listening);
}

/* In a process of its own, so that no run inherits anything from another. */
static struct figures measure(void (*relay)(double), int batch, int load_cpu, double seconds) {
    int result[2];
    CHECK(pipe(result));
    if (CHECK(fork()) == 0) {
        int out[PAIRS], in[PAIRS];
        for (int pair = 0; pair < PAIRS; pair++) {
            connected_pair(&sender[pair], &out[pair]);
            connected_pair(&receiver[pair], &in[pair]);
        }
        pid_t loading = CHECK(fork());
        if (loading == 0) {
            pin(load_cpu);
            load(out, in, batch);
        }
        pin(0);
        relay(seconds);
        kill(loading, SIGKILL);
        CHECK(write(result[1], &figures, sizeof figures));
        exit(0);
    }
    close(result[1]);
    struct figures got;
    if (read(result[0], &got, sizeof got) != sizeof got) { fprintf(stderr, "a run failed\n"); exit(1); }
    close(result[0]);
    wait(NULL);
    return got;
}

static int by_cpu(const void *one, const void *other) {
    double difference = ((const struct figures *)one)->cpu_us - ((const struct figures *)other)->cpu_us;
    return (difference > 0) - (difference < 0);
}

int main(int count, char **arguments) {
    int rounds = count > 1 ? atoi(arguments[1]) : 5;
    double seconds = count > 2 ? atof(arguments[2]) : 1;
    struct io_uring_params params;
    int ring_fd = uring_setup(&params), uring_errno = errno;
    static struct figures found[2][ROUNDS_MAX];
    struct { const char *name; int batch, load_cpu; } cases[] = {
        {"one message a write, load on the same core", 1, 0}, {"one message a write, load on another core", 1, 1},
        {"64 messages a write, load on the same core", 64, 0}, {"64 messages a write, load on another core", 64, 1}};
    if (rounds < 1 || rounds > ROUNDS_MAX) return 1;
    if (ring_fd < 0) printf("io_uring_setup: errno %d, %s\n", uring_errno, strerror(uring_errno));
    close(ring_fd);
    setvbuf(stdout, NULL, _IONBF, 0);             /* a child must not print it again */
    printf("%-42s %28s %28s  ratio\n%-42s %28s %28s\n", "", "epoll", "io_uring", "", "CPU us, calls, messages/s",
           "CPU us, calls, messages/s");
    for (size_t index = 0; index < sizeof cases / sizeof *cases; index++) {
        for (int round = 0; round < rounds; round++) {          /* in turns, so that both see the same machine */
            found[0][round] = measure(relay_epoll, cases[index].batch, cases[index].load_cpu, seconds);
            if (ring_fd >= 0)
                found[1][round] = measure(relay_uring, cases[index].batch, cases[index].load_cpu, seconds);
        }
        printf("%-42s", cases[index].name);
        for (int engine = 0; engine < 2; engine++) {
            qsort(found[engine], rounds, sizeof **found, by_cpu);
            struct figures *median = &found[engine][rounds / 2];
            printf("    %6.3f %6.3f %10.0f", median->cpu_us, median->calls, median->messages_per_s);
        }
        printf("  %5.2f\n", found[1][rounds / 2].cpu_us / found[0][rounds / 2].cpu_us);
    }
    return 0;
}
