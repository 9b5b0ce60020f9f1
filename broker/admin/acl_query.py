"""What a client may do, and which rule says so: a client that is there, or one that could be."""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING, Any, Final, cast

from broker.admin.pagination import QueryError, Row
from broker.auth.acl import Decision, Grant, inner_filter
from broker.auth.principal import Principal
from broker.wire import application_message
from router.matching.topic_names import check_topic_filter, is_own, is_state_filter, parse_shared
from router.sessions.replay_subscription import parse_replay

if TYPE_CHECKING:
    from broker.admin.worker_view import WorkerView

ACTIONS: Final = ("publish", "subscribe", "read")
ASSUMED: Final = ("user", "address", "listener", "groups")
OWN: Final = Decision(Grant.REFUSED, "the broker's own topics")


async def describe_decision(queries: WorkerView, arguments: Row) -> Row:
    """Return what a client may do with a topic, and what decides it.

    Args:
        arguments: client; action; topic, a topic filter where it is subscribe; qos and retain of a publish; user,
            address, listener (from 1) and groups: the client as it would be, whether or not it is there.
    """
    action = arguments["action"]
    if action not in ACTIONS:
        raise QueryError(400, "bad_argument", f"action is one of {', '.join(ACTIONS)}, not {action!r}.")
    if not 0 <= arguments.get("qos", 0) <= 2:
        raise QueryError(400, "bad_argument", "qos is 0, 1 or 2.")
    principal, known = _principal(queries, arguments)
    decision = _decided(queries, principal, action, arguments)
    acl = queries.worker.controller.acl
    if acl.waits:
        topic, qos, retain = arguments["topic"].encode(), arguments.get("qos", 0), arguments.get("retain", False)
        await acl.fetch(principal, action, topic, qos, retain)
        decision = _decided(queries, principal, action, arguments)
    return {
        "client": arguments["client"],
        "user": principal.user_name,
        "address": principal.address,
        "known_from": known,
        "action": action,
        "topic": arguments["topic"],
        "allowed": decision.grant.name.lower(),
        "decided_by": decision.by,
    }


def _principal(queries: WorkerView, arguments: Row) -> tuple[Principal, str]:
    """Return whom the question is about, and where that is known from."""
    client = arguments["client"].encode()
    session = queries.router.sessions.get(client)
    connection = None if session is None else session.connection
    if connection is not None and not any(name in arguments for name in ASSUMED):
        return connection.principal, "connection"
    address = arguments.get("address")
    if address is not None:
        try:
            ipaddress.ip_address(address)
        except ValueError:
            raise QueryError(400, "bad_argument", f"address is an IP address, not {address!r}.") from None
    listener = arguments.get("listener", 1)
    if not 1 <= listener <= len(queries.worker.entrances):
        raise QueryError(400, "bad_argument", f"listener is 1 to {len(queries.worker.entrances)}, not {listener}.")
    groups = tuple(group for group in arguments.get("groups", "").split(",") if group)
    return Principal(arguments.get("user"), client, address, listener - 1, groups=groups), "question"


def _decided(queries: WorkerView, principal: Principal, action: str, arguments: Row) -> Decision:
    acl: Any = queries.worker.controller.acl
    name, qos, retain = arguments["topic"], arguments.get("qos", 0), arguments.get("retain", False)
    encoded = name.encode()
    if action != "subscribe":
        try:
            application_message.check_topic_name("topic", name)
        except ValueError as error:
            raise QueryError(400, "bad_argument", f"{error}.") from None
        if is_own(encoded) if action == "publish" else is_state_filter(encoded):
            return OWN
        return cast(Decision, acl.explain(principal, action, encoded, qos, retain))
    try:
        wrong = check_topic_filter(encoded)
        if wrong is not None:
            raise ValueError(wrong)
        if parse_shared(encoded) is None and encoded.startswith(b"$replay/"):
            parse_replay(encoded, 0)
    except ValueError as error:
        raise QueryError(400, "bad_argument", f"topic: {error}.") from None
    if is_state_filter(inner_filter(encoded)):
        return OWN
    return cast(Decision, acl.explain(principal, "subscribe", encoded, qos, False))
