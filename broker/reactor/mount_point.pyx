"""The mount point of a listener: a prefix of all topic names that its clients neither see nor leave.

A name that begins with $ keeps that in front: under `plant/`, `$own/x` is `$plant/own/x`. So a topic filter that begins
with a wildcard does not match it here either [MQTT-4.7.2-1], and each name has one place in the broker's tree. Only what
no client may publish to, $SYS and $replay, is not mounted: it is refused here as anywhere.
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING
from libc.stdint cimport int64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memcmp, memcpy
from broker.wire.codec cimport read_u16, write_u16
from router.core.message cimport NO_OFFSET
from router.core.varint cimport read_varint
from router.matching.topic_names cimport is_own_topic

from broker.wire.reasons import ClientError, Reason
from router.matching.topic_names import SHARE_PREFIX, check_topic_filter
from router.sessions.replay_subscription import REPLAY_PREFIX

cdef enum:
    NAME_MAX = 65535
    DOLLAR = 0x24
    RESPONSE_TOPIC = 0x08
    STRING_HEAD = 3              # a property's identifier, and the length of its string


cdef uint8_t* room_in(Scratch* scratch, size_t size) except NULL:
    cdef uint8_t* grown
    if size > scratch.size or scratch.data == NULL:
        grown = <uint8_t*>realloc(scratch.data, size + 256)
        if grown == NULL:
            raise MemoryError()
        scratch.data = grown
        scratch.size = size + 256
    return scratch.data


cdef int64_t property_end(const uint8_t* data, uint32_t at, uint32_t length) noexcept nogil:
    """Return where a property of a validated PUBLISH ends; -1 if it is none that this version knows."""
    cdef uint8_t identifier = data[at]
    cdef uint32_t value = 0
    if identifier == 0x26:                                   # User Property
        at += STRING_HEAD + read_u16(data + at + 1)
        return at + 2 + read_u16(data + at)
    if identifier == RESPONSE_TOPIC or identifier == 0x03 or identifier == 0x09:     # Content Type, Correlation Data
        return at + STRING_HEAD + read_u16(data + at + 1)
    if identifier == 0x02:                                   # Message Expiry Interval
        return at + 5
    if identifier == 0x23:                                   # Topic Alias
        return at + 3
    if identifier == 0x01:                                   # Payload Format Indicator
        return at + 2
    if identifier == 0x0B:                                   # Subscription Identifier
        return at + 1 + read_varint(data + at + 1, length - at - 1, &value)
    return -1


cdef int64_t response_topic_at(const uint8_t* data, uint32_t length) noexcept nogil:
    """Return where the Response Topic among the validated properties of a PUBLISH begins; -1 if there is none."""
    cdef int64_t at = 0
    while 0 <= at < length:
        if data[at] == RESPONSE_TOPIC:
            return at
        at = property_end(data, <uint32_t>at, length)
    return -1


cdef int replace_property(Message message, uint8_t* to, uint32_t at, uint32_t end, uint32_t size) noexcept:
    """Put a message's properties where `size` bytes have been written at `at`, instead of those from there to `end`."""
    cdef uint32_t rest = message.properties_length - end
    memcpy(to, message.properties, at)
    memcpy(to + at + size, message.properties + end, rest)
    if message.expiry_offset != NO_OFFSET and message.expiry_offset >= end:
        message.expiry_offset = message.expiry_offset - end + at + size
    if message.alias_offset != NO_OFFSET and message.alias_offset >= end:
        message.alias_offset = message.alias_offset - end + at + size
    message.properties = to
    message.properties_length = at + size + rest
    return 0


@cython.final
cdef class MountPoint:
    """The part of the topic tree that the clients of one listener live in.

    Args:
        prefix: as broker.config.listener_check.mount_point_problem() lets it be.
    """

    def __cinit__(self, bytes prefix not None):
        assert prefix.endswith(b"/") and not prefix.startswith(b"$"), prefix
        self.prefix = prefix
        self.inner = Message.__new__(Message)
        self.inner.identifier_offset = NO_OFFSET
        self.inner.version = 5

    def __dealloc__(self):
        free(self.entered_name.data)
        free(self.entered_properties.data)
        free(self.left_name.data)
        free(self.left_properties.data)

    # Messages -------------------------------------------------------------------------------------------------------

    cdef int enter(self, Message message) except -1:
        cdef uint8_t* name
        if message.properties_length:
            self.enter_response_topic(message)
        if is_own_topic(message.topic, message.topic_length):
            return 0
        self.check_length(message.topic_length)
        name = room_in(&self.entered_name, NAME_MAX)
        message.topic_length = self.put_mounted(name, message.topic, message.topic_length)
        message.topic = name
        message.frame = NULL             # nobody is sent it as it came; its length still says how much work it is
        return 0

    cdef Message leave(self, Message message):
        cdef Message inner = self.inner
        cdef uint8_t* name
        if not self.holds(message.topic, message.topic_length):
            return None
        if message.topic[0] == DOLLAR:
            name = room_in(&self.left_name, NAME_MAX)
            inner.topic_length = self.put_seen(name, message.topic, message.topic_length)
            inner.topic = name
        else:
            inner.topic = message.topic + len(self.prefix)
            inner.topic_length = message.topic_length - <uint16_t>len(self.prefix)
        inner.payload = message.payload
        inner.payload_length = message.payload_length
        inner.properties = message.properties
        inner.properties_length = message.properties_length
        inner.expiry_offset = message.expiry_offset
        inner.alias_offset = message.alias_offset
        inner.expires_ms = message.expires_ms
        inner.qos = message.qos
        if inner.properties_length:
            self.leave_response_topic(inner)
        return inner

    cdef int enter_response_topic(self, Message message) except -1:
        """A request's answer is published in the same part of the tree as the request."""
        cdef int64_t at = response_topic_at(message.properties, message.properties_length)
        cdef const uint8_t* name
        cdef uint8_t* to
        cdef uint16_t length, mounted
        if at < 0:
            return 0
        length = read_u16(message.properties + at + 1)
        name = message.properties + at + STRING_HEAD
        if is_own_topic(name, length):
            return 0
        self.check_length(length)
        to = room_in(&self.entered_properties, message.properties_length + len(self.prefix))
        to[at] = RESPONSE_TOPIC
        mounted = self.put_mounted(to + at + STRING_HEAD, name, length)
        write_u16(to + at + 1, mounted)
        replace_property(message, to, <uint32_t>at, <uint32_t>at + STRING_HEAD + length, STRING_HEAD + mounted)
        message.frame = NULL
        return 0

    cdef int leave_response_topic(self, Message message) except -1:
        """A Response Topic that has no name here is left out: who is asked could not answer there."""
        cdef int64_t at = response_topic_at(message.properties, message.properties_length)
        cdef const uint8_t* name
        cdef uint8_t* to
        cdef uint16_t length, seen
        cdef uint32_t size = 0
        if at < 0:
            return 0
        length = read_u16(message.properties + at + 1)
        name = message.properties + at + STRING_HEAD
        to = room_in(&self.left_properties, message.properties_length)
        if self.holds(name, length):
            to[at] = RESPONSE_TOPIC
            seen = self.put_seen(to + at + STRING_HEAD, name, length)
            write_u16(to + at + 1, seen)
            size = STRING_HEAD + seen
        replace_property(message, to, <uint32_t>at, <uint32_t>at + STRING_HEAD + length, size)
        return 0

    # Names ----------------------------------------------------------------------------------------------------------

    cdef bint holds(self, const uint8_t* name, size_t length) noexcept:
        """Return whether a name of the broker's has one here."""
        cdef size_t prefix_length = len(self.prefix)
        if length <= prefix_length:
            return False                 # "plant/#" matches "plant" too, and "plant/+" the name that is the prefix itself
        if name[0] == DOLLAR:
            return memcmp(name + 1, PyBytes_AS_STRING(self.prefix), prefix_length) == 0
        # "plant/$own" is not $own, which lies elsewhere.
        return name[prefix_length] != DOLLAR and memcmp(name, PyBytes_AS_STRING(self.prefix), prefix_length) == 0

    cdef int check_length(self, size_t length) except -1:
        if len(self.prefix) + length > NAME_MAX:
            raise ClientError(Reason.TOPIC_NAME_INVALID, "MQTT-4.7.3-3",
                              f"a topic name of {length} bytes, {NAME_MAX - len(self.prefix)} are allowed")
        return 0

    cdef uint16_t put_mounted(self, uint8_t* to, const uint8_t* name, size_t length) noexcept:
        cdef size_t dollar = name[0] == DOLLAR
        cdef size_t prefix_length = len(self.prefix)
        to[0] = DOLLAR
        memcpy(to + dollar, PyBytes_AS_STRING(self.prefix), prefix_length)
        memcpy(to + dollar + prefix_length, name + dollar, length - dollar)
        return <uint16_t>(prefix_length + length)

    cdef uint16_t put_seen(self, uint8_t* to, const uint8_t* name, size_t length) noexcept:
        cdef size_t dollar = name[0] == DOLLAR
        cdef size_t prefix_length = len(self.prefix)
        to[0] = DOLLAR
        memcpy(to + dollar, name + dollar + prefix_length, length - dollar - prefix_length)
        return <uint16_t>(length - prefix_length)

    def mounted(self, bytes name not None) -> bytes:
        """Return the broker's name of a client's topic name, which is valid. Raises ClientError if that is too long."""
        if is_own_topic(<const uint8_t*>PyBytes_AS_STRING(name), len(name)):
            return name
        self.check_length(len(name))
        return self._with_prefix(name)

    def seen(self, bytes name not None) -> bytes | None:
        """Return the name that a topic name of the broker's has here; None if it has none."""
        cdef size_t length = len(self.prefix)
        if not self.holds(<const uint8_t*>PyBytes_AS_STRING(name), len(name)):
            return None
        return b"$" + name[1 + length:] if name[:1] == b"$" else name[length:]

    def mounted_filter(self, bytes topic_filter not None) -> bytes:
        """Return the broker's topic filter for a client's: what stands behind $share/NAME/ or $replay/START/ is mounted.

        One that is none is returned as it is: whoever says what is wrong with it refuses it.
        """
        cdef bytes prefix = b""
        cdef bytes inner_filter = topic_filter
        cdef tuple never = ()
        if topic_filter.startswith(SHARE_PREFIX):
            never = (REPLAY_PREFIX,)
        elif topic_filter.startswith(REPLAY_PREFIX):
            never = (SHARE_PREFIX, REPLAY_PREFIX)
        if never:
            levels = topic_filter.split(b"/", 2)
            if len(levels) < 3 or not levels[1]:
                return topic_filter
            inner_filter = levels[2]
            prefix = topic_filter[:len(topic_filter) - len(inner_filter)]
            if (inner_filter if prefix.startswith(SHARE_PREFIX) else inner_filter + b"/").startswith(never):
                return topic_filter
        if check_topic_filter(inner_filter) is not None:
            return topic_filter
        return prefix + self._with_prefix(inner_filter)

    def _with_prefix(self, bytes name not None) -> bytes:
        return b"$" + self.prefix + name[1:] if name[:1] == b"$" else self.prefix + name

    def entered(self, Message message not None) -> Message:
        """enter() for tests: returns an owned copy."""
        cdef Message borrowed = message.twin()
        self.enter(borrowed)
        return borrowed.twin()

    def left(self, Message message not None) -> Message | None:
        """leave() for tests: returns an owned copy."""
        cdef Message inner = self.leave(message)
        return None if inner is None else inner.twin()
