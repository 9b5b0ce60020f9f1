"""What the subscription tree holds: receivers of messages."""

from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from router.core.message cimport Message

cdef enum:
    QOS_MASK = 0x03              # granted QoS, in the low bits of subscription options as on the wire (5.0, 3.8.3.1)
    NO_LOCAL = 0x04
    RETAIN_AS_PUBLISHED = 0x08
    RETAIN_HANDLING_MASK = 0x30  # 0x00 send, 0x10 send if new, 0x20 do not send
    RETAIN_HANDLING_SHIFT = 4
    NARROWED = 0x80              # of the topics that match those that the receiver may read (router.core.rights)
    PASSING = 0x40               # a peer's interest that ends with its process: only ephemeral sessions there want it

cdef enum Verdict:               # what became of one delivery
    DELIVERED = 0                # it is in the receiver's output, or in its in-flight window
    QUEUED = 1                   # it waits in the session's queue
    DROPPED = 2                  # it is gone, counted under its reason by whoever dropped it
    TOO_LARGE = 3                # the same, because this receiver takes nothing so large; another one may


cdef enum:                       # what Receiver.refuses() says beside the reasons
    TAKES = -1                   # there is room
    DISPLACES = -2               # there is none, and it is taken all the same: what is older goes, or its publisher waits


cdef struct Entry:
    # One end of a subscription. Entries of a node and entries of a receiver name each other by index, so that either
    # side removes in O(1) by moving its last entry into the hole and mending that entry's partner.
    void* partner                # node side: Receiver; receiver side: the tree's Node or SharedGroup
    uint32_t index               # position of the partner's entry
    uint32_t identifier          # subscription identifier, 0: none
    uint8_t options              # QOS_MASK | NO_LOCAL | RETAIN_AS_PUBLISHED | RETAIN_HANDLING_MASK | NARROWED
    uint8_t shared               # receiver side: partner is a SharedGroup
    uint16_t weight              # in a group: how many members stand behind it; 1, of a peer those that are online there


cdef class Receiver:
    # The tree's bookkeeping, touched by router.matching.subscription_tree alone.
    cdef Entry* entries          # subscriptions of this receiver; NULL while it has none
    cdef readonly uint32_t entry_count
    cdef uint32_t entry_capacity
    cdef void* tree              # the SubscriptionTree that it is in; NULL while it has no subscription
    cdef uint32_t match_stamp    # the match that last met this receiver (overlapping subscriptions are one copy)
    cdef uint32_t match_index    # ... and its place in that match's result

    cdef uint32_t waiting_records    # publishes of this receiver whose acknowledgement waits for a record
    cdef uint32_t promised           # QoS 1/2 copies for it that wait for their records
    cdef uint64_t promised_bytes
    cdef readonly bint durable   # outlives its connection: what it is owed rests on a record
    cdef readonly bint gone      # its session ended: nothing reaches it any more
    cdef readonly bint peer      # it stands for another router: what it is sent goes to receivers there

    cdef readonly object principal   # whom rights are asked about, see Rights.give(); None: it may read everything
    cdef uint32_t rights_serial      # of this principal's answers

    # Set by its owner, the same on every run: a hash of the client identifier, for shared subscriptions that hash.
    cdef uint64_t key

    # Deliver one copy. `qos` is the granted one (never above the published), `retain` the flag as it goes out, ids the
    # ready-encoded Subscription Identifier properties (0x0B + varint, repeated; borrowed for the call), `group` the
    # SharedGroup (borrowed) it was picked from or NULL. The message may be borrowed: keep() before storing.
    cdef Verdict deliver(self, Message message, uint8_t qos, bint retain, const uint8_t* ids, uint32_t ids_length,
                         void* group) except? DROPPED
    # Why a QoS 1/2 message would not be taken, a DROP_... of router.ledger; or TAKES or DISPLACES. Changes nothing.
    cdef int refuses(self, Message message) except -3
    # The message is dropped, for the reason that refuses() gave.
    cdef int refuse(self, Message message, int reason) except -1
    # refuses() said DISPLACES, and the message is about to be recorded, or delivered: whether its publisher is to wait.
    cdef bint push_back(self, Message message, uint8_t qos) except -1
    cdef bint online(self) noexcept        # has a live connection
    cdef bint has_room(self) noexcept      # online and a QoS 1/2 message would be sent at once, not queued


# Set by router.matching.subscription_tree: a receiver that is freed with subscriptions leaves its tree first. That is the net; its
# owner takes it out (remove_receiver) when its session ends.
cdef void (*leave_tree)(Receiver receiver) noexcept

# Arrays of entries, of a node, a group or a receiver: 1, then twice as many, halved when three quarters are empty.
cdef int reserve(Entry** entries, uint32_t count, uint32_t* capacity) except -1     # room for one more
cdef void give_back(Entry** entries, uint32_t count, uint32_t* capacity) noexcept
