"""What administration looks up in compiled state, in slices: no call does more than its `limit` says.

Nothing here is on the message path, and nothing here changes what it looks at.
"""

from broker.reactor.connection cimport Connection
from broker.reactor.turn cimport Hub
from broker.reactor.protocol cimport OPEN, PAUSE_OUTPUT_FULL, PAUSE_PUSHED_BACK, PAUSE_THROTTLED, PAUSE_UNSETTLED
from cpython.bytes cimport PyBytes_AS_STRING
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from router.matching.filter_trie cimport Node
from router.core.message cimport Message
from router.sessions.outgoing cimport DELIVERY_FREE, DELIVERY_QUEUED, Delivery, Outgoing
from router.core.receiver cimport PASSING, Entry, Receiver
from router.matching.route_cache cimport Route
from router.sessions.session cimport Session
from router.matching.shared_groups cimport SharedGroup
from router.matching.subscription_tree cimport SubscriptionTree

from router.sessions.ledger import DROP_REASONS
from router.matching.shared_groups import STRATEGIES

STATES = ("free", "queued", "sent", "released")
STRATEGY_NAMES = {number: name for name, number in STRATEGIES.items()}
PASSING_INTEREST = PASSING           # of a peer's subscription options: only ephemeral sessions there want it

cdef enum:
    IN_FLIGHT_LOOKED_AT = 1024
    NOTEWORTHY = PAUSE_OUTPUT_FULL | PAUSE_PUSHED_BACK | PAUSE_THROTTLED | PAUSE_UNSETTLED     # others end with the turn


def subscriptions_below(SubscriptionTree tree not None, Receiver receiver not None, end: int, limit: int) -> tuple:
    """Return up to `limit` subscriptions of a receiver as (topic filter, options, identifier), and where to go on.

    They come from the entry before `end` down to the first, so that none is passed over when another one ends meanwhile
    and the last takes its place; one may come twice then. Where to go on is 0 at the end.
    """
    cdef uint32_t index = min(<uint32_t>min(end, 0xFFFFFFFF), receiver.entry_count)
    cdef uint32_t left = limit
    cdef list found = []
    if receiver.tree != <void*>tree:
        return found, 0
    while index and left:
        index -= 1
        left -= 1
        append_entry(found, tree.filter_of(&receiver.entries[index]), &receiver.entries[index])
    return found, index


cdef int append_entry(list found, bytes topic_filter, Entry* entry) except -1:
    found.append((topic_filter, entry.options, entry.identifier))
    return 0


cdef Entry* entry_for(Receiver receiver, void* partner, Entry* others, uint32_t count) noexcept:
    """Return a receiver's entry for a node or a group, NULL if it has none; looks through the shorter side."""
    cdef uint32_t index
    if receiver.entry_count <= count:
        for index in range(receiver.entry_count):
            if receiver.entries[index].partner == partner:
                return &receiver.entries[index]
    else:
        for index in range(count):
            if others[index].partner == <void*>receiver:
                return &receiver.entries[others[index].index]
    return NULL


def matching(SubscriptionTree tree not None, bytes topic_name not None, Receiver receiver not None) -> list:
    """Return a receiver's subscriptions that match a topic name: (topic filter, options, identifier), $share/ too."""
    cdef uint32_t index
    cdef Node* node
    cdef Entry* entry
    cdef void* group
    cdef list found = []
    if receiver.tree != <void*>tree:
        return found
    tree.filters.walk(<const uint8_t*>PyBytes_AS_STRING(topic_name), <uint32_t>len(topic_name))
    for index in range(tree.filters.matched_count):
        node = tree.filters.matched[index]
        entry = entry_for(receiver, node, node.entries, node.entry_count)
        if entry != NULL:
            append_entry(found, tree.filter_of(entry), entry)
        group = node.groups
        while group != NULL:
            entry = entry_for(receiver, group, (<SharedGroup>group).members, (<SharedGroup>group).member_count)
            if entry != NULL:
                append_entry(found, tree.filter_of(entry), entry)
            group = (<SharedGroup>group).next
    return found


def filters_of(SubscriptionTree tree not None, bytes topic_name not None) -> list:
    """Return the topic filters that match a topic name, each with its number of subscribers; $share/ too."""
    cdef uint32_t index
    cdef Node* node
    cdef void* group
    cdef list found = []
    tree.filters.walk(<const uint8_t*>PyBytes_AS_STRING(topic_name), <uint32_t>len(topic_name))
    for index in range(tree.filters.matched_count):
        node = tree.filters.matched[index]
        if node.entry_count:
            found.append((tree.filters.text(node), node.entry_count))
        group = node.groups
        while group != NULL:
            found.append((b"$share/" + (<SharedGroup>group).name, (<SharedGroup>group).member_count))
            group = (<SharedGroup>group).next
    return found


def groups_of(SubscriptionTree tree not None, bytes topic_name not None) -> tuple:
    """Return the shared groups that a topic name matches, and whether it is archived."""
    cdef uint32_t index
    cdef void* group
    cdef list found = []
    tree.filters.walk(<const uint8_t*>PyBytes_AS_STRING(topic_name), <uint32_t>len(topic_name))
    for index in range(tree.filters.matched_count):
        group = tree.filters.matched[index].groups
        while group != NULL:
            found.append(<SharedGroup>group)
            group = (<SharedGroup>group).next
    return found, tree.archive is not None and tree.archive.matches(topic_name)


def receivers_of(SubscriptionTree tree not None, bytes topic_name not None) -> tuple:
    """Return whom a publish on a topic is for: how many receivers that are no peers, and the names of the shared groups."""
    cdef Route route = tree.route(<const uint8_t*>PyBytes_AS_STRING(topic_name), <uint32_t>len(topic_name))
    cdef uint32_t index, count = 0
    for index in range(route.target_count):
        count += not (<Receiver>route.targets[index].receiver).peer
    return count, [(<SharedGroup>route.groups[index]).name for index in range(route.group_count)]


def subscribers_below(SubscriptionTree tree not None, bytes topic_filter not None, end: int, limit: int) -> tuple:
    """Return up to `limit` receivers that subscribe to exactly this topic filter, and where to go on.

    The filter may be $share/name/filter. Order and meaning of `end` are those of subscriptions_below(). Some 10 ns each.
    """
    cdef SharedGroup group
    cdef Node* node
    cdef Entry* entries
    cdef uint32_t index, count
    cdef uint32_t left = limit
    cdef list found = []
    if topic_filter.startswith(b"$share/"):
        group = tree.group(topic_filter[7:])
        if group is None:
            return found, 0
        entries, count = group.members, group.member_count
    else:
        node = tree.filters.find(topic_filter)
        if node == NULL:
            return found, 0
        entries, count = node.entries, node.entry_count
    index = min(<uint32_t>min(end, 0xFFFFFFFF), count)
    while index and left:
        index -= 1
        left -= 1
        found.append(<Receiver>entries[index].partner)
    return found, index


def subscription_to(SubscriptionTree tree not None, Receiver receiver not None, bytes topic_filter not None) -> tuple | None:
    """Return (options, identifier) of a receiver's subscription to exactly this topic filter, None if it has none."""
    cdef uint32_t index = tree.entry_of(receiver, topic_filter)
    return None if index == 0xFFFFFFFF else (receiver.entries[index].options, receiver.entries[index].identifier)


def group_picks(SharedGroup group not None, Receiver publisher, Message message not None, limit: int,
                local: bool = False) -> dict:
    """Return the members of a shared group and which would get this message now; asking changes nothing.

    With `local` it is chosen among the members here, as if another worker had picked this one. Members beyond `limit`
    are only counted. With the random strategy the next message may find another member.
    """
    cdef uint32_t next_member = group.next_member
    cdef uint64_t random_state = group.random_state[0] if group.random_state != NULL else 0
    cdef uint64_t key = publisher.key if publisher is not None else 0
    cdef uint32_t stayed = group.stayed
    cdef uint32_t index
    cdef int picked = group.choose(key, None, message, local)
    group.next_member = next_member
    group.stayed = stayed
    if group.random_state != NULL:
        group.random_state[0] = random_state
    return {
        "name": group.name, "count": group.member_count, "strategy": STRATEGY_NAMES[group.strategy],
        "picked": <Receiver>group.members[picked].partner if picked >= 0 else None,
        "picked_options": group.members[picked].options if picked >= 0 else 0,
        "members": [<Receiver>group.members[index].partner for index in range(min(limit, group.member_count))]}


def outcome(Receiver receiver not None, Message message not None, qos: int) -> str:
    """Return what would become of a message for a receiver now: "sent", "queued", or the reason of its drop."""
    cdef int reason
    cdef Session session
    if qos == 0:
        if receiver.online():
            return "sent"
        session = receiver if isinstance(receiver, Session) else None
        if session is None or not session.durable or not session.ledger.queue_qos0:
            return "offline"
    elif receiver.has_room():
        return "sent"
    reason = receiver.refuses(message)
    return DROP_REASONS[reason] if reason >= 0 else "queued"


cdef uint64_t in_flight_of(Outgoing outgoing) noexcept:
    """Count what was sent and is not complete, among the oldest thousand."""
    cdef uint64_t number
    cdef uint64_t count = 0
    if outgoing.ring == NULL:
        return 0
    for number in range(outgoing.oldest_open,
                        min(outgoing.next_number, outgoing.oldest_open + <uint64_t>IN_FLIGHT_LOOKED_AT)):
        count += outgoing.slot(number).state != DELIVERY_FREE and outgoing.slot(number).state != DELIVERY_QUEUED
    return count


def queue_of(Session session not None) -> dict:
    """Return how much a session is owed: messages and bytes that wait, messages in flight, and what may still be sent."""
    cdef Outgoing outgoing = session.outgoing
    if outgoing is None:
        return {"queued": 0, "queued_bytes": 0, "in_flight": 0,
                "send_quota": session.receive_maximum if session.sink is not None else 0}
    return {"queued": outgoing.queued_count, "queued_bytes": outgoing.queued_bytes,
            "in_flight": in_flight_of(outgoing),
            "send_quota": outgoing.send_quota if session.sink is not None else 0}


def deliveries(Session session not None, start: int, limit: int) -> tuple:
    """Return what a session is owed from delivery number `start` on, and where to go on (0: that was all).

    Each is (number, packet identifier, state, qos, retain, record, size, name of the shared group or b"", topic name or
    None where only the log knows it). Looks at up to `limit` numbers.
    """
    cdef Outgoing outgoing = session.outgoing
    cdef Delivery* delivery
    cdef uint64_t number, end
    cdef list found = []
    if outgoing is None or outgoing.ring == NULL:
        return found, 0
    number = max(<uint64_t>start, outgoing.oldest_open)
    end = min(outgoing.end_number, number + <uint64_t>limit)
    while number < end:
        delivery = outgoing.slot(number)
        if delivery.state != DELIVERY_FREE:
            found.append((
                number, outgoing.identifier_of(number), STATES[delivery.state], delivery.qos, bool(delivery.retain),
                delivery.record, delivery.size,
                (<SharedGroup>delivery.group).name if delivery.group != NULL else b"",
                (<Message>delivery.message).topic_name if delivery.message != NULL else None))
        number += 1
    return found, number if number < outgoing.end_number else 0


def slow_connections(Hub hub not None, start: int, limit: int, found: list) -> int:
    """Append (backlog in bytes, connection) of clients that are behind or paused; returns where to go on.

    Looks at `limit` descriptors from `start` on, some 10 ns each; 0: those were all.
    """
    cdef int fd = start
    cdef int end = min(hub.fd_capacity, start + <int>limit)
    cdef Connection connection
    cdef uint64_t behind
    while fd < end:
        if hub.by_fd[fd] != NULL:
            connection = <Connection>hub.by_fd[fd]
            if connection.state == OPEN:
                behind = connection.out.pending
                if connection.session.outgoing is not None:
                    behind += connection.session.outgoing.queued_bytes
                if behind or connection.pauses & NOTEWORTHY:
                    found.append((behind, connection))
        fd += 1
    return fd if fd < hub.fd_capacity else 0


def aliases_of(Connection connection not None) -> tuple:
    """Return the topic aliases in use on a connection: alias -> topic name, those of the client's, then ours."""
    incoming = {alias: topic for alias, topic in enumerate(connection.aliases_in or ()) if topic is not None}
    return incoming, {alias: topic for topic, alias in (connection.aliases_out or {}).items()}
