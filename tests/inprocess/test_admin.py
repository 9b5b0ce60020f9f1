"""What the admin socket answers, asked of a broker in this process: clients, routes, history, pages, refusals."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.lowlevel

from broker.admin.api import Admin
from broker.admin.pagination import QueryError
from broker.admin.requests import Streamed
from broker.auth.acl import AllowAll
from broker.auth.principal import Principal
from broker.config.loader import Config, Mqtt, Shutdown
from broker.processes.admin_backend_local import OneWorker
from broker.wire.packets import Ack, Disconnect, PacketType, Publish, Subscribe, subscription
from broker.wire.reasons import Reason
from broker.worker.worker import Worker, open_broker
from tests.support.embedded import CONFIG, TIMEOUT_S, Device, device

KEPT: dict[str, Any] = {"clean_start": False, "properties": {"session_expiry_interval": 1000}}


class Asked:
    """A broker with a log, and what its admin socket would answer."""

    def __init__(self, broker: Worker, folder: Path) -> None:
        self.broker = broker
        self.admin = Admin(OneWorker(broker, folder))

    async def get(self, target: str, method: str = "GET", body: bytes = b"") -> dict[str, Any]:
        answer = await self.admin.answer(method, target, body)
        assert not isinstance(answer, Streamed)
        return answer[1]

    async def rows(self, target: str) -> list[dict[str, Any]]:
        """All pages of a listing."""
        rows: list[dict[str, Any]] = []
        cursor = ""
        while True:
            page = await self.get(f"{target}{'&' if '?' in target else '?'}{cursor}")
            rows += page["rows"]
            if page["cursor"] is None:
                return rows
            cursor = f"cursor={page['cursor']}"

    async def refused(self, target: str, method: str = "GET", body: bytes = b"") -> tuple[int, str]:
        with pytest.raises(QueryError) as caught:
            await self.admin.answer(method, target, body)
        return caught.value.status, caught.value.reason


def asking(run: Callable[[Asked], Awaitable[None]], config: Config = CONFIG, **seams: Any) -> Callable[[Path], None]:
    """Make a test of `async def test(asked)`: a broker with a log in a folder of its own."""

    def test(tmp_path: Path) -> None:
        async def main() -> None:
            with trio.fail_after(TIMEOUT_S):
                async with open_broker(config, folder=tmp_path, **seams) as broker:
                    await run(Asked(broker, tmp_path))

        trio.run(main)

    test.__name__ = run.__name__
    return test


async def acknowledged(client: Device) -> Publish:
    """Take a message of QoS 1 and acknowledge it."""
    message: Publish = await client.receive()
    await client.send(Ack(PacketType.PUBACK, message.packet_identifier))
    return message


async def away(asked: Asked, name: bytes, *topic_filters: tuple[bytes, int]) -> None:
    """Leave a session with these subscriptions behind."""
    async with device(asked.broker, name, **KEPT) as client:
        for topic_filter, qos in topic_filters:
            await client.subscribe(topic_filter, qos)
        await client.send(Disconnect())
        assert await client.receive() is None


# Clients and sessions -------------------------------------------------------------------------------------------------


@asking
async def test_a_client_is_listed_with_what_it_did(asked: Asked) -> None:
    async with device(asked.broker, b"a/b", **KEPT) as client, device(asked.broker, b"other"):
        await client.subscribe(b"x/#", 1)
        (row,) = await asked.rows("/clients?prefix=a")
        assert (row["client"], row["version"], row["subscriptions"], row["connected_s"] >= 0) == ("a/b", 5, 1, True)
        one = await asked.get("/clients/a%2Fb")
        assert one["connected"]
        assert one["topic_filters"] == [{"topic_filter": "x/#", "qos": 1}]
        assert one["session_expiry_interval_s"] == 1000
    assert await asked.refused("/clients/nobody") == (404, "unknown_client")


@asking
async def test_a_session_without_a_connection_shows_what_waits(asked: Asked) -> None:
    await away(asked, b"sleeper", (b"t", 1))
    async with device(asked.broker, b"pub") as publisher:
        await publisher.publish(b"t", b"1234", 1)
    (row,) = await asked.rows("/sessions?connected=false")
    assert (row["client"], row["queued"], row["queued_bytes"], row["connected"]) == ("sleeper", 1, 5, False)
    assert 0 < row["expires_in_s"] <= 1000
    one = await asked.get("/clients/sleeper")
    (delivery,) = one["deliveries"]
    assert (delivery["state"], delivery["topic"], delivery["qos"]) == ("queued", "t", 1)


@asking
async def test_an_in_process_client_is_listed_too(asked: Asked) -> None:
    async with asked.broker.client("inside") as client:
        await client.subscribe("a/+")
        assert [(row["client"], row["in_process"]) for row in await asked.rows("/clients")] == [("inside", True)]
        assert await asked.rows("/subscriptions") == [
            {"client": "inside", "in_process": True, "worker": 0, "topic_filter": "a/+", "qos": 0}
        ]


@asking
async def test_every_entry_comes_once_however_it_is_paged(asked: Asked) -> None:
    for number in range(250):
        asked.broker.router.open_session(b"s%03d" % number, False, 100)
    names = [row["client"] for row in await asked.rows("/sessions?limit=7")]
    assert names == [f"s{number:03d}" for number in range(250)]
    page = await asked.get("/sessions?limit=100")
    for number in range(100, 150):
        asked.broker.router.end_session(asked.broker.router.sessions[b"s%03d" % number])
    asked.broker.router.open_session(b"late", False, 100)
    rest = (await asked.get(f"/sessions?limit=1000&cursor={page['cursor']}"))["rows"]
    assert [row["client"] for row in rest] == [f"s{number:03d}" for number in range(150, 250)]


@asking
async def test_a_cursor_that_no_listing_gave_is_refused(asked: Asked) -> None:
    for number in range(20):
        asked.broker.router.open_session(b"s%03d" % number, False, 100)
    cursor = (await asked.get("/sessions?limit=5"))["cursor"]
    assert await asked.refused(f"/clients?cursor={cursor}") == (400, "bad_cursor")
    for wrong in ("x", "0", "0:x", "0:1.-2", "0:1.2.3.4", "7:1.5"):
        assert await asked.refused(f"/sessions?cursor={wrong}") == (400, "bad_cursor"), wrong
    assert await asked.refused("/sessions?cursor=0:99.5") == (409, "listing_ended")
    assert await asked.refused("/sessions?limit=0") == (400, "bad_argument")
    assert len(await asked.rows("/sessions")) == 20


class Steps(trio.abc.Instrument):
    """Counts how often a task has run."""

    def __init__(self) -> None:
        self.count = 0

    def before_task_step(self, task: Any) -> None:
        self.count += 1


@asking
async def test_a_long_page_is_made_in_many_steps(asked: Asked) -> None:
    for number in range(3000):
        asked.broker.router.open_session(b"%06d" % number, False, 100)
    steps = Steps()
    trio.lowlevel.add_instrument(steps)
    assert len((await asked.get("/sessions?limit=1000"))["rows"]) == 1000
    assert steps.count >= 1000 * 41 // 2000
    steps.count = 0
    assert (await asked.get("/sessions?limit=1000&prefix=none"))["rows"] == []
    assert steps.count >= 1
    trio.lowlevel.remove_instrument(steps)


# Kick, publish, level -------------------------------------------------------------------------------------------------


@asking
async def test_a_kicked_client_is_told_why_and_may_come_back(asked: Asked) -> None:
    async with device(asked.broker, b"c", **KEPT) as client:
        answer = await asked.get("/clients/c/kick", "POST")
        assert answer["disconnected"]
        assert (await client.receive()).reason == Reason.ADMINISTRATIVE_ACTION
        assert await client.receive() is None
    assert asked.broker.metrics().ends["kicked"] == 1
    assert await asked.refused("/clients/c/kick", "POST") == (409, "not_connected")
    async with device(asked.broker, b"c", **KEPT):
        assert (await asked.get("/clients/c"))["connected"]


@asking
async def test_a_kick_with_the_session_ends_it_connected_or_not(asked: Asked) -> None:
    async with device(asked.broker, b"c", **KEPT) as client:
        await asked.get("/clients/c/kick", "POST", b'{"session": true}')
        assert isinstance(await client.receive(), Disconnect)
        assert await client.receive() is None
    await away(asked, b"d")
    await asked.get("/clients/d/kick?session=true", "POST")
    assert await asked.rows("/sessions") == []


@asking
async def test_what_is_published_reaches_its_receivers_and_is_retained(asked: Asked) -> None:
    async with device(asked.broker, b"c", **KEPT) as client:
        await client.subscribe(b"t/#", 1)
        answer = await asked.get("/publish", "POST", b'{"topic": "t/1", "payload": "hi", "qos": 1, "retain": true}')
        assert answer == {"topic": "t/1", "receivers": 1, "recorded": True, "unknown": []}
        message = await acknowledged(client)
        assert (message.topic, message.payload, message.qos) == (b"t/1", b"hi", 1)
        await asked.get("/publish", "POST", b'{"topic": "t/2", "payload_base64": "/w==", "retain": true}')
        assert (await client.receive()).payload == b"\xff"
    rows = await asked.rows("/retained?filter=t/%2B&limit=1")
    assert [
        (row["topic"], row.get("payload"), row.get("payload_base64"))
        for row in sorted(rows, key=lambda row: row["topic"])
    ] == [("t/1", "hi", None), ("t/2", None, "/w==")]


@asking
async def test_wrong_questions_are_refused_and_disturb_nothing(asked: Asked) -> None:
    for method, target, body, status in (
        ("GET", "/nothing", b"", 404),
        ("GET", "/", b"", 404),
        ("POST", "/clients", b"", 405),
        ("DELETE", "/clients/x", b"", 405),
        ("GET", "/clients?limit=x", b"", 400),
        ("GET", "/clients?wrong=1", b"", 400),
        ("GET", "/routes", b"", 400),
        ("GET", "/routes?topic=a/%23", b"", 400),
        ("GET", "/routes?topic=a&publisher=x", b"", 404),
        ("GET", "/retained?filter=%23/a", b"", 400),
        ("GET", "/retained?filter=$share/a/b", b"", 400),
        ("POST", "/publish", b"{", 400),
        ("POST", "/publish", b"[]", 400),
        ("POST", "/publish", b"{}", 400),
        ("POST", "/publish", b'{"topic": "a/+"}', 400),
        ("POST", "/publish", b'{"topic": 1}', 400),
        ("POST", "/publish", b'{"topic": "a", "qos": 3}', 400),
        ("POST", "/publish", b'{"topic": "$SYS/a"}', 400),
        ("POST", "/publish", b'{"topic": "a", "qos": true}', 400),
        ("POST", "/publish", b'{"topic": "a", "payload_base64": "?"}', 400),
        ("PUT", "/log-level", b'{"level": "loud"}', 400),
        ("GET", "/clients/x/why?topic=a", b"", 404),
        ("GET", "/sessions?connected=perhaps", b"", 400),
    ):
        assert (await asked.refused(target, method, body))[0] == status, (method, target, body)
    assert (await asked.get("/status"))["ready"]


# Routes ---------------------------------------------------------------------------------------------------------------


class NoSecrets(AllowAll):
    """Nobody publishes under `secret`."""

    def may_publish(self, principal: Principal, topic_name: bytes, qos: int, retain: bool) -> bool:
        return not topic_name.startswith(b"secret")


@asking
async def test_routes_say_who_gets_a_message_and_why(asked: Asked) -> None:
    await away(asked, b"away", (b"a/+", 1))
    async with device(asked.broker, b"here") as here, device(asked.broker, b"own") as own:
        await here.subscribe(b"a/b", 0)
        await here.subscribe(b"a/#", 2)
        await own.send(Subscribe(1, (subscription(b"a/b", 1, no_local=True),)))
        await own.receive()
        found = await asked.get("/routes?topic=a/b&qos=1&publisher=own")
        assert {row["topic_filter"]: row["subscribers"] for row in found["filters"]} == {"a/+": 1, "a/b": 2, "a/#": 1}
        assert found["publisher"] == {"client": "own", "connected": True, "allowed": True, "decided_by": "AllowAll"}
        rows = {row["client"]: row for row in found["rows"]}
        assert {name: (row["qos"], row["outcome"]) for name, row in rows.items()} == {
            "away": (1, "queued"),
            "here": (1, "sent"),
            "own": (None, "no_local"),
        }
        assert {match["topic_filter"]: match["qos"] for match in rows["here"]["filters"]} == {"a/b": 0, "a/#": 2}
        at_0 = {row["client"]: row["outcome"] for row in (await asked.get("/routes?topic=a/b"))["rows"]}
        assert at_0 == {"away": "offline", "here": "sent", "own": "sent"}
        assert (await asked.get("/routes?topic=none"))["rows"] == []


@asking
async def test_routes_name_the_member_that_a_shared_subscription_would_pick_and_use_up_no_turn(asked: Asked) -> None:
    async with device(asked.broker, b"one") as one, device(asked.broker, b"two") as two:
        for member in (one, two):
            await member.subscribe(b"$share/g/a/+", 1)
        for _ in range(3):
            (group,) = (await asked.get("/routes?topic=a/b&qos=1"))["groups"]
            assert (group["group"], group["members"], group["picked"]["client"]) == ("g", 2, "one")
            assert (group["strategy"], group["outcome"], group["qos"]) == ("round_robin", "sent", 1)
        await asked.get("/publish", "POST", b'{"topic": "a/b", "qos": 1}')
        await acknowledged(one)
        assert (await asked.get("/routes?topic=a/b&qos=1"))["groups"][0]["picked"] == {"client": "two"}


async def _not_allowed(asked: Asked) -> None:
    async with device(asked.broker, b"p"):
        assert (await asked.get("/routes?topic=secret/1&publisher=p"))["publisher"]["allowed"] is False
        assert (await asked.get("/routes?topic=other&publisher=p"))["publisher"]["allowed"] is True


test_routes_say_what_the_acl_says_of_the_publisher = asking(_not_allowed, acl=NoSecrets())


@asking
async def test_subscriptions_are_listed_by_client_and_by_filter(asked: Asked) -> None:
    async with device(asked.broker, b"one") as one, device(asked.broker, b"two") as two:
        for number in range(30):
            await one.subscribe(b"t/%d" % number, 1)
        for client in (one, two):
            await client.subscribe(b"both", 2)
        await two.subscribe(b"$share/g/both", 0)
        of_one = await asked.rows("/subscriptions?client=one&limit=4")
        assert {row["topic_filter"] for row in of_one} == {*(f"t/{number}" for number in range(30)), "both"}
        assert len(of_one) == 31
        assert len(await asked.rows("/subscriptions?limit=5")) == 33
        assert {row["client"] for row in await asked.rows("/subscriptions?filter=both")} == {"one", "two"}
        assert [row["client"] for row in await asked.rows("/subscriptions?filter=$share/g/both")] == ["two"]
        assert await asked.rows("/subscriptions?filter=none") == []
    assert await asked.refused("/subscriptions?client=three") == (404, "unknown_client")


# Why ------------------------------------------------------------------------------------------------------------------


def fates(answer: dict[str, Any]) -> list[tuple[str | None, str]]:
    return [(row.get("payload"), row["fate"]) for row in answer["messages"]]


@asking
async def test_why_tells_queued_from_sent_and_from_acknowledged(asked: Asked) -> None:
    async with device(asked.broker, b"c", **KEPT) as client, device(asked.broker, b"pub") as publisher:
        await client.subscribe(b"a/#", 2)
        await publisher.publish(b"a/1", b"taken", 1)
        await acknowledged(client)
        await publisher.publish(b"a/2", b"elsewhere", 1)
        await acknowledged(client)
        await publisher.publish(b"a/1", b"refused", 1)
        message = await client.receive()
        await client.send(Ack(PacketType.PUBACK, message.packet_identifier, Reason.QUOTA_EXCEEDED))
        await publisher.publish(b"a/1", b"half", 2)
        message = await client.receive()
        await client.send(Ack(PacketType.PUBREC, message.packet_identifier))
        assert (await client.receive()).type == PacketType.PUBREL
        await publisher.publish(b"a/1", b"waiting", 1)
        await client.receive()
        answer = await asked.get("/clients/c/why?topic=a/1")
        assert fates(answer) == [
            ("taken", "acknowledged"),
            ("refused", "refused"),
            ("half", "received_not_complete"),
            ("waiting", "sent_not_acknowledged"),
        ]
        assert answer["messages"][1]["reason"] == "0x97"
        assert answer["messages"][3]["packet_identifier"] == 5
        assert answer["filters"] == [{"topic_filter": "a/#", "qos": 2}]
        assert (answer["would_be"], answer["in_flight"]) == ("sent", 2)
    await asked.get("/publish", "POST", b'{"topic": "a/1", "payload": "later", "qos": 1}')
    answer = await asked.get("/clients/c/why?topic=a/1&last=1")
    assert fates(answer) == [("later", "queued")]
    assert answer["would_be"] == "queued"
    assert (await asked.get("/clients/c/why?topic=b"))["would_be"] == "no_subscription"


async def _full_queue(asked: Asked) -> None:
    await away(asked, b"c", (b"a", 1))
    for payload in (b"1", b"2", b"3"):
        await asked.get("/publish", "POST", b'{"topic": "a", "qos": 1, "retain": true, "payload": "%b"}' % payload)
    answer = await asked.get("/clients/c/why?topic=a")
    assert fates(answer) == [("1", "queued"), ("2", "queued"), ("3", "skipped")]
    assert answer["messages"][2]["reason"] == "queue_full"
    assert answer["would_be"] == "queue_full"


test_why_names_the_reason_for_which_a_message_was_left_out = asking(
    _full_queue, Config(listen=CONFIG.listen, mqtt=Mqtt(queue_messages_max=2), shutdown=Shutdown(drain_s=0.5))
)


@asking
async def test_why_says_that_qos_0_leaves_no_trace_and_that_nothing_matched(asked: Asked) -> None:
    await away(asked, b"c", (b"a", 0))
    await away(asked, b"other", (b"#", 1))
    for topic in ("a", "b"):
        await asked.get("/publish", "POST", b'{"topic": "%b", "qos": 1}' % topic.encode())
    assert fates(await asked.get("/clients/c/why?topic=a")) == [("", "qos0_not_recorded")]
    assert fates(await asked.get("/clients/c/why?topic=b")) == [("", "not_subscribed")]


@asking
async def test_why_finds_a_message_far_back_in_the_log(asked: Asked) -> None:
    await away(asked, b"c", (b"#", 1))
    publish = b'{"topic": "rare", "qos": 1, "payload": "old"}'
    await asked.get("/publish", "POST", publish)
    async with asked.broker.client("load") as load:
        for _ in range(3000):
            asked.broker.in_process.publish(load.local, _message(b"often"))
            if _ % 100 == 0:
                await trio.lowlevel.checkpoint()
        await load.publish("often", b"", qos=1)
    assert fates(await asked.get("/clients/c/why?topic=rare")) == [("old", "queued")]


def _message(topic: bytes) -> Any:
    from router.core.message import message

    return message(topic, b"x", 1)


# Trace and watch ------------------------------------------------------------------------------------------------------


class Watcher:
    """Reads what is streamed, in a task of its own."""

    def __init__(self, asked: Asked, target: str) -> None:
        self.asked, self.target = asked, target
        self.events: list[dict[str, Any]] = []
        self.arrived = trio.Event()

    async def run(self, task_status: Any) -> None:
        answer = await self.asked.admin.answer("GET", self.target, b"")
        assert isinstance(answer, Streamed)
        try:
            async for event in answer.lines:
                if event.get("event") == "tracing":
                    task_status.started()
                elif event:
                    self.events.append(event)
                    self.arrived.set()
                    self.arrived = trio.Event()
        finally:
            with trio.CancelScope(shield=True):
                await answer.lines.aclose()  # type: ignore[attr-defined]

    async def until(self, wanted: Callable[[dict[str, Any]], bool]) -> list[dict[str, Any]]:
        while not any(map(wanted, self.events)):
            await self.arrived.wait()
        return self.events


@asking
async def test_a_trace_shows_a_client_from_its_connect_to_its_end(asked: Asked) -> None:
    watcher = Watcher(asked, "/clients/c/trace")
    async with trio.open_nursery() as nursery:
        await nursery.start(watcher.run)
        async with device(asked.broker, b"c", user_name="me", password=b"hidden") as client:
            await client.subscribe(b"t", 1)
            await asked.get("/publish", "POST", b'{"topic": "t", "payload": "hi", "qos": 1}')
            await acknowledged(client)
            await client.send(Disconnect())
            assert await client.receive() is None
        events = await watcher.until(lambda event: event.get("event") == "connection_ended")
        nursery.cancel_scope.cancel()
    seen = [(event.get("direction", "event"), event.get("packet", event.get("event"))) for event in events]
    assert seen == [
        ("event", "connected"),
        ("out", "CONNACK"),
        ("in", "SUBSCRIBE"),
        ("out", "SUBACK"),
        ("out", "PUBLISH"),
        ("in", "PUBACK"),
        ("in", "DISCONNECT"),
        ("event", "connection_ended"),
    ]
    assert events[0]["user_name"] == "me"
    assert "hidden" not in str(events)
    assert (events[4]["topic"], events[4]["payload"], events[-1]["reason"]) == ("t", "hi", "client_disconnect")
    assert not asked.broker.controller.taps.looks


@asking
async def test_a_trace_that_begins_in_the_middle_knows_topic_aliases(asked: Asked) -> None:
    watcher = Watcher(asked, "/clients/c/trace")
    async with device(asked.broker, b"c", properties={"topic_alias_maximum": 5}) as client:
        await client.subscribe(b"#")
        await client.publish(b"in", b"", 0, properties={"topic_alias": 3})
        assert (await client.receive()).topic == b"in"
        async with trio.open_nursery() as nursery:
            await nursery.start(watcher.run)
            await client.publish(b"", b"x", 0, properties={"topic_alias": 3})
            assert (await client.receive()).topic == b""
            events = await watcher.until(lambda event: event["direction"] == "out")
            nursery.cancel_scope.cancel()
    assert [(event["direction"], event["topic"], event["payload"]) for event in events] == [
        ("in", "in", "x"),
        ("out", "in", "x"),
    ]


@asking
async def test_a_malformed_packet_is_seen_and_then_the_end(asked: Asked) -> None:
    watcher = Watcher(asked, "/clients/c/trace")
    async with device(asked.broker, b"c") as client, trio.open_nursery() as nursery:
        await nursery.start(watcher.run)
        await client.client.send(b"\x36\x02\x00\x00", False)  # PUBLISH of QoS 3
        assert (await client.receive()).reason == Reason.MALFORMED_PACKET
        events = await watcher.until(lambda event: event.get("packet") == "DISCONNECT")
        nursery.cancel_scope.cancel()
    assert events[0]["packet"] == "MALFORMED"
    assert {"event": "connection_ended", "reason": "malformed_packet"}.items() <= events[1].items()


async def _watched(asked: Asked) -> None:
    watcher = Watcher(asked, "/clients/c/why?topic=a&watch=true")
    async with trio.open_nursery() as nursery:
        await nursery.start(watcher.run)
        async with device(asked.broker, b"c", **KEPT) as client, device(asked.broker, b"p") as publisher:
            await client.subscribe(b"#", 1)
            await publisher.publish(b"b", b"", 1)
            await acknowledged(client)
            await publisher.publish(b"a", b"1", 1)
            await acknowledged(client)
            await publisher.publish(b"secret", b"", 0)
            await client.send(Disconnect())
            assert await client.receive() is None
            await publisher.publish(b"a", b"2", 1)
            await publisher.publish(b"a", b"3", 0)
            await watcher.until(lambda event: event.get("reason") == "offline")
        nursery.cancel_scope.cancel()
    deliveries = [
        (event["qos"], event["outcome"], event.get("reason"))
        for event in watcher.events
        if event.get("event") == "delivery"
    ]
    assert deliveries == [(1, "sent", None), (1, "queued", None), (0, "dropped", "offline")]
    packets = [(event["packet"], event["packet_identifier"]) for event in watcher.events if "packet" in event]
    assert packets == [("PUBLISH", 2), ("PUBACK", 2)]


test_why_with_watch_shows_every_decision_on_the_topic_and_nothing_else = asking(_watched, acl=NoSecrets())


async def _refused_publish(asked: Asked) -> None:
    watcher = Watcher(asked, "/clients/c/why?topic=secret&watch=true")
    async with trio.open_nursery() as nursery:
        await nursery.start(watcher.run)
        async with device(asked.broker, b"p") as publisher:
            await publisher.publish(b"secret", b"", 0)
            events = await watcher.until(lambda event: event.get("event") == "publish_refused")
        nursery.cancel_scope.cancel()
    assert (events[0]["publisher"], events[0]["reason"]) == ("p", "not_authorized")


test_why_with_watch_names_a_publish_that_the_acl_refused = asking(_refused_publish, acl=NoSecrets())
