"""The order of the retained messages' index: keys of topic names, and where a topic filter may go on among them.

In a key the separator is the byte 0, which no topic name contains, so that bytes compare as lists of levels do: a level
comes before what is below it, and all that is below it comes before its next sibling.
"""

from hashlib import blake2b
from typing import Final

from router.topics import check_topic_filter

KEY_BYTES_MAX: Final = 511  # LMDB's limit
PREFIX_BYTES: Final = 478  # of a longer name, that its key begins with
_CUT: Final = b"\xff"  # in no UTF-8; behind the prefix, before 32 bytes of hash
_BEHIND_DOLLAR: Final = b"%"


def key_of(topic_name: bytes) -> bytes:
    """Return the key of a topic name, 1 to 511 bytes.

    Up to PREFIX_BYTES it is the name itself, with 0 for the separator. Of a longer one it is that much, 0xFF and the
    BLAKE2b hash of the whole, so it stands behind all shorter names that begin alike, next to the longer ones.
    """
    name = topic_name.replace(b"/", b"\0")
    if len(name) <= PREFIX_BYTES:
        return name
    return name[:PREFIX_BYTES] + _CUT + blake2b(name, digest_size=32).digest()


def is_cut(key: bytes) -> bool:
    """Return whether a key does not hold its whole topic name."""
    return len(key) == KEY_BYTES_MAX


class KeyFilter:
    """A topic filter, asked for names in the order of their keys.

    Args:
        topic_filter: raises ValueError if it is malformed.
    """

    def __init__(self, topic_filter: bytes) -> None:
        problem = check_topic_filter(topic_filter)
        if problem is not None:
            raise ValueError(problem)
        levels = topic_filter.split(b"/")
        self._below = levels[-1] == b"#"
        if self._below:
            levels.pop()
        # None for a +.
        self._levels: list[bytes | None] = [None if level == b"+" else level for level in levels]
        self._leading_wildcard = not levels or levels[0] == b"+"
        self.first: bytes = self._run(0)  # where to begin; at most KEY_BYTES_MAX bytes

    def target(self, name: bytes) -> bytes:
        """Return where to go on from a name with 0 for the separator.

        The name itself (the same object) if the filter matches it. Else something greater, at most KEY_BYTES_MAX bytes:
        no name in between matches; or nothing, if no greater name matches at all. Cost: O(levels of the filter).
        """
        # A leading wildcard does not reach into $SYS and friends [MQTT-4.7.2-1].
        if self._leading_wildcard and name[:1] == b"$":
            return _BEHIND_DOLLAR
        levels = self._levels
        count = len(levels)
        parts = name.split(b"\0", count)
        for depth, level in enumerate(levels):
            if depth == len(parts):
                return (name + b"\0" + self._run(depth))[:KEY_BYTES_MAX]
            if level is not None and level != parts[depth]:
                if parts[depth] < level:
                    return b"\0".join([*parts[:depth], self._run(depth)])[:KEY_BYTES_MAX]
                return self._next_sibling(parts, depth)
        # "a/#" matches "a" too (section 4.7.1.2).
        if self._below or len(parts) == count:
            return name
        return self._next_sibling(parts, count)

    def _run(self, depth: int) -> bytes:
        """Return the levels of the filter from one on, up to the first wildcard."""
        end = depth
        while end < len(self._levels) and self._levels[end] is not None:
            end += 1
        return b"\0".join(level for level in self._levels[depth:end] if level is not None)[:KEY_BYTES_MAX]

    def _next_sibling(self, parts: list[bytes], depth: int) -> bytes:
        """Return the beginning of what follows the last + before a level, with all that is below it; or nothing."""
        for above in range(depth - 1, -1, -1):
            if self._levels[above] is None:
                return (b"\0".join(parts[: above + 1]) + b"\1")[:KEY_BYTES_MAX]
        return b""
