"""Where a publish would go: the filters that match, their receivers, and what would become of it for each."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Final

import trio

from broker.admin.pagination import QueryError, Row, page
from broker.admin.route_merge import MEMBERS_SHOWN_MAX
from broker.auth.acl import Grant
from broker.reactor import introspection
from broker.wire import application_message
from broker.wire.rendering import options_fields, text_of
from router.core.message import message as make_message
from router.core.receiver import QOS_BITS
from router.matching.topic_names import is_own
from router.sessions.session import Session

if TYPE_CHECKING:
    from broker.admin.worker_view import WorkerView
    from router.core.message import Message

ROW_COST: Final = 40
SUBSCRIBERS_PER_STEP: Final = 10_000


def topic_of(arguments: Row) -> bytes:
    """Return the topic name that a question names. Raises QueryError."""
    try:
        return application_message.check_topic_name("topic", arguments["topic"])
    except ValueError as error:
        raise QueryError(400, "bad_argument", f"{error}.") from None


class Asked:
    """A question about a publish, as one worker sees it.

    Args:
        arguments: topic; qos and retain of the publish; publisher, a client identifier, for No Local, hashing and what
            the ACL says; present, the workers that are asked, who tell of their own clients.
    """

    def __init__(self, queries: WorkerView, arguments: Row) -> None:
        router = queries.router
        self.topic = topic_of(arguments)
        self.message = make_message(self.topic, b"", arguments.get("qos", 0), arguments.get("retain", False))
        self.publisher: Session | None = None
        if arguments.get("publisher") is not None:  # who may be at home on another worker
            self.publisher = router.sessions.get(arguments["publisher"].encode())
        self.elsewhere = [peer.session for peer in router.peers.values() if peer.worker in arguments["present"]]


async def describe_head(queries: WorkerView, arguments: Row) -> Row:
    """Return which filters and shared groups a publish on a topic would match. Arguments as of Asked."""
    asked = Asked(queries, arguments)
    tree = queries.router.tree
    groups, archived = introspection.groups_of(tree, asked.topic)
    await trio.lowlevel.checkpoint()
    return {
        "topic": arguments["topic"], "qos": asked.message.quality_of_service, "retain": asked.message.retained,
        "filters": [{"topic_filter": text_of(topic_filter), "subscribers": count - _known(asked, tree, topic_filter)}
                    for topic_filter, count in introspection.filters_of(tree, asked.topic)],
        "groups": [_group_row(queries, group, asked) for group in groups],
        "archived": archived,
        "publisher": None if asked.publisher is None else {
            "client": arguments["publisher"], **_publisher_verdict(queries, asked.publisher, asked)},
    }  # fmt: skip


def _known(asked: Asked, tree: Any, topic_filter: bytes) -> int:
    return sum(tree.options_of(peer, topic_filter) >= 0 for peer in asked.elsewhere)


async def describe_route(queries: WorkerView, arguments: Row) -> Row:
    """Return one page of the receivers of a publish on a topic, without members of shared subscriptions.

    Args:
        arguments: as of Asked; limit and cursor.
    """
    asked = Asked(queries, arguments)
    topic, tree = asked.topic, queries.router.tree
    elsewhere = set(asked.elsewhere)

    async def receivers() -> Joined:
        return Joined(
            [
                (topic_filter, await subscribers(tree, topic_filter))
                for topic_filter, _ in introspection.filters_of(tree, topic)
                if not topic_filter.startswith(b"$share/")
            ]
        )

    def describe(item: tuple[bytes, Any]) -> Row | None:
        if item[1] in elsewhere:
            return None  # its worker tells who is behind it
        row = receiver_row(queries, item[1], topic, asked.message, asked.publisher)
        # Who matches by several filters is told of once.
        return row if row is not None and row["filters"][0]["topic_filter"] == text_of(item[0]) else None

    return await page(queries.listings, "routes", arguments, receivers, describe, ROW_COST)


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
    """Return the receivers that subscribe to exactly this topic filter.

    Whoever comes or goes meanwhile may be in it or not, and who takes the place of one that goes may be in it twice.
    """
    found: list[Any] = []
    below = 0xFFFFFFFF
    while below:
        some, below = introspection.subscribers_below(tree, topic_filter, below, SUBSCRIBERS_PER_STEP)
        found += some
        await trio.lowlevel.checkpoint()
    return found


def _publisher_verdict(queries: WorkerView, publisher: Session, asked: Asked) -> Row:
    connection = publisher.connection
    if connection is None:
        return {"connected": False, "allowed": None, "decided_by": None}
    if is_own(asked.topic):
        return {"connected": True, "allowed": False, "decided_by": "the broker's own topics"}
    decision = queries.worker.controller.acl.explain(
        connection.principal, "publish", asked.topic, asked.message.quality_of_service, asked.message.retained
    )
    return {"connected": True, "allowed": decision.grant == Grant.WHOLE, "decided_by": decision.by}


def receiver_row(
    queries: WorkerView, receiver: Any, topic: bytes, message: Message, publisher: Session | None
) -> Row | None:
    """Return what a publish would come to for one receiver, None if it does not receive the topic any more."""
    tree = queries.router.tree
    target = tree.receiver_for(topic, receiver)
    matched = [
        (topic_filter, options, identifier)
        for topic_filter, options, identifier in introspection.matching(tree, topic, receiver)
        if not topic_filter.startswith(b"$share/")
    ]
    if not matched:
        return None
    row: Row = {
        **queries.name_of(receiver), "worker": queries.number,
        "connected": not isinstance(receiver, Session) or receiver.connected,
        "filters": [{"topic_filter": text_of(topic_filter), **options_fields(options, identifier)}
                    for topic_filter, options, identifier in matched],
    }  # fmt: skip
    if target is None:
        decision = queries.worker.controller.acl.explain(receiver.principal, "read", topic, 0, False)
        return {**row, "qos": None, "outcome": "not_authorized", "decided_by": decision.by}
    if publisher is not None and receiver is publisher and target[3]:
        target = tree.receiver_for(topic, receiver, True)
        if target is None:
            return {**row, "qos": None, "outcome": "no_local"}
    qos = min(target[1], message.quality_of_service)
    return {**row, "qos": qos, "outcome": introspection.outcome(receiver, message, qos)}


def _group_row(queries: WorkerView, group: Any, asked: Asked) -> Row:
    picks = introspection.group_picks(group, asked.publisher, asked.message, MEMBERS_SHOWN_MAX + len(asked.elsewhere))
    here = introspection.group_picks(group, asked.publisher, asked.message, 0, True)
    name, _, topic_filter = picks["name"].partition(b"/")
    members = [member for member in picks["members"] if member not in asked.elsewhere]
    return {
        "group": text_of(name), "topic_filter": text_of(topic_filter), "strategy": picks["strategy"],
        "members": picks["count"] - _known(asked, queries.router.tree, b"$share/" + picks["name"]),
        "worker": queries.number, "shown": [queries.name_of(member) for member in members[:MEMBERS_SHOWN_MAX]],
        **_pick(queries, picks, asked.message), "here": _pick(queries, here, asked.message),
    }  # fmt: skip


def _pick(queries: WorkerView, picks: Row, message: Message) -> Row:
    picked = picks["picked"]
    if picked is None:
        return {"picked": None, "outcome": "no_member"}
    qos = min(picks["picked_options"] & QOS_BITS, message.quality_of_service)
    return {"picked": queries.name_of(picked), "qos": qos, "outcome": introspection.outcome(picked, message, qos)}
