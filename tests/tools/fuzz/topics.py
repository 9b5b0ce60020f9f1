"""Topic names and topic filters against models that are plain enough to be read at a glance.

An input is topic name and topic filter with a line feed between them.
"""

from __future__ import annotations

import random
import re
from collections.abc import Hashable

from router.core.message import message
from router.matching.topic_names import check_topic_filter, is_topic_name, is_utf8, matches, parse_shared
from router.router import Router
from router.sessions.ledger import Ledger
from tests.tools.fuzz import corpus
from tests.tools.fuzz.mutate import mutated
from tests.tools.fuzz.target import Target

NAME_LEVELS = (b"", b"a", b"a", b"a", b"b", b"b", b"$SYS", b"$share", "ü".encode(), b"a" * 9)
LEVELS = (*NAME_LEVELS, b"+", b"+", b"#", b"a+")


def make(draw: random.Random) -> bytes:
    """Return a topic name and a topic filter, of few levels, so that they often match."""
    if draw.random() < 0.1:
        return mutated(draw, draw.choice(corpus.TOPIC_NAMES) + b"\n" + draw.choice(corpus.TOPIC_FILTERS))
    name = b"/".join(draw.choice(NAME_LEVELS) for _ in range(draw.randint(1, 5)))
    topic_filter = b"/".join(draw.choice(LEVELS) for _ in range(draw.randint(1, 5)))
    if draw.random() < 0.7:
        topic_filter = b"/".join(
            draw.choice((level, level, b"+", b"#")) for level in name.split(b"/")[: draw.randint(1, 6)]
        )
    if draw.random() < 0.15:
        topic_filter = b"$share/" + draw.choice((b"g", b"", b"g+", b"#")) + b"/" + topic_filter
    both = name + b"\n" + topic_filter
    return mutated(draw, both) if draw.random() < 0.2 else both


def text_of(data: bytes) -> str | None:
    """Return what UTF-8 of MQTT says, None if it is none."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return None
    return None if "\0" in text else text


def good_name(data: bytes) -> bool:
    """A topic name: text, not empty, no wildcards."""
    text = text_of(data)
    return bool(text) and len(data) <= 65_535 and not set(text or "") & set("+#")


def good_filter(data: bytes) -> bool:
    """A topic filter: + and # stand alone in their level, and # in the last."""
    text = text_of(data)
    return (
        bool(text)
        and len(data) <= 65_535
        and (re.fullmatch(r"(?:(?:[^/+#]*|\+)/)*(?:[^/+#]*|\+|#)", text or "", re.DOTALL) is not None)
    )


def good_match(topic_filter: bytes, name: bytes) -> bool:
    """The rule as one regular expression."""
    if name.startswith(b"$") and topic_filter[:1] in (b"+", b"#"):
        return False
    pattern = re.escape(topic_filter).replace(rb"\+", rb"[^/]*")
    if topic_filter == b"#":
        pattern = b".*"
    elif topic_filter.endswith(b"/#"):
        pattern = pattern[: -len(re.escape(b"/#"))] + b"(?:/.*)?"
    return re.fullmatch(pattern, name, re.DOTALL) is not None


def check(data: bytes) -> Hashable:
    """Compare what is said of name and filter, and what the tree and the retained messages make of them."""
    name, _, topic_filter = data.partition(b"\n")
    for each in (name, topic_filter):
        assert is_utf8(each) == (text_of(each) is not None)
        assert is_topic_name(each) == good_name(each)
        assert (check_topic_filter(each) is None) == good_filter(each)
    if not good_filter(topic_filter):
        return "no filter", good_name(name)
    try:
        shared = parse_shared(topic_filter)
    except ValueError:
        assert topic_filter.startswith(b"$share/")
        return "no share", topic_filter.count(b"/")
    inner = topic_filter if shared is None else shared[1]
    if shared is not None:
        share_name = topic_filter.split(b"/")[1]
        assert shared[0] == share_name
        assert share_name
        assert not set(share_name) & set(b"+#")
        assert topic_filter == b"$share/" + share_name + b"/" + inner
    if not good_name(name):
        return "no name"
    expected = good_match(inner, name)
    assert matches(inner, name) == expected
    return expected, shared is None, _check_stores(name, topic_filter, inner, expected)


def _check_stores(name: bytes, topic_filter: bytes, inner: bytes, expected: bool) -> Hashable:
    """Subscribe and publish; the tree and the store of retained messages follow the rule, and are empty afterwards."""
    router = Router(Ledger())
    session, _ = router.open_session(b"c", True, 0)
    kept = message(name, b"x", 0, True)
    router.retained.keep(kept)
    assert [found.topic_name for found in router.retained.match(inner)] == ([name] if expected else [])
    retained = router.subscribe(session, topic_filter, 1)
    # Nothing for a shared subscription [section 4.8.2]; below $SYS what the broker says, which is nothing here.
    sent = expected and inner == topic_filter and topic_filter.split(b"/")[0] != b"$SYS"
    assert [found.topic_name for found in retained] == ([name] if sent else [])
    direct = router.tree.receivers(name)
    groups = router.tree.shared_groups(name)
    assert (len(direct), len(groups)) == ((0, int(expected)) if inner != topic_filter else (int(expected), 0))
    assert router.unsubscribe(session, topic_filter)
    assert (router.tree.receivers(name), router.tree.shared_groups(name), router.tree.node_count) == ([], [], 0)
    router.retained.keep(message(name, b"", 0, True))
    assert (router.retained.count, router.retained.node_count) == (0, 0)
    router.detach_session(session, False)
    return topic_filter.count(b"/"), name.count(b"/")


TARGET = Target("topics", 3000, make, check)
