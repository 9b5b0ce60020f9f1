"""Replays: what is stored in the log is given to those who subscribed to $replay, and what is logged from then on."""

from broker.connection cimport Connection
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from router.message cimport Message
from router.router cimport Router
from router.session cimport Session
from router.tail cimport LogTail

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
    EXTRAS_BYTES_MAX = 160

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
    cdef LogTail tail
    cdef uint8_t state
    cdef uint8_t qos                     # granted, 0 or 1
    cdef bint no_local
    cdef bint retain_as_published
    cdef uint8_t[5] identifiers          # ready-encoded Subscription Identifier
    cdef uint32_t identifiers_length
    cdef bint given                      # messages, since it was recorded how far it has come
    cdef uint64_t noted_number           # how far the record says that it has come
    cdef int64_t noted_ms
    cdef uint64_t missing                # records that were gone, to be told with the next message


cdef class Replays:
    cdef Router router
    cdef object windows                  # router.windows.LogWindows
    cdef Message message                 # the one borrowed message
    cdef dict of_sessions                # Session -> {topic filter: Replay}
    cdef object ready                    # deque of Replay, in turn
    cdef list following                  # Replay
    cdef list failed                     # Replay
    cdef uint64_t readable               # up to which record those that follow have looked
    cdef int64_t failed_ms
    cdef readonly uint32_t worker
    cdef readonly uint64_t messages      # given, since the start
    cdef readonly uint64_t gaps          # how often a replay found that records were gone
    cdef readonly uint64_t records_missing   # ... and how many records those were

    cdef readonly bint more              # there is something to do at once
    cdef int run(self, bint busy) except -1        # one turn's worth
    cdef ReplayState slice(self, Replay replay, int64_t* budget) except? REPLAY_ENDED
    cdef int deliver(self, Replay replay) except -1
    cdef uint32_t extras(self, Replay replay, uint8_t* to) noexcept
    cdef int note(self, Replay replay, bint at_once) except -1
    cdef int take_gap(self, Replay replay) except -1


cdef uint32_t write_position(uint8_t* to, uint32_t worker, uint64_t number) noexcept nogil    # at most 28 bytes
