"""What goes from a queue that is full, and the numbers that it leaves behind."""

from libc.string cimport memset
from router.sessions.ledger cimport DROP_QUEUE_OLDEST
from router.core.message cimport message_size
from router.sessions.outgoing cimport DELIVERY_FREE, DELIVERY_QUEUED, Delivery
from router.sessions.queue_policy cimport DROP_OLDEST, PUSH_BACK
from router.sessions.sink cimport count_drop


cdef int make_room(Outgoing outgoing, Sink sink, bint durable, Message message) except -1:
    """The queue is over its limits by a message that was let in: what has waited longest goes, but in flight nothing.

    Without a log that is at once; with one, when the message has its record. A message that its policy would not have
    let in is one whose limits were asked before a crash, or before others came.
    """
    cdef int policy = outgoing.ledger.policy_of(message)
    cdef bint logged = durable and outgoing.ledger.records is not None
    if policy != DROP_OLDEST and policy != PUSH_BACK:
        return 0
    if outgoing.push_back_until_ms <= outgoing.ledger.now_ms:
        outgoing.pushed_count = 0
        outgoing.pushed_bytes = 0
    while outgoing.queued_count > 1 and (
            outgoing.queued_count > <uint64_t>outgoing.limits.queue_messages_max + outgoing.pushed_count
            or (outgoing.queued_bytes > outgoing.pushed_bytes
                and outgoing.queued_bytes - outgoing.pushed_bytes > outgoing.limits.queue_bytes_max)):
        drop_oldest(outgoing, sink, logged)
    return 0


cdef int drop_oldest(Outgoing outgoing, Sink sink, bint logged) except -1:
    """Drop what has waited longest, QoS 0 first."""
    cdef uint64_t number, first
    cdef bint all_resent = outgoing.resend_number == outgoing.next_number
    cdef Message message
    count_drop(outgoing.ledger, sink, DROP_QUEUE_OLDEST)
    outgoing.lose(DROP_QUEUE_OLDEST)
    if outgoing.waiting_qos0 is not None:
        message, _, _ = outgoing.waiting_qos0.popleft()
        if outgoing.doubted is not None and outgoing.doubted.qos0:
            outgoing.doubted.qos0 -= 1
        if not outgoing.waiting_qos0:
            outgoing.waiting_qos0 = None
        return outgoing._count_out(message_size(message))
    outgoing._pass_free()
    number = outgoing.next_number
    assert outgoing.slot(number).state == DELIVERY_QUEUED, number
    outgoing._unqueue(outgoing.slot(number))
    if logged:
        outgoing.note_drop(number, DROP_QUEUE_OLDEST)
    outgoing.free_slot(number)
    outgoing._pass_free()
    if all_resent:
        outgoing.resend_number = outgoing.next_number
    outgoing.dropped_count += 1
    if outgoing.dropped_count >= max(outgoing.queued_count, outgoing.ledger.gap_min):
        outgoing.dropped_count = 0
        first = gap_start(outgoing)
        if outgoing.next_number - first >= outgoing.ledger.gap_min:
            if logged:
                outgoing.ledger.records.add("renumbered", outgoing.ledger.now_us, outgoing.client_identifier, first,
                                            outgoing.next_number - first)
            close_gap(outgoing, first, outgoing.next_number - first)
    if logged:
        outgoing.drop_record = outgoing.ledger.records.last_number
    return 0


cdef uint64_t gap_start(Outgoing outgoing) noexcept:
    """Return the first of the numbers right before next_number that no delivery has, within one shift."""
    cdef uint64_t number = outgoing.next_number
    cdef uint64_t lowest = outgoing.oldest_open
    if outgoing.identifiers is not None:
        lowest = max(lowest, outgoing.identifiers.last_first_number())
    while number > lowest and outgoing.slot(number - 1).state == DELIVERY_FREE:
        number -= 1
    return number


cdef int close_gap(Outgoing outgoing, uint64_t first_number, uint64_t amount) except -1:
    """Give so many numbers again, from a number on, that no delivery has: what waits behind them moves up.

    Else one delivery that is never acknowledged would pin a ring that grows with everything dropped behind it.
    """
    cdef uint64_t number
    cdef uint64_t end = outgoing.end_number
    if outgoing.ring != NULL:
        for number in range(max(first_number + amount, outgoing.oldest_open), end):
            outgoing.slot(number - amount)[0] = outgoing.slot(number)[0]
        for number in range(max(end - amount, outgoing.oldest_open), end):
            memset(outgoing.slot(number), 0, sizeof(Delivery))       # moved, or of the gap
    outgoing.oldest_open = moved_up(outgoing.oldest_open, first_number, amount)
    if outgoing.doubted is not None:
        outgoing.doubted.below = moved_up(outgoing.doubted.below, first_number, amount)
    outgoing.resend_number = moved_up(outgoing.resend_number, first_number, amount)
    outgoing.next_number = moved_up(outgoing.next_number, first_number, amount)
    outgoing.end_number -= amount
    return 0


cdef inline uint64_t moved_up(uint64_t number, uint64_t first_number, uint64_t amount) noexcept:
    if number <= first_number:
        return number
    return number - amount if number >= first_number + amount else first_number


cdef int assume_renumbered(Outgoing outgoing, uint64_t first_number, uint64_t amount) except -1:
    """close_gap(), where a hole in the log may have left something in the gap."""
    cdef uint64_t number
    if (first_number < outgoing.oldest_open or amount > outgoing.end_number
            or first_number > outgoing.end_number - amount):
        return 0
    for number in range(first_number, first_number + amount):
        if outgoing.ring != NULL and outgoing.slot(number).state != DELIVERY_FREE:
            outgoing.assume_dropped(number)
    return close_gap(outgoing, first_number, amount)
