"""Where a publish would go: the filters that match, who is behind them, and what would become of it for each."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Final

import trio
from router.message import message as make_message
from router.session import Session

from broker import application, survey
from broker.listings import QueryError, Row, page
from broker.readable import options_fields, text_of

if TYPE_CHECKING:
    from router.message import Message

    from broker.admin_queries import Queries

ROW_COST: Final = 40
SUBSCRIBERS_PER_STEP: Final = 10_000
MEMBERS_SHOWN_MAX: Final = 100
QOS_BITS: Final = 0x03


def topic_of(arguments: Row) -> bytes:
    """Return the topic name that a question names. Raises QueryError."""
    try:
        return application.check_topic_name("topic", arguments["topic"])
    except ValueError as error:
        raise QueryError(400, "bad_argument", f"{error}.") from None


async def describe_route(queries: Queries, arguments: Row) -> Row:
    """Return one page of who a publish on a topic would reach; the first has the filters and the shared groups too.

    Args:
        arguments: topic; qos and retain of the publish; publisher, a client identifier, for No Local, hashing and what
            the ACL says; limit and cursor.
    """
    topic = topic_of(arguments)
    qos, retain = arguments.get("qos", 0), arguments.get("retain", False)
    router = queries.router
    tree = router.tree
    message = make_message(topic, b"", qos, retain)
    publisher = None
    if arguments.get("publisher") is not None:       # who may be at home on another worker
        publisher = router.sessions.get(arguments["publisher"].encode())

    def head() -> Row:
        groups, archived = survey.groups_of(tree, topic)
        return {
            "topic": arguments["topic"], "qos": qos, "retain": retain,
            "filters": [{"topic_filter": text_of(topic_filter), "subscribers": count}
                        for topic_filter, count in survey.filters_of(tree, topic)],
            "groups": [_group_row(queries, group, publisher, message) for group in groups],
            "archived": archived,
            "publisher": None if publisher is None else {
                "client": arguments["publisher"], **_publisher_verdict(queries, publisher, topic)},
        }  # fmt: skip

    async def receivers() -> Joined:
        return Joined([(topic_filter, await subscribers(tree, topic_filter))
                       for topic_filter, _ in survey.filters_of(tree, topic)
                       if not topic_filter.startswith(b"$share/")])

    def describe(item: tuple[bytes, Any]) -> Row | None:
        row = receiver_row(queries, item[1], topic, message, publisher)
        # Who matches by several filters is told of once.
        return row if row is not None and row["filters"][0]["topic_filter"] == text_of(item[0]) else None

    return await page(queries.listings, "routes", arguments, receivers, describe, ROW_COST, head)


class Joined(Sequence[tuple[bytes, Any]]):
    """The subscribers of several topic filters behind one another, each with the filter; nothing is copied."""

    def __init__(self, parts: list[tuple[bytes, list[Any]]]) -> None:
        self._parts = parts
        self._ends = list(accumulate(len(part) for _, part in parts))

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def __getitem__(self, index: Any) -> Any:
        at = bisect_right(self._ends, index)
        topic_filter, part = self._parts[at]
        return topic_filter, part[index - self._ends[at] + len(part)]


async def subscribers(tree: Any, topic_filter: bytes) -> list[Any]:
    """Return who subscribes to exactly this topic filter.

    Whoever comes or goes meanwhile may be in it or not, and who takes the place of one that goes may be in it twice.
    """
    found: list[Any] = []
    below = 0xFFFFFFFF
    while below:
        some, below = survey.subscribers_below(tree, topic_filter, below, SUBSCRIBERS_PER_STEP)
        found += some
        await trio.lowlevel.checkpoint()
    return found


def _publisher_verdict(queries: Queries, publisher: Session, topic: bytes) -> Row:
    connection = publisher.connection
    if connection is None:
        return {"connected": False, "allowed": None}
    allowed = not topic.startswith((b"$SYS", b"$replay/")) and queries.worker.controller.acl.may_publish(
        connection.identity, topic)
    return {"connected": True, "allowed": bool(allowed)}


def receiver_row(
    queries: Queries, receiver: Any, topic: bytes, message: Message, publisher: Session | None
) -> Row | None:
    """Return what a publish would come to for one receiver, None if it does not receive the topic any more."""
    tree = queries.router.tree
    target = tree.receiver_for(topic, receiver)
    if target is None:
        return None
    matched = [(topic_filter, options, identifier)
               for topic_filter, options, identifier in survey.matching(tree, topic, receiver)
               if not topic_filter.startswith(b"$share/")]
    row = {
        **queries.name_of(receiver), "worker": queries.number,
        "connected": not isinstance(receiver, Session) or receiver.connected,
        "filters": [{"topic_filter": text_of(topic_filter), **options_fields(options, identifier)}
                    for topic_filter, options, identifier in matched],
    }  # fmt: skip
    if publisher is not None and receiver is publisher and target[3]:
        target = tree.receiver_for(topic, receiver, True)
        if target is None:
            return {**row, "qos": None, "outcome": "no_local"}
    qos = min(target[1], message.quality_of_service)
    return {**row, "qos": qos, "outcome": survey.outcome(receiver, message, qos)}


def _group_row(queries: Queries, group: Any, publisher: Session | None, message: Message) -> Row:
    picks = survey.group_picks(group, publisher, message, MEMBERS_SHOWN_MAX)
    name, _, topic_filter = picks["name"].partition(b"/")
    picked = picks["picked"]
    row = {
        "group": text_of(name), "topic_filter": text_of(topic_filter), "strategy": picks["strategy"],
        "members": picks["count"], "worker": queries.number,
        "shown": [queries.name_of(member) for member in picks["members"]], "picked": None, "outcome": "no_member",
    }  # fmt: skip
    if picked is not None:
        qos = min(picks["picked_options"] & QOS_BITS, message.quality_of_service)
        row |= {"picked": queries.name_of(picked), "qos": qos, "outcome": survey.outcome(picked, message, qos)}
    return row
