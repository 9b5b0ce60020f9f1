"""Which topics are the broker's own, as everything sees them that asks: $SYS, $replay, $shoal, and nothing beside."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
import trio

from broker.admin.worker_queries import Queries
from broker.config.loader import Mqtt, load
from broker.wire.packets import Publish, Suback, Subscribe, subscription
from broker.worker.worker import open_broker
from mesh.interest import Interest, Wish
from router.router import Router
from router.sessions.ledger import Ledger
from tests.support.embedded import CONFIG, device

OWN = ("$SYS", "$SYS/x", "$replay", "$replay/-1h/x", "$shoal", "$shoal/bans/x")
OTHERS = ("$SYSTEM/x", "$SYS2", "$replays/x", "$shoals/x", "$other/x", "SYS/x", "a/$shoal/x")


async def test_what_is_said_of_them_is_what_is_done() -> None:
    with trio.fail_after(60):
        async with open_broker(CONFIG) as broker, device(broker, b"c1"):
            queries = Queries(broker)

            async def decided(action: str, topic: str) -> tuple[str, str]:
                answer = await queries.answer("acl", {"client": "c1", "action": action, "topic": topic})
                return answer["allowed"], answer["decided_by"]

            refused = ("refused", "the broker's own topics")
            for topic in OWN:
                assert await decided("publish", topic) == refused
                asked: dict[str, Any] = {"topic": topic, "publisher": "c1", "present": []}
                head = await queries.answer("route_head", asked)
                assert head["publisher"] == {
                    "client": "c1",
                    "connected": True,
                    "allowed": False,
                    "decided_by": "the broker's own topics",
                }
                assert (await queries.answer("publish", {"topic": topic}))["error"]["reason"] == "not_authorized"
            for topic in OTHERS:
                assert (await decided("publish", topic))[0] == "whole"
                head = await queries.answer("route_head", {"topic": topic, "publisher": "c1", "present": []})
                assert head["publisher"]["allowed"] is True
                assert (await queries.answer("publish", {"topic": topic}))["topic"] == topic
            for topic_filter in ("$shoal/#", "$shoal", "$share/g/$shoal/bans/+", "$replay/-1h/$shoal/#"):
                assert await decided("subscribe", topic_filter) == refused
            assert await decided("read", "$shoal/bans/x") == refused
            for topic_filter in ("$SYS/#", "$shoals/#", "#", "$replay/-1h/$SYS/#"):
                assert (await decided("subscribe", topic_filter))[0] == "whole"


async def test_a_topic_whose_name_begins_like_sys_is_retained_as_any_other() -> None:
    config = msgspec.structs.replace(CONFIG, mqtt=Mqtt(sys_interval_s=60))
    with trio.fail_after(60):
        async with open_broker(config) as broker, device(broker, b"c1") as client:
            await client.send(Publish(b"$SYSTEM/x", b"kept", 1, True, packet_identifier=1))
            await client.receive()
            assert broker.router.retained_message(b"$SYSTEM/x").body == b"kept"
            await client.send(Subscribe(2, (subscription(b"$SYSTEM/#", 1),)))
            found = [await client.receive(), await client.receive()]
            assert {type(packet) for packet in found} == {Suback, Publish}


def test_peers_hear_who_wants_a_topic_whose_name_begins_like_sys() -> None:
    router = Router(Ledger())
    interest = router.interest = Interest()
    session, _ = router.open_session(b"c", False, 60)
    for topic_filter in (b"$SYS", b"$SYS/#", b"$SYSTEM/#", b"$shoal/bans/#"):
        router.subscribe(session, topic_filter, 1)
    assert interest.take(0) == [(b"$SYSTEM/#", Wish(1, True, 0)), (b"$shoal/bans/#", Wish(1, True, 0))]


@pytest.mark.parametrize("topic_filter", ["$shoal/#", "$SYS/#", "$share/g/x", "$replay/x"])
def test_they_are_not_archived(topic_filter: str) -> None:
    with pytest.raises(Exception, match="is not archived"):
        load(None, {}, {"archive.topic_filters": [topic_filter]})
