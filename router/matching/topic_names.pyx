"""Topic names and topic filters: validation and matching."""

from cpython.bytes cimport PyBytes_AS_STRING
from libc.stdint cimport uint64_t
from libc.string cimport memcpy

SEPARATOR = b"/"
SINGLE_LEVEL = b"+"
MULTI_LEVEL = b"#"
SHARE_PREFIX = b"$share/"

cdef enum:
    BYTES_MAX = 65535

cdef uint64_t ONES = 0x0101010101010101
cdef uint64_t HIGHS = 0x8080808080808080


cdef inline uint64_t has_zero(uint64_t word) noexcept nogil:
    """Return a number that is not 0 exactly if one of the eight bytes is 0."""
    return (word - ONES) & ~word & HIGHS


cdef inline size_t sequence_length(const uint8_t* at, size_t left) noexcept nogil:
    """Return the length, 2 to 4, of the well-formed sequence that starts with a byte above 0x7F; 0 if it is not one."""
    cdef uint8_t first = at[0]
    if first < 0xC2:
        return 0                                                 # a continuation byte, or an overlong sequence of two
    if left < 2 or (at[1] & 0xC0) != 0x80:
        return 0
    if first < 0xE0:
        return 2
    if left < 3 or (at[2] & 0xC0) != 0x80:
        return 0
    if first < 0xF0:
        if first == 0xE0 and at[1] < 0xA0:
            return 0                                             # overlong
        if first == 0xED and at[1] >= 0xA0:
            return 0                                             # surrogates, U+D800 to U+DFFF [MQTT-1.5.4-1]
        return 3
    if left < 4 or (at[3] & 0xC0) != 0x80 or first > 0xF4:
        return 0
    if first == 0xF0 and at[1] < 0x90:
        return 0                                                 # overlong
    if first == 0xF4 and at[1] >= 0x90:
        return 0                                                 # above U+10FFFF
    return 4


cdef inline bint well_formed(const uint8_t* data, size_t length, bint wildcards) noexcept nogil:
    """Return whether data is UTF-8 without U+0000, and without + and # unless wildcards are allowed."""
    cdef size_t index = 0
    cdef size_t step
    cdef uint64_t word
    cdef uint64_t bad
    while index < length:
        # Nearly all topics are ASCII: eight bytes a step.
        while index + 8 <= length:
            memcpy(&word, data + index, 8)
            bad = (word & HIGHS) | has_zero(word)
            if not wildcards:
                bad |= has_zero(word ^ (ONES * 0x2B)) | has_zero(word ^ (ONES * 0x23))
            if bad:
                break
            index += 8
        # The step that was not clean, or the last bytes, one at a time.
        step = index + 8
        while index < length and index < step:
            if data[index] < 0x80:
                if data[index] == 0 or (not wildcards and (data[index] == 0x2B or data[index] == 0x23)):
                    return False
                index += 1
            else:
                if sequence_length(data + index, length - index) == 0:
                    return False
                index += sequence_length(data + index, length - index)
    return True


cdef bint valid_topic_name(const uint8_t* data, size_t length) noexcept nogil:
    return 1 <= length <= BYTES_MAX and well_formed(data, length, False)


cdef bint valid_utf8(const uint8_t* data, size_t length) noexcept nogil:
    return well_formed(data, length, True)


cdef bint filter_matches(const uint8_t* topic_filter, size_t filter_length, const uint8_t* topic,
                         size_t topic_length) noexcept nogil:
    cdef size_t at = 0                                           # in the filter: where a level begins, then where it ends
    cdef size_t here = 0                                         # in the topic, likewise
    if topic[0] == 0x24 and (topic_filter[0] == 0x2B or topic_filter[0] == 0x23):
        return False                                             # [MQTT-4.7.2-1]
    while True:
        if at < filter_length and topic_filter[at] == 0x23:
            return True
        if at < filter_length and topic_filter[at] == 0x2B:
            at += 1
            while here < topic_length and topic[here] != 0x2F:
                here += 1
        else:
            while at < filter_length and topic_filter[at] != 0x2F:
                if here == topic_length or topic[here] != topic_filter[at]:
                    return False
                at += 1
                here += 1
            if here < topic_length and topic[here] != 0x2F:
                return False
        if here == topic_length:
            # "sport/#" also matches "sport" (section 4.7.1.2).
            return at == filter_length or (filter_length - at == 2 and topic_filter[at + 1] == 0x23)
        if at == filter_length:
            return False
        at += 1
        here += 1


def matches_compiled(bytes topic_filter not None, bytes topic_name not None) -> bool:
    """matches() as it is compiled for what looks at stored messages; both valid, without $share prefix."""
    return filter_matches(<const uint8_t*>PyBytes_AS_STRING(topic_filter), len(topic_filter),
                          <const uint8_t*>PyBytes_AS_STRING(topic_name), len(topic_name))


def is_topic_name(bytes topic_name not None) -> bool:
    """Return whether these are 1..65535 bytes of UTF-8 without NUL, + and # [MQTT-3.3.2-2]."""
    return valid_topic_name(<const uint8_t*>PyBytes_AS_STRING(topic_name), len(topic_name))


def is_utf8(bytes data not None) -> bool:
    """Return whether these bytes are well-formed UTF-8 without U+0000 [MQTT-1.5.4-1], [MQTT-1.5.4-2]."""
    return valid_utf8(<const uint8_t*>PyBytes_AS_STRING(data), len(data))


def check_topic_filter(topic_filter: bytes) -> str | None:
    """Return what is wrong with a topic filter, or None if nothing is.

    What follows $share/ is checked by parse_shared.
    """
    if not 1 <= len(topic_filter) <= BYTES_MAX:
        return "a topic filter has 1 to 65535 bytes"             # [MQTT-4.7.3-1], [MQTT-4.7.3-3]
    if not is_utf8(topic_filter):
        return "a topic filter is UTF-8 without U+0000"          # [MQTT-3.8.3-1], [MQTT-4.7.3-2]
    if SINGLE_LEVEL not in topic_filter and MULTI_LEVEL not in topic_filter:
        return None
    for level in topic_filter.split(SEPARATOR):
        if SINGLE_LEVEL in level and level != SINGLE_LEVEL:
            return "+ fills a whole level"                       # [MQTT-4.7.1-2]
        if MULTI_LEVEL in level and level != MULTI_LEVEL:
            return "# fills a whole level"                       # [MQTT-4.7.1-1]
    if MULTI_LEVEL + SEPARATOR in topic_filter:
        return "# is the last level"                             # [MQTT-4.7.1-1]
    return None


def parse_shared(topic_filter: bytes) -> tuple[bytes, bytes] | None:
    """Return the share name and the topic filter of $share/name/filter, or None for any other topic filter.

    Raises ValueError for a share name that is empty or has a wildcard in it [MQTT-4.8.2-1], and where no topic filter
    follows it [MQTT-4.8.2-2].
    """
    if not topic_filter.startswith(SHARE_PREFIX):
        return None
    share_name, separator, inner_filter = topic_filter[len(SHARE_PREFIX):].partition(SEPARATOR)
    if not share_name:
        raise ValueError("a share name has at least one character")
    if SINGLE_LEVEL in share_name or MULTI_LEVEL in share_name:
        raise ValueError("a share name has no + and no #")
    if not separator or not inner_filter:
        raise ValueError("a topic filter follows the share name")
    return share_name, inner_filter


def matches(topic_filter: bytes, topic_name: bytes) -> bool:
    """Return whether a topic filter matches a topic name: the rule that the trees are tested against.

    Args:
        topic_filter: checked by check_topic_filter, without $share prefix.
        topic_name: 1..65535 bytes of UTF-8, no wildcards.

    Cost: O(levels), no allocation beyond the two level lists.
    """
    # A leading wildcard does not reach into $SYS and friends [MQTT-4.7.2-1].
    if topic_name[:1] == b"$" and topic_filter[:1] in (SINGLE_LEVEL, MULTI_LEVEL):
        return False

    filter_levels = topic_filter.split(SEPARATOR)
    name_levels = topic_name.split(SEPARATOR)
    for index, level in enumerate(filter_levels):
        if level == MULTI_LEVEL:
            # "sport/#" also matches "sport" (section 4.7.1.2), so this test comes before the length test.
            return True
        if index == len(name_levels):
            return False
        if level != SINGLE_LEVEL and level != name_levels[index]:
            return False
    return len(filter_levels) == len(name_levels)


def is_own(bytes topic_name not None) -> bool:
    """Return whether a topic name is the broker's own, which no client publishes to: $SYS, $replay, $shoal, or below."""
    return is_own_topic(<const uint8_t*>PyBytes_AS_STRING(topic_name), len(topic_name))


def is_sys(bytes topic_filter not None) -> bool:
    """Return whether a topic name or filter is $SYS or below it."""
    return is_sys_topic(<const uint8_t*>PyBytes_AS_STRING(topic_filter), len(topic_filter))


def is_state_filter(bytes topic_filter not None) -> bool:
    """Return whether a topic filter asks for what workers keep for one another, below $shoal."""
    return is_state_topic(<const uint8_t*>PyBytes_AS_STRING(topic_filter), len(topic_filter))
