"""The order of the retained messages' index: keys of topic names, and where a topic filter may go on among them.

In a key the separator is the byte 0, which no topic name contains, so that bytes compare as lists of levels do: a level
comes before what is below it, and all that is below it comes before its next sibling.
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.string cimport memchr, memcmp

from _blake2 import blake2b  # hashlib would load OpenSSL

from router.matching.topic_names import check_topic_filter

cdef enum:
    KEY_MAX = 511
    PREFIX = 478

KEY_BYTES_MAX = KEY_MAX        # LMDB's limit
PREFIX_BYTES = PREFIX          # of a longer name, that its key begins with

CUT = b"\xff"                  # in no UTF-8; behind the prefix, before 32 bytes of hash
BEHIND_DOLLAR = b"%"


def key_of(bytes topic_name not None) -> bytes:
    """Return the key of a topic name, 1 to 511 bytes.

    Up to PREFIX_BYTES it is the name itself, with 0 for the separator. Of a longer one it is that much, 0xFF and the
    BLAKE2b hash of the whole, so it stands behind all shorter names that begin alike, next to the longer ones.
    """
    cdef bytes name = topic_name.replace(b"/", b"\0")
    if PyBytes_GET_SIZE(name) <= PREFIX:
        return name
    return name[:PREFIX] + CUT + blake2b(name, digest_size=32).digest()


def is_cut(bytes key not None) -> bool:
    """Return whether a key does not hold its whole topic name."""
    return PyBytes_GET_SIZE(key) == KEY_MAX


cdef inline size_t level_end(const uint8_t* text, size_t at, size_t length) noexcept nogil:
    """Return where the level that begins at a place ends."""
    cdef const uint8_t* end = <const uint8_t*>memchr(text + at, 0, length - at)
    return length if end == NULL else <size_t>(end - text)


@cython.final
cdef class KeyFilter:
    """A topic filter, asked for names in the order of their keys.

    Args:
        topic_filter: raises ValueError if it is malformed.
    """

    def __init__(self, bytes topic_filter not None):
        problem = check_topic_filter(topic_filter)
        if problem is not None:
            raise ValueError(problem)
        levels = topic_filter.split(b"/")
        self.below = topic_filter == b"#" or topic_filter.endswith(b"/#")
        if self.below:
            levels.pop()
        self.is_empty = not levels
        self.leading_wildcard = not levels or levels[0] == b"+"
        self.levels = b"\0".join(levels)
        self.first = b"" if self.is_empty else self.beginning(NULL, 0, 0)

    def target(self, bytes name not None) -> bytes:
        """Return where to go on from a name with 0 for the separator.

        The name itself (the same object) if the filter matches it. Else something greater, at most KEY_BYTES_MAX bytes:
        no name in between matches; or nothing, if no greater name matches at all. Cost: O(length of the name).
        """
        cdef const uint8_t* text = <const uint8_t*>PyBytes_AS_STRING(name)
        cdef size_t length = PyBytes_GET_SIZE(name)
        cdef const uint8_t* wanted = <const uint8_t*>PyBytes_AS_STRING(self.levels)
        cdef size_t wanted_length = PyBytes_GET_SIZE(self.levels)
        cdef size_t at = 0           # where a level of the name begins, and its level of the filter
        cdef size_t wanted_at = 0
        cdef size_t end, wanted_end
        cdef size_t sibling = 0      # where the level ends that the last + stands for; 0: there is none that may change
        cdef bint has_plus = False
        cdef int order
        # A leading wildcard does not reach into $SYS and friends [MQTT-4.7.2-1].
        if self.leading_wildcard and length and text[0] == 0x24:
            return BEHIND_DOLLAR
        if self.is_empty:
            return name
        while True:
            end = level_end(text, at, length)
            wanted_end = level_end(wanted, wanted_at, wanted_length)
            if wanted_end - wanted_at == 1 and wanted[wanted_at] == 0x2B:
                sibling = end
                has_plus = True
            else:
                order = memcmp(text + at, wanted + wanted_at, min(end - at, wanted_end - wanted_at))
                if order == 0:
                    order = (end - at > wanted_end - wanted_at) - (end - at < wanted_end - wanted_at)
                if order < 0:
                    return self.beginning(text, at, wanted_at)
                if order > 0:
                    break
            if wanted_end == wanted_length:
                # "a/#" matches "a" too (section 4.7.1.2).
                if self.below or end == length:
                    return name
                break
            at = end + 1
            wanted_at = wanted_end + 1
            if end == length:
                # The name ends above: on to what is below it.
                return (name + b"\0" + self.beginning(NULL, 0, wanted_at))[:KEY_MAX]
        return (name[:sibling] + b"\1")[:KEY_MAX] if has_plus else b""

    cdef bytes beginning(self, const uint8_t* name, size_t length, size_t at):
        """Return that much of a name and the levels of the filter from a place on, up to the first wildcard."""
        cdef const uint8_t* wanted = <const uint8_t*>PyBytes_AS_STRING(self.levels)
        cdef size_t wanted_length = PyBytes_GET_SIZE(self.levels)
        cdef size_t begin = at
        cdef size_t end = at         # behind the last level without a wildcard
        cdef bytes found
        while at <= wanted_length:
            if wanted_length - at and wanted[at] == 0x2B:
                break
            end = level_end(wanted, at, wanted_length)
            at = end + 1
        found = PyBytes_FromStringAndSize(<const char*>wanted + begin, end - begin)
        if length:
            found = PyBytes_FromStringAndSize(<const char*>name, length) + found
        return found[:KEY_MAX]
