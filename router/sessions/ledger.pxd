"""What the sessions of one router share: the time, the limits they go by, and the counts of what was dropped."""

from libc.stdint cimport int64_t, uint32_t, uint64_t
from router.core.message cimport Message
from router.sessions.losses cimport Losses
from router.sessions.queue_policy cimport OverflowRules
from router.log.record_buffer cimport RecordBuffer

cdef enum:                       # why a message did not reach a receiver; names in ledger.DROP_REASONS
    DROP_OFFLINE = 0             # QoS 0 for a session without a connection
    DROP_QUEUE_FULL = 1          # the session's queue is at its limit in messages or bytes, and does not take another
    DROP_EXPIRED = 2             # message expiry interval [MQTT-3.3.2-5]
    DROP_TOO_LARGE = 3           # over the receiver's Maximum Packet Size [MQTT-3.1.2-24]
    DROP_OUTPUT_FULL = 4         # QoS 0 while the connection's output is over its limit
    DROP_REFUSED = 5             # the receiver answered 0x80 or above
    DROP_SESSION_ENDED = 6       # owed to a session that ended
    DROP_NO_MEMBER = 7           # a shared subscription without a member to take it
    DROP_NOT_AUTHORIZED = 8      # refused by the ACL when published
    DROP_RETAINED_FULL = 9       # to be retained, but there is no room for one more
    DROP_MEMORY = 10             # would have been queued, but the worker is at its limit of memory
    DROP_INBOX_FULL = 11         # the inbox of an in-process client is at its limit
    DROP_UNREADABLE = 12         # it waited in the log, and its bytes there are lost
    DROP_LOG_UNAVAILABLE = 13    # would have to be logged, and the disk takes no more
    DROP_QUEUE_OLDEST = 14       # it had waited longest in a queue that was at its limit
    DROP_PEER_AWAY = 15          # QoS 0 for a peer that does not take it now
    DROP_PEER_GONE = 16          # owed to a peer that was away for too long, or is owed too much
    DROP_PAYLOAD_TOO_LARGE = 17  # its publisher may not send as large a payload
    DROP_OUTSIDE_MOUNT = 18      # its topic has no name under the mount point of the receiver's listener
    DROP_REASON_COUNT = 19


cdef class SessionLimits:                # what a session may have; many have the same ones
    cdef public uint32_t queue_messages_max
    cdef public uint64_t queue_bytes_max
    cdef public uint32_t subscriptions_max   # 0: as the host has it for all


cdef class Ledger:
    cdef public int64_t now_ms           # monotonic ms; set by the host at the start of every turn
    cdef public int64_t now_us           # the same moment, µs since 1970; moved only while there are records or peers
    cdef public int64_t stamp_us         # of the newest retained message: a hybrid logical clock (docs/glossary.md, stamp)
    cdef public RecordBuffer records     # what the log must hold and has not got yet; None: nothing rests on a record
    cdef public uint32_t incarnation     # of this worker, in the ids of its messages
    cdef public object bodies            # fetch(record number, now_us, now_ms): reads a message back from the log; None without one
    cdef public object refusals          # hears of publishes that were refused (broker.control.tracing.Taps); None: nobody does
    cdef public list starved             # sessions that wait for a message which cannot be read back yet
    cdef public SessionLimits session_limits   # of a session of which nothing else is said
    cdef public OverflowRules overflow   # what a full queue does
    cdef public uint32_t gap_min         # numbers of dropped deliveries that are given again at once, at least
    cdef public uint32_t push_back_ms    # how long a publisher waits for a queue at most
    cdef public int inflight_max         # outgoing QoS 1/2 under way per session, also below a larger Receive Maximum
    cdef public bint queue_qos0          # QoS 0 waits for a session that is away, as QoS 1 and 2 do
    cdef public bint memory_full         # at the limit of memory: nothing more is stored
    cdef public uint64_t retained_messages_max
    cdef public uint64_t retained_bytes_max
    cdef uint64_t[DROP_REASON_COUNT] dropped_messages
    cdef readonly Losses losses          # which clients lose messages now
    cdef readonly uint64_t queued_messages   # waiting in queues, over all sessions
    cdef readonly uint64_t queued_bytes      # topic names, properties and payloads of those
    cdef readonly uint64_t inflight_messages # QoS 1/2 sent and not complete, over all sessions
    cdef public uint32_t peer_messages_max   # owed to one peer at most
    cdef public uint64_t peer_bytes_max
    cdef public uint64_t archive_missed      # QoS 0 messages of the archive that the log did not take, since the start
    cdef readonly uint64_t sessions_expired  # sessions whose session expiry interval passed, since the start
    cdef readonly uint32_t sessions_online   # sessions with a connection
    cdef readonly uint32_t sessions_online_max
    cdef public uint64_t durable             # the newest record that is: as the router was last told
    cdef Message fetch(self, uint64_t record)     # None: not yet; raises LookupError: lost
    # Whether a queue with so many messages and bytes takes another one: TAKES, DISPLACES or a DROP_..., as Receiver.refuses().
    cdef int refuses(self, Message message, uint64_t messages, uint64_t held_bytes, SessionLimits limits) except -3
    cdef int policy_of(self, Message message) except -1      # an Overflow
