"""Replays: what is stored in the log is given to those who subscribed to $replay, and what is logged from then on."""

from broker.reactor.connection cimport Connection
from broker.reactor.protocol cimport Protocol
from broker.reactor.replay_seam cimport ReplaySeam
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from router.core.message cimport Message
from router.router cimport Router
from router.sessions.session cimport Session
from router.log.tail cimport MergedTail

cdef enum:
    TURN_BYTES = 262144          # of the log that all replays together look at in one turn
    TURN_BYTES_BUSY = 65536      # ... in one in which clients published
    TURN_NS = 2000000            # ... and for how long
    TURN_NS_BUSY = 500000
    SLICE_BYTES = 65536          # of one replay, before it is the next one's turn
    WINDOWS_MAX = 64             # replays that wait for their turn and keep what they have read ahead
    NOTE_MS = 1000               # between two records of how far a replay has come, if nothing else is recorded
    NOTE_RECORDS = 100000        # ... or after so many records that were looked at
    RETRY_MS = 1000              # after an error of the disk
    EXTRAS_BYTES = 200           # beside the position
    TIME_BYTES = 27              # of a time as text
    POSITION_BYTES = 15          # at most, for each log: two numbers of at most 32 and 64 bits

cdef enum ReplayState:
    REPLAY_READY = 0             # there may be something to send
    REPLAY_BLOCKED = 1           # until its client takes more
    REPLAY_FOLLOWING = 2         # it has given all there is, until the log grows
    REPLAY_FAILED = 3            # the disk failed: until RETRY_MS have passed
    REPLAY_ENDED = 4


cdef class Replay:
    # One ReplaySubscription of a session that is connected.
    cdef object subscription
    cdef Connection connection
    cdef Session session
    cdef MergedTail tail                 # None until it is known how far the logs reach
    cdef uint8_t state
    cdef uint8_t qos                     # granted, 0 or 1
    cdef bint no_local
    cdef bint retain_as_published
    cdef uint8_t[5] identifiers          # ready-encoded Subscription Identifier
    cdef uint32_t identifiers_length
    cdef bint given                      # messages, since it was recorded how far it has come
    cdef uint64_t noted                  # progress() of the tail when it was recorded how far it has come
    cdef int64_t noted_ms
    cdef uint64_t missing                # records that were gone, to be told with the next message


cdef class Replays(ReplaySeam):
    cdef Router router
    cdef readonly object logs            # broker.replay.log_sources.ReplayLogs
    cdef Message message                 # the one borrowed message
    cdef dict of_sessions                # Session -> {topic filter: Replay}
    cdef object ready                    # deque of Replay, in turn
    cdef list following                  # Replay
    cdef list failed                     # Replay
    cdef list beginning                  # Replay: they have no tail yet
    cdef uint64_t readable               # logs.readable when those that follow have looked
    cdef int64_t failed_ms
    cdef uint8_t* content                # of a position's token, and
    cdef uint8_t* room                   # of what a message is given beside its own properties
    cdef readonly uint64_t messages      # given, since the start
    cdef readonly uint64_t gaps          # how often a replay found that records were gone
    cdef readonly uint64_t records_missing   # ... and how many records those were

    cdef ReplayState slice(self, Replay replay, int64_t* budget) except? REPLAY_ENDED
    cdef int deliver(self, Replay replay) except -1
    cdef int begin_replays(self) except -1
    cdef uint32_t extras(self, Replay replay) noexcept
    cdef int note(self, Replay replay, bint at_once) except -1
    cdef int take_gaps(self, Replay replay) except -1


# The content has room for six bytes more, and the token takes four bytes for three of it, and one.
cdef uint32_t write_token(uint8_t* to, uint8_t* content, uint32_t length) noexcept nogil
