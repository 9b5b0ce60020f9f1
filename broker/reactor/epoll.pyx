"""epoll and the sockets of a worker: one turn after another.

A turn receives once per ready socket into one shared buffer, parses every whole packet in it, routes, appends to the
receivers' outputs, and ends with one send per connection that has output. trio runs as a guest, one tick a turn.
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.exc cimport PyErr_CheckSignals
from broker.wire.codec cimport CONNECT
from router.core.varint cimport varint_length, write_varint
from broker.reactor.histogram cimport monotonic_ns, note_duration, realtime_us
from broker.reactor.turn cimport PHASE_CONTROL, PHASE_FLUSH, PHASE_GUEST, PHASE_INPUT
from broker.reactor.turn import PHASES
from broker.reactor.peer_address cimport address_of, sockaddr, sockaddr_storage, socklen_t
from broker.reactor.pending_handshakes import PendingHandshakes
from broker.reactor.protocol cimport CLOSING, CONNECTING, ENDED, PAUSE_PARKED, PAUSE_UNREAD, Turn, WORK_READ
from broker.reactor.socket_end cimport NO_SOCKET
from broker.reactor.timing_wheel cimport TICK_MS
from broker.transport.layer cimport Layers
from mesh.reactor_port cimport MeshSeam
from router.sessions.sink cimport PUBACK, PUBCOMP, PUBREC, PUBREL
from libc.errno cimport EAGAIN, EINTR, errno
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy
import os
from threading import RLock

cdef extern from "<sys/epoll.h>" nogil:
    struct epoll_data:
        int fd
    struct epoll_event:
        uint32_t events
        epoll_data data
    int epoll_create1(int flags)
    int epoll_ctl(int epoll_fd, int operation, int fd, epoll_event* event)
    int epoll_wait(int epoll_fd, epoll_event* events, int events_max, int timeout_ms)
    int EPOLL_CLOEXEC
    int EPOLL_CTL_ADD
    int EPOLL_CTL_DEL
    uint32_t EPOLLIN
    uint32_t EPOLLOUT
    uint32_t EPOLLHUP
    uint32_t EPOLLERR

cdef extern from "<sys/socket.h>" nogil:
    int accept4(int fd, sockaddr* address, socklen_t* length, int flags)
    int setsockopt(int fd, int level, int option, const void* value, socklen_t length)
    int SOCK_NONBLOCK
    int SOCK_CLOEXEC
    int SOL_SOCKET
    int SO_KEEPALIVE

cdef extern from "<netinet/in.h>" nogil:
    int IPPROTO_TCP

cdef extern from "<netinet/tcp.h>" nogil:
    int TCP_NODELAY

cdef extern from "<unistd.h>" nogil:
    int usleep(unsigned int time_us)

cdef enum:
    GATHER_EVENTS = 4            # sockets read in a turn, from which on it looks for more input before it flushes
    GATHER_ROUNDS = 1            # looks of such a turn
    GATHER_OUTPUTS = 16          # connections to flush, from which on a turn looks again as long as it finds input
    GATHER_ROUNDS_WIDE = 8       # looks of such a turn at most
    GATHER_PAUSE_US = 50         # or it sleeps for so long before it looks; the system makes that twice as long,
    GATHER_FEW = 8               # if it has fewer messages than that for each of them
    WAITED_NS = 5000             # since the end of the last turn: what blocked was away for longer
    ACCEPTS_LEAST = 16           # clients that a turn takes in at once, whatever else it has done
    WORK_ACCEPT = 300            # units of a turn's work: some 15 us,
    WORK_LAYERS = 300            # and as much for layers

cdef epoll_event[EVENTS_MAX] events


cdef class Reactor(Hub):
    """The hub with epoll and sockets. See Hub for the arguments.

    Args:
        bytes_per_read: size of the shared receive buffer: at most so much is read of a socket in a turn.
        sockets_per_turn: at most so many sockets are read in a turn, 1..512.
    """

    def __init__(self, router, controller, pump, *, bytes_per_read: int, sockets_per_turn: int,
                 pending_handshakes_max: int = 1000, **terms):
        super().__init__(router, controller, pump, now_ms=monotonic_ns() // 1000000, **terms)
        self.epoll_fd = epoll_create1(EPOLL_CLOEXEC)
        if self.epoll_fd < 0:
            raise OSError(errno, os.strerror(errno))
        self.wake_lock = RLock()         # a signal's handler may wake us while we do
        self.wake_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self.turn.wake_fd = self.wake_fd
        self.shared_size = bytes_per_read
        self.shared = <uint8_t*>malloc(self.shared_size)
        if self.shared == NULL:
            raise MemoryError()
        self.sockets_per_turn = min(sockets_per_turn, EVENTS_MAX)
        self.watched = {}
        self.pending_handshakes = PendingHandshakes(pending_handshakes_max)
        self._watch(self.wake_fd, EPOLLIN)
        self.next_tick_ms = 0

    def __cinit__(self, *args, **kwargs):
        self.epoll_fd = self.wake_fd = -1

    def __dealloc__(self):
        free(self.shared)
        if self.epoll_fd >= 0:
            os.close(self.epoll_fd)
        if self.wake_fd >= 0:
            os.close(self.wake_fd)

    def _watch(self, int fd, uint32_t interest):
        cdef epoll_event event
        event.events = interest
        event.data.fd = fd
        if epoll_ctl(self.epoll_fd, EPOLL_CTL_ADD, fd, &event):
            raise OSError(errno, os.strerror(errno))

    # Control ---------------------------------------------------------------------------------------------------------

    def watch(self, int fd, callback) -> None:
        """Call `callback(fd)` in every turn in which a descriptor is readable that is no client's.

        It is called while sockets are read: it may adopt and accept connections, and send, and must not wait.
        """
        self._watch(fd, EPOLLIN)
        self.watched[fd] = callback

    def join_mesh(self, MeshSeam mesh not None) -> None:
        """From now on each turn takes what peers have sent, and ends with what they are sent. The router is theirs, too."""
        for fd in mesh.fds:
            self.watch(fd, self._mesh_readable)
        self.mesh = mesh

    def leave_mesh(self) -> None:
        """Have no more to do with peers."""
        if self.mesh is not None:
            for fd in self.mesh.fds:
                self.unwatch(fd)
            self.mesh = None

    def _mesh_readable(self, int fd) -> None:
        self.mesh.readable(fd)
        self.mesh_due = True

    def unwatch(self, int fd) -> None:
        """Watch a descriptor no more, before it is closed at the latest; what is readable waits."""
        del self.watched[fd]
        self._unwatch(fd)

    def _unwatch(self, int fd):
        if epoll_ctl(self.epoll_fd, EPOLL_CTL_DEL, fd, NULL):
            raise OSError(errno, os.strerror(errno))

    def wake(self) -> None:
        """Make a blocked reactor turn. From any thread."""
        with self.wake_lock:
            if self.wake_fd >= 0:
                os.eventfd_write(self.wake_fd, 1)

    def guest_is_due(self) -> None:
        """A tick of the guest waits; from this thread, where no wake is needed."""
        self.guest_due = True

    def look_at_clock(self) -> int:
        """Return the time, monotonic ms, which is the turn's from now on; for what comes from outside of a turn."""
        self.turn.now_ms = monotonic_ns() // 1000000
        self.router.ledger.now_ms = self.turn.now_ms
        if self.router.recording or self.mesh is not None:
            self.router.ledger.now_us = realtime_us()
        return self.turn.now_ms

    def fileno(self) -> int:
        """Readable when turn_once() has something to do."""
        return self.epoll_fd

    @property
    def idle_s(self) -> float:
        """Seconds after which turn_once() has to be called although nothing is readable."""
        return TICK_MS / 1000.0 if self.needs_ticks() else float("inf")

    def close(self) -> None:
        """End every connection and close all descriptors at once; what is unsent is lost. The last call."""
        if self.epoll_fd < 0:
            return
        for connection in self.connections_snapshot():
            self.controller.shut_down(connection)
        self.sends_max = self.control_max = self.ends_max = 0xFFFFFFFF
        self.begin_shares()
        self.wide_sends.left = 0xFFFFFFFF
        self.began_ns = 0                # whatever that takes
        self.end_turn()
        for connection in self.connections_snapshot():
            self.dispose(connection)
        os.close(self.epoll_fd)
        with self.wake_lock:             # the log goes on, and wakes us
            os.close(self.wake_fd)
            self.epoll_fd = self.wake_fd = self.turn.wake_fd = -1

    def stop(self) -> None:
        """End run() after the turn."""
        self.running = False

    def accept_batch(self, int listening_fd, int count, entrance=None) -> int:
        """Accept up to `count` connections, or fewer if the turn has done much. Returns how many.

        Raises OSError if none could be accepted for a reason.

        Args:
            entrance: the broker.transport.listener.Entrance that they come by; None: plain TCP, and nothing is special.
        """
        cdef Connection connection
        cdef int fd, accepted = 0
        cdef int one = 1
        cdef sockaddr_storage peer
        cdef socklen_t length
        while accepted < count and (accepted < ACCEPTS_LEAST or not self.spent()):
            self.turn.work += WORK_ACCEPT
            length = sizeof(peer)
            fd = accept4(listening_fd, <sockaddr*>&peer, &length, SOCK_NONBLOCK | SOCK_CLOEXEC)
            if fd < 0:
                if errno == EAGAIN:
                    break
                if errno == EINTR:
                    continue
                if accepted:
                    break               # said again at the next call
                raise OSError(errno, os.strerror(errno))
            setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one))
            connection = self._adopt(fd)
            if entrance is not None:
                self._put_layers(connection, entrance, None if entrance.is_bare else address_of(&peer))
            accepted += 1
        return accepted

    def _put_layers(self, Connection connection not None, entrance, str address) -> None:
        connection.facts = entrance.facts()
        if entrance.is_bare:
            return
        self.turn.work += WORK_LAYERS
        # Of one that has gone the socket says nothing any more.
        connection.facts.address = address or connection.peer
        try:
            layers = entrance.layers(connection.facts, connection.facts.address)
        except Exception as error:
            connection.put_layers(Layers([], connection.facts))
            connection.layers_failed(error)
        else:
            connection.put_layers(Layers(layers, connection.facts))
            connection.layers.pending_handshakes = self.pending_handshakes
            self.pending_handshakes.waiting[connection.layers] = connection

    def adopt(self, int fd, accepted_ms: int | None = None) -> Connection:
        """Take over a connected, non-blocking stream socket; it is closed by the reactor from now on.

        Args:
            accepted_ms: when its time to CONNECT began, monotonic; None: now.
        """
        cdef Connection connection = self._adopt(fd)
        if accepted_ms is not None:
            self.wheel.arm(&connection.timer, <int64_t>accepted_ms + self.connect_timeout_ms)
        return connection

    def packed(self, Connection connection not None) -> tuple[int, int, bytes]:
        """Return what another process needs to adopt a connection whose CONNECT waits to be decided.

        That is its socket, when its time to CONNECT began (monotonic ms), and the bytes that came, for feed_bytes(). Of
        one with layers the socket is of no use there: see relay().
        """
        assert connection.state == CONNECTING and connection.pauses & PAUSE_PARKED, connection.state
        cdef bytes body = connection.parked_body
        cdef uint32_t length = <uint32_t>len(body)
        cdef bytes data = PyBytes_FromStringAndSize(
            NULL, 1 + varint_length(length) + length + <Py_ssize_t>connection.kept_length)
        cdef uint8_t* at = <uint8_t*>PyBytes_AS_STRING(data)
        at[0] = CONNECT << 4
        at = write_varint(at + 1, length)
        memcpy(at, PyBytes_AS_STRING(body), length)
        if connection.kept_length:
            memcpy(at + length, connection.kept, connection.kept_length)
        return connection.fd, connection.timer.deadline_ms - self.connect_timeout_ms, data

    def relay(self, Connection connection not None, int fd) -> None:
        """Serve as the way to a client whose CONNECT another process has got, and which cannot have its socket.

        What comes from the client goes through its layers and out by `fd`, and what comes by that goes to the client.
        """
        cdef Connection other = self._adopt(fd)
        assert connection.state == CONNECTING, connection.state
        connection.relay_to(other)
        other.relay_to(connection)
        self.connections_made -= 2
        self.relay_ends += 2
        self.relays_made += 1
        self.turn.packets_in[CONNECT] -= 1

    def release(self, Connection connection not None) -> None:
        """Let go of a connection that another process has adopted: it ends there, and was never here.

        Only that its bytes were received stays counted.
        """
        assert connection.state == CONNECTING, connection.state
        # The socket lives on elsewhere, so closing our descriptor would not take it out of the epoll.
        self._unwatch(connection.fd)
        connection.state = ENDED
        self.dispose(connection)
        self.connections_made -= 1
        self.turn.packets_in[CONNECT] -= 1

    def _adopt(self, int fd):
        cdef Connection connection = self.make(fd, self.epoll_fd)
        connection.interest = EPOLLIN
        try:
            self._watch(fd, EPOLLIN)
        except OSError:
            self.dispose(connection)    # its socket with it: nobody would ever hear of it
            raise
        return connection

    def connections_snapshot(self) -> list:
        """The open connections now, by file descriptor."""
        return [<Connection>self.by_fd[fd] for fd in range(self.fd_capacity) if self.by_fd[fd] != NULL]

    # Turning ---------------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Turn until stop()."""
        self.running = True
        while self.running:
            self.turn_once(True)

    def turn_once(self, bint block) -> bool:
        """One turn; returns whether there is more to do at once. Blocks for events only if asked to.

        Raises what went wrong in the router or in the guest: neither can be survived.
        """
        cdef int64_t started_ns
        cdef int count
        count = self.wait(block)
        started_ns = monotonic_ns()
        if self.waited and started_ns - self.mark_ns < WAITED_NS:
            self.waited = False
            self.at_once = count > 0
        if count:
            # Ready since the last turn's look, at most. A wait that blocked, or a driver that waited, is no lag; before
            # the first turn nobody looked.
            note_duration(&self.turn_lags, (started_ns - self.started_ns) // 1000
                          if self.at_once and self.started_ns and (block or self.busy) else 0)
            self.turn.sampled = self.turn_lags.count % SAMPLE_TURNS == 0
        self.started_ns = self.mark_ns = started_ns
        memcpy(self.phase_start_ns, self.phase_ns, sizeof(self.phase_ns))
        self.turn.turning = True
        self.turn.now_ms = started_ns // 1000000
        self.router.ledger.now_ms = self.turn.now_ms
        if self.router.recording or self.mesh is not None:
            self.router.ledger.now_us = realtime_us()
        self.turn.work = self.turn.share_used = 0
        self.began_ns = started_ns
        if self.begun:
            self.begin_shares()
        if self.turn.unread.count:
            self.read_unread()
        if count:
            count = self.read_sockets(count)
        if self.mesh is not None:
            self.hear_peers()
        if self.turn.dirty.count + self.turn.wide.count >= GATHER_OUTPUTS:
            self.gather_wide(block)
        elif count >= GATHER_EVENTS:
            self.gather(GATHER_ROUNDS_WIDE if self.mesh is not None and self.mesh.batching() else GATHER_ROUNDS)
        self.lap(PHASE_INPUT)
        if self.turn.sampled:
            self.turn.sampled = False
            self.sampled_input_ns += self.mark_ns - started_ns
        if self.guest_due:
            self.guest_due = self.guest.tick()
            self.guest_ticks += 1
            self.lap(PHASE_GUEST)
        if self.turn.now_ms >= self.next_tick_ms:
            self.next_tick_ms = self.turn.now_ms + TICK_MS
            self.tick()
            self.lap(PHASE_CONTROL)
        self.end_turn()
        self.turn.turning = False
        PyErr_CheckSignals()
        self.turns += 1
        self.after_turn()
        self.busy = (count > 0 or self.guest_due or self.has_more() or (self.mesh is not None and self.mesh.pending()))
        return self.busy

    cdef int64_t clock_ns(self) noexcept:
        return monotonic_ns()

    cdef int lap(self, int phase) noexcept:
        cdef int64_t now_ns = monotonic_ns()         # clock_ns(), several times a turn
        self.phase_ns[phase] += now_ns - self.mark_ns
        self.mark_ns = now_ns
        return 0

    cdef int wait(self, bint block) except -1:
        """Wait for events; without the GIL, if it blocks. Returns how many there are.

        It looks before it blocks, unless the last one had to wait: then this one most likely has to, too.
        """
        cdef int count = 0
        cdef int timeout_ms
        cdef bint may_block = (
            block and not self.guest_due and self.running and not self.has_more()
            and (self.mesh is None or not self.mesh.pending()))
        if not (may_block and self.waited):
            count = epoll_wait(self.epoll_fd, events, self.sockets_per_turn, 0)
        self.at_once = count > 0
        self.waited = False
        if count == 0 and may_block:
            timeout_ms = TICK_MS if self.needs_ticks() else -1
            with nogil:
                count = epoll_wait(self.epoll_fd, events, self.sockets_per_turn, timeout_ms)
            self.waited = True
        if count < 0:
            if errno != EINTR:
                raise OSError(errno, os.strerror(errno))
            count = 0
        return count

    cdef bint needs_ticks(self) noexcept:
        """Something may fall due though no socket becomes ready."""
        return (self.wheel.armed_count != 0 or self.router.deadline_count != 0 or self.turn.throttled.count != 0
                or self.turn.pushed_back.count != 0 or self.router.ledger.memory_full or self.mesh is not None)

    cdef int read_sockets(self, int count) except -1:
        """Read every ready socket once. Returns how many were clients."""
        cdef int index, fd, clients = 0
        cdef Connection connection
        for index in range(count):
            fd = events[index].data.fd
            if fd < self.fd_capacity and self.by_fd[fd] != NULL:
                connection = <Connection>self.by_fd[fd]
                clients += 1
                if events[index].events & EPOLLOUT:
                    connection.send_pending()
                if events[index].events & (EPOLLIN | EPOLLHUP | EPOLLERR) and not connection.pauses & PAUSE_UNREAD:
                    if self.turn.work >= self.look_at and self.spent():
                        self.put_off(connection)
                    else:
                        self.turn.work += WORK_READ
                        connection.readable(self.shared, self.shared_size)
            elif fd == self.wake_fd:
                self.drain_wake()
            else:
                callback = self.watched.get(fd)
                if callback is not None:         # else one before it in this turn has stopped that
                    callback(fd)
        return clients

    cdef int read_one(self, Connection connection) except -1:
        if connection.fd != NO_SOCKET and (connection.state >= CLOSING or connection.interest & EPOLLIN):
            self.turn.work += WORK_READ
            connection.readable(self.shared, self.shared_size)
        return 0

    cdef int gather(self, int rounds) except -1:
        """Under load, look for more input before the flush: halves the cost of fan-out, would hurt a lone message."""
        cdef int count
        while rounds > 0 and (self.turn.work < self.look_at or not self.spent()):
            rounds -= 1
            count = epoll_wait(self.epoll_fd, events, self.sockets_per_turn, 0)
            if count <= 0:
                return 0
            self.read_sockets(count)
            if self.mesh_due:
                self.hear_peers()
        return 0

    cdef int gather_wide(self, bint may_pause) except -1:
        """Before it sends to many: look for more input, so that each send takes more along.

        Where messages come faster than they are dealt with, few for each receiver and all of QoS 0, a look finds one or
        two, and costs as much as they do: then it sleeps first, once, while the publishers send and the clients read.
        Nobody waits for an acknowledgement then, and with what was there before the turn there is no lone message.
        """
        cdef Turn* turn = &self.turn
        cdef uint64_t answers = (turn.publishes_out[1] + turn.publishes_out[2] + turn.packets_out[PUBACK]
                                 + turn.packets_out[PUBREC] + turn.packets_out[PUBREL] + turn.packets_out[PUBCOMP])
        cdef uint64_t few = self.gathered + GATHER_FEW * <uint64_t>(turn.dirty.count + turn.wide.count)
        if may_pause and self.at_once and turn.publishes_out[0] < few and answers == self.gathered_answers:
            with nogil:
                usleep(GATHER_PAUSE_US)
            self.pauses += 1
            self.gather(1)
        else:
            self.gather(GATHER_ROUNDS_WIDE)
        self.gathered = turn.publishes_out[0]
        self.gathered_answers = answers
        return 0

    cdef int hear_peers(self) except -1:
        """Take what peers have sent, if there is anything, or may be."""
        if self.mesh_due or self.mesh.pending():
            self.mesh_due = False
            if self.mesh.receive():
                self.live_ms = self.turn.now_ms
        return 0

    cdef int drain_wake(self) except -1:
        try:
            os.eventfd_read(self.wake_fd)
        except BlockingIOError:
            pass
        if self.guest is not None:
            self.guest_due = self.guest.due()
        return 0

    cdef int before_deadlines(self, Connection connection) except -1:
        if connection.fd != NO_SOCKET and connection.state < CLOSING and connection.interest & EPOLLIN:
            connection.readable(self.shared, self.shared_size)
        return 0

    cdef int after_turn(self) except -1:
        cdef int64_t spent_us
        self.lap(PHASE_FLUSH)
        spent_us = (self.mark_ns - self.started_ns) // 1000
        self.last_turns[self.turns % TURNS_KEPT] = <uint32_t>spent_us
        note_duration(&self.turn_times, spent_us)
        if spent_us >= SLOW_TURN_US:
            self.controller.slow_turn({"turn_us": spent_us, **{
                f"{name}_us": (self.phase_ns[index] - self.phase_start_ns[index]) // 1000
                for index, name in enumerate(PHASES)}})
        return 0

    def note_guest_lag(self, int64_t lag_ns) -> None:
        """A tick of the guest that was due for so long runs now."""
        note_duration(&self.guest_lags, lag_ns // 1000)

    def recent_turns_us(self) -> list[int]:
        """Durations of the last turns, at most 1,000, the oldest first, in microseconds."""
        cdef uint64_t number, first = self.turns - TURNS_KEPT + 1 if self.turns >= TURNS_KEPT else 1
        return [self.last_turns[number % TURNS_KEPT] for number in range(first, self.turns + 1)]

    def turn_histogram(self) -> list[int]:
        """Turns by duration: entry i counts turns of 2**i to 2**(i+1) microseconds, entry 0 all shorter ones."""
        return self.durations()["turns"][3]
