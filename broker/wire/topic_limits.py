"""The limits on topic names and topic filters, and what is said of one that breaks them."""

from broker.wire.reasons import ClientError, Reason


def topic_problem(topic: bytes, levels_max: int, bytes_max: int) -> str | None:
    """Return which limit a topic name or topic filter breaks, in words; None if it breaks none."""
    if len(topic) > bytes_max:
        return f"{len(topic)} bytes of topic, {bytes_max} are allowed"
    levels = topic.count(b"/") + 1
    if levels > levels_max:
        return f"{levels} topic levels, {levels_max} are allowed"
    return None


def wildcard_problem(inner_filter: bytes, levels_max: int) -> str | None:
    """Return which limit a topic filter breaks by a + in it, in words; None if it breaks none.

    Args:
        inner_filter: valid, without $share/name/.
    """
    if b"+" not in inner_filter:
        return None
    levels = inner_filter.count(b"/") + 1
    return f"{levels} levels in a topic filter with +, {levels_max} are allowed" if levels > levels_max else None


def check_topic_size(topic: bytes, levels_max: int, bytes_max: int) -> None:
    """Raise ClientError for a topic name that breaks a limit."""
    problem = topic_problem(topic, levels_max, bytes_max)
    if problem is not None:
        raise ClientError(Reason.TOPIC_NAME_INVALID, "section 4.7.3", problem)
