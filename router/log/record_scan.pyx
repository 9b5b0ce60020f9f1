"""Passing over the records of a log quickly: only what is wanted is decoded, and what is there is counted."""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING
from libc.string cimport memset
from router.log.record_cursor cimport RECORD_ACCEPTED, MessageFields, decode_message, fields_of

from router.log.record_kinds import BY_NUMBER, RecordError

TIME_MIN = -2**63
TIME_MAX = 2**63 - 1


cdef bint filter_matches(const uint8_t* topic_filter, size_t filter_length,
                         const uint8_t* topic, size_t topic_length) noexcept nogil:
    """Return whether a valid topic filter, without $share, matches a topic name."""
    cdef size_t at = 0
    cdef size_t in_topic = 0
    # A leading wildcard does not reach into $SYS and friends [MQTT-4.7.2-1].
    if topic[0] == 0x24 and topic_filter[0] != 0x24:
        return False
    while True:
        # Here a level begins in both.
        if at < filter_length and topic_filter[at] == 0x23:                  # '#', the last one
            return True
        if at < filter_length and topic_filter[at] == 0x2B:                  # '+', alone in its level
            at += 1
            while in_topic < topic_length and topic[in_topic] != 0x2F:
                in_topic += 1
        else:
            while at < filter_length and topic_filter[at] != 0x2F:
                if in_topic == topic_length or topic[in_topic] != topic_filter[at]:
                    return False
                at += 1
                in_topic += 1
        if in_topic < topic_length and topic[in_topic] != 0x2F:
            return False
        if at == filter_length:
            return in_topic == topic_length
        if in_topic == topic_length:
            # sport/# matches sport too (section 4.7.1.2).
            return at + 2 == filter_length and topic_filter[at + 1] == 0x23
        at += 1
        in_topic += 1


def matches(bytes topic_filter not None, bytes topic_name not None) -> bool:
    """Return whether a topic filter matches a topic name, as topics.matches() does, without an allocation.

    Args:
        topic_filter: checked by check_topic_filter, without $share prefix.
        topic_name: 1..65535 bytes of UTF-8, no wildcards.
    """
    assert topic_filter and topic_name
    return filter_matches(<const uint8_t*>PyBytes_AS_STRING(topic_filter), len(topic_filter),
                          <const uint8_t*>PyBytes_AS_STRING(topic_name), len(topic_name))


@cython.final
cdef class Scan:
    """What a caller wants of a log.

    Args:
        topic_filter: only messages that it matches; checked, without $share. None: records without a topic too.
        accepted_only: only messages that this log was the first to have.
        since_us, until_us: only records of this time or later, and before that time; µs since 1970.
    """

    def __init__(self, bytes topic_filter=None, *, bint accepted_only=True, since_us: int = TIME_MIN,
                 until_us: int = TIME_MAX):
        assert topic_filter is None or topic_filter
        self.topic_filter = topic_filter
        self.accepted_only = accepted_only
        self.since_us = since_us
        self.until_us = until_us

    def next(self, Cursor cursor not None) -> bool:
        """Run a cursor to the next record that is wanted; False at its end. Cost: no object for what is not wanted."""
        cdef MessageFields fields
        while cursor.next():
            if self.accepted_only and cursor.kind != RECORD_ACCEPTED:
                continue
            if not self.since_us <= cursor.time_us < self.until_us:
                continue
            if self.topic_filter is None:
                return True
            if decode_message(cursor.kind, cursor.body, cursor.body_length, &fields):
                continue                         # it has no topic
            if filter_matches(<const uint8_t*>PyBytes_AS_STRING(self.topic_filter), len(self.topic_filter),
                              fields.topic, fields.topic_length):
                return True
        return False


@cython.final
cdef class Census:
    """How many records of which kind there are, from when to when, and which of them are not well-formed."""

    def __init__(self):
        memset(self.kinds, 0, sizeof(self.kinds))
        self.problems = []

    def count(self, Cursor cursor not None) -> None:
        """Run a cursor to its end and count what it passes."""
        cdef MessageFields fields
        while cursor.next():
            if self.records == 0 or cursor.time_us < self.first_us:
                self.first_us = cursor.time_us
            if self.records == 0 or cursor.time_us > self.last_us:
                self.last_us = cursor.time_us
            self.records += 1
            self.kinds[cursor.kind] += 1
            if cursor.kind == RECORD_ACCEPTED and not decode_message(cursor.kind, cursor.body, cursor.body_length,
                                                                     &fields):
                self.payload_bytes += fields.payload_length
                continue
            try:
                fields_of(cursor.kind, cursor.number, cursor.body, cursor.body_length)
            except RecordError as error:
                self.problems.append((cursor.base + cursor.start, str(error)))

    def by_kind(self) -> dict:
        """Return the name of each kind that there is, and how many records of it; in the order of their numbers."""
        return {BY_NUMBER[kind].name if kind in BY_NUMBER else f"kind {kind}": self.kinds[kind]
                for kind in range(KIND_COUNT) if self.kinds[kind]}

    def add(self, Census other not None) -> None:
        """Add what another census counted; its problems stay with it."""
        cdef int kind
        if other.records == 0:
            return
        self.first_us = other.first_us if self.records == 0 else min(self.first_us, other.first_us)
        self.last_us = other.last_us if self.records == 0 else max(self.last_us, other.last_us)
        self.records += other.records
        self.payload_bytes += other.payload_bytes
        for kind in range(KIND_COUNT):
            self.kinds[kind] += other.kinds[kind]
