"""How long the archive keeps what it has: which segments of a log are still wanted."""

from collections.abc import Sequence

from router.log.segments import Header


def expired_segments(
    headers: Sequence[Header], sizes: Sequence[int], now_us: int, age_s: float = 0, bytes_max: int = 0
) -> int:
    """Return the number of the first segment to keep: what comes before it is too old, or too much.

    A segment goes as a whole, when its newest record is too old; the newest segment always stays. Where nothing
    follows, that is to say of an empty log, it is 0.

    Args:
        headers: of all segments there are, in order.
        sizes: of their files, bytes.
        now_us: µs since 1970.
        age_s: records older than this are not wanted; 0: all are.
        bytes_max: of the newest segments, so many bytes are wanted; 0: all are.
    """
    assert len(headers) == len(sizes), (len(headers), len(sizes))
    if not headers:
        return 0
    keep = 0
    if age_s:
        oldest_us = now_us - int(age_s * 1_000_000)
        # A segment is begun when a record is written, so what is in the one before it is as old, or older.
        while keep + 1 < len(headers) and headers[keep + 1].created_us <= oldest_us:
            keep += 1
    if bytes_max:
        left = bytes_max - sizes[-1]
        wanted = len(headers) - 1
        while wanted > 0 and sizes[wanted - 1] <= left:
            wanted -= 1
            left -= sizes[wanted]
        keep = max(keep, wanted)
    return headers[keep].segment


def archive_needs(
    headers: Sequence[Header],
    sizes: Sequence[int],
    now_us: int,
    *,
    archiving: bool,
    age_s: float = 0,
    bytes_max: int = 0,
) -> int:
    """Return the first segment that the archive needs; segments from there on must not be removed.

    Args:
        archiving: whether there is an archive; without one, only the newest segment is needed.

    The others are those of expired_segments().
    """
    if not archiving:
        return headers[-1].segment if headers else 0
    return expired_segments(headers, sizes, now_us, age_s, bytes_max)
