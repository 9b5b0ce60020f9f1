"""Topic names and topic filters: validation and matching."""

from libc.stdint cimport uint8_t
from libc.string cimport memcmp

cdef bint valid_topic_name(const uint8_t* data, size_t length) noexcept nogil      # 1..65535 bytes of UTF-8, no NUL + #
cdef bint valid_utf8(const uint8_t* data, size_t length) noexcept nogil            # well formed, no U+0000 [MQTT-1.5.4-1, -2]

# The rule of matches(): a valid topic filter without $share, a valid topic name. Reads each byte once at most.
cdef bint filter_matches(const uint8_t* topic_filter, size_t filter_length, const uint8_t* topic,
                         size_t topic_length) noexcept nogil


cdef inline bint is_sys_topic(const uint8_t* topic, size_t length) noexcept nogil:
    """Return whether a topic name or filter is $SYS or below it: what the broker alone publishes."""
    return length >= 4 and topic[0] == 0x24 and memcmp(topic, b"$SYS", 4) == 0 and (length == 4 or topic[4] == 0x2F)


cdef inline bint is_state_topic(const uint8_t* topic, size_t length) noexcept nogil:
    """Return whether a topic name or filter is $shoal or below it: what workers keep for one another."""
    return length >= 6 and topic[0] == 0x24 and memcmp(topic, b"$shoal", 6) == 0 and (length == 6 or topic[6] == 0x2F)


cdef inline bint is_own_topic(const uint8_t* topic, size_t length) noexcept nogil:
    """Return whether a topic name is the broker's own, which no client publishes to: $SYS, $replay, $shoal, or below."""
    return length >= 4 and topic[0] == 0x24 and (is_sys_topic(topic, length) or is_state_topic(topic, length) or (
        length >= 7 and memcmp(topic, b"$replay", 7) == 0 and (length == 7 or topic[7] == 0x2F)))
