"""$replay/START/FILTER in a SUBSCRIBE: where to begin, and with what."""

from router.log.replay_position import decode_position, is_position, parse_time
from router.matching.topic_names import check_topic_filter
from router.sessions.replay_subscription import ReplaySubscription, split_replay

NOT_OF_LOG_PREFIXES = ("$share", "$replay")


def parse_replay(topic_filter: bytes, now_us: int) -> ReplaySubscription:
    """Return what a topic filter that begins with `$replay/` asks for, without its options.

    Args:
        topic_filter: as it was sent.
        now_us: the present, µs since 1970, for times that count from it.

    Raises ValueError with one sentence.
    """
    split = split_replay(topic_filter)
    if split is None:
        raise ValueError("expected $replay/START/TOPIC FILTER")
    start, inner_filter = split
    problem = check_topic_filter(inner_filter)
    if problem is not None:
        raise ValueError(problem)
    if inner_filter.split(b"/", 1)[0].decode() in NOT_OF_LOG_PREFIXES:
        raise ValueError("a topic filter of messages follows the start")
    if is_position(start):
        return ReplaySubscription(topic_filter, inner_filter, 0, 0, decode_position(start))
    return ReplaySubscription(topic_filter, inner_filter, 0, 0, since_us=parse_time(start, now_us))
