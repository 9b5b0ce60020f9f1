"""Clients about whose rights a server is asked over HTTP: one that answers, stalls, dies, lies and comes back."""

from __future__ import annotations

import json
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import msgspec
import pytest
import trio

from broker import logs
from broker.auth import http_authorizer
from broker.auth.http_authorizer import HttpAuthorizer
from broker.auth.http_client import HttpAnswer, HttpError
from broker.auth.http_rights import WISHES, Wish, answer_to
from broker.auth.principal import Principal
from broker.config.authorizer import AclFileTable, HttpRightsTable
from broker.config.loader import Config, Log
from broker.control import rights_questions
from broker.wire.packets import Ack, Connack, Connect, Disconnect, Pingreq, Pingresp, Publish, Suback, Subscribe, Will
from broker.wire.packets import subscription as wanted
from broker.wire.properties import PacketType
from broker.wire.reasons import CloseReason, Reason
from broker.worker.worker import Worker, open_broker
from shoal import RefusedError
from tests.inprocess.test_acl_files import granted, published
from tests.support.embedded import CONFIG, Device, until
from tests.support.http_backend import Answer, Asked, Backend, running

REFUSED, AWAY = Reason.NOT_AUTHORIZED, Reason.IMPLEMENTATION_SPECIFIC_ERROR
LONG = {"Cache-Control": "max-age=600"}


def says(result: str, headers: dict[str, str] | None = None) -> Answer:
    return 200, LONG if headers is None else headers, json.dumps({"result": result}).encode()


def by_topic(**results: str) -> Callable[[Asked], Answer]:
    """Return what answers by the first level of the topic, `deny` about any other."""

    def answer(asked: Asked) -> Answer:
        return says(results.get(json.loads(asked.body)["topic"].partition("/")[0], "deny"))

    return answer


ANSWERS = by_topic(a="allow", b="allow", i="ignore")


def down(_asked: Asked) -> Answer:
    return 500, {}, b""


@pytest.fixture
def backend() -> Any:
    with running(Backend(ANSWERS)) as found:
        yield found


def settings(*tables: Any, **more: Any) -> Config:
    return msgspec.structs.replace(CONFIG, authorizer=tables, **more)


@asynccontextmanager
async def serving(*tables: Any, folder: Path | None = None, **more: Any) -> AsyncIterator[Worker]:
    with trio.fail_after(60):
        async with open_broker(settings(*tables, **more), folder=folder) as broker:
            yield broker


@asynccontextmanager
async def come(
    broker: Worker, name: bytes = b"c", version: int = 5, user: str | None = "ann", **more: Any
) -> AsyncIterator[Device]:
    async with await trio.open_tcp_stream("127.0.0.1", broker.addresses[0].port) as stream:
        client = Device(stream, version)
        await client.send(Connect(version, name, user_name=user, **more))
        connack = await client.receive()
        assert isinstance(connack, Connack)
        assert connack.reason == Reason.SUCCESS
        yield client


def member_of(broker: Worker) -> HttpAuthorizer:
    assert broker.reload.authorizers is not None
    (found,) = [one for one in broker.reload.authorizers.chain.members if isinstance(one, HttpAuthorizer)]
    return found


def age(broker: Worker, by_s: float) -> None:
    """Have what is remembered be older, in the server's member and at the connections."""
    answers = vars(member_of(broker))["_answers"]
    for key, known in list(answers.items()):
        answers[key] = replace(known, until_s=known.until_s - by_s, stale_until_s=known.stale_until_s - by_s)
    for connection in broker.reactor.connections_snapshot():
        connection.renew_salt(id(answers) + round(by_s))


async def lives(client: Device) -> None:
    await client.send(Pingreq())
    assert isinstance(await client.receive(), Pingresp)


async def test_a_server_decides_and_each_answer_is_remembered(backend: Backend) -> None:
    async with serving(HttpRightsTable(urls=(backend.url,))) as broker, come(broker) as client:
        for _ in range(3):
            assert await published(client, b"a/x") != REFUSED
            assert await published(client, b"z") == REFUSED
            assert await granted(client, b"b/#") == 0
            assert await granted(client, b"z/#") == REFUSED
        assert [json.loads(asked.body)["topic"] for asked in backend.asked] == ["a/x", "z", "b/#", "z/#"]
        assert json.loads(backend.asked[0].body) == {
            "action": "publish",
            "topic": "a/x",
            "qos": 1,
            "retain": False,
            "client_identifier": "c",
            "user_name": "ann",
            "groups": [],
            "address": "127.0.0.1",
            "listener": 0,
            "certificate": None,
        }
        # What is different is asked about by itself: RETAIN, QoS, another client.
        await client.send(Publish(b"a/x", b"", 1, True, packet_identifier=3))
        assert (await client.receive()).reason != REFUSED
        await client.send(Publish(b"a/x", b"", 0))
        async with come(broker, b"d") as other:
            assert await published(other, b"a/x") != REFUSED
        assert len(backend.asked) == 7
        assert await granted(client, b"$share/g/b/#") == 0
        assert len(backend.asked) == 7  # the topic filter in it is the one that was asked about
        # A message arrives, through what was granted.
        await other_publishes(broker, "b/1")
        assert (await client.receive()).payload == b"b/1"
        assert member_of(broker).describe()["asked"] == 7


async def other_publishes(broker: Worker, *topics: str, qos: int = 0) -> None:
    async with broker.client("inside") as inside:
        for topic in topics:
            await inside.publish(topic, topic.encode(), qos=qos)


async def test_a_server_that_stalls_keeps_the_one_client_waiting_that_wants_to_know(backend: Backend) -> None:
    gate = threading.Event()

    def answer(asked: Asked) -> Answer:
        if json.loads(asked.body)["topic"] == "a/slow":
            gate.wait(30)
        return ANSWERS(asked)

    backend.answer = answer
    async with (
        serving(HttpRightsTable(urls=(backend.url,), timeout_s=30)) as broker,
        come(broker, b"1") as one,
        come(broker, b"2") as two,
    ):
        assert await published(one, b"a/fast") != REFUSED
        assert await published(two, b"a/fast") != REFUSED
        # Two that are known, one that is not, and what comes behind that.
        for number, topic in enumerate((b"a/fast", b"a/fast", b"a/slow", b"z", b"a/fast"), 1):
            await one.send(Publish(topic, b"x", 1, packet_identifier=number))
        await one.send(Subscribe(9, (wanted(b"b/1", 0), wanted(b"z", 0))))
        await one.send(Pingreq())
        for number in (1, 2):
            assert (await one.receive()).packet_identifier == number
        await until(lambda: any(b"a/slow" in asked.body for asked in backend.asked))
        # Nobody else waits: neither for what is known, nor for what is not.
        assert await published(two, b"a/fast") != REFUSED
        assert await published(two, b"a/new") != REFUSED
        assert await granted(two, b"a/#") == 0
        (parked,) = [found for found in broker.reactor.connections_snapshot() if found.is_parked]
        assert parked.session.client_identifier == b"1"
        gate.set()
        answers = [await one.receive() for _ in range(3)]
        assert [answer.packet_identifier for answer in answers] == [3, 4, 5]
        assert [answer.reason == REFUSED for answer in answers] == [False, True, False]
        suback = await one.receive()
        assert isinstance(suback, Suback)
        assert suback.reasons == (Reason.SUCCESS, REFUSED)
        assert isinstance(await one.receive(), Pingresp)


async def test_who_goes_while_a_server_is_asked_leaves_nothing_behind(backend: Backend) -> None:
    gate = threading.Event()

    def answer(asked: Asked) -> Answer:
        gate.wait(30)
        return ANSWERS(asked)

    backend.answer = answer
    async with serving(HttpRightsTable(urls=(backend.url,), timeout_s=30)) as broker:
        for wish in (Publish(b"a", b"x"), Subscribe(1, (wanted(b"a", 0),))):
            asked = len(backend.asked)
            async with come(broker) as client:
                await client.send(wish)
                await until(lambda asked=asked: len(backend.asked) > asked)  # type: ignore[misc]
                await client.client.cut()
        # A takeover, too.
        async with come(broker) as client:
            await client.send(Publish(b"a/2", b"x"))
            async with come(broker, clean_start=False) as again:
                assert (await client.receive()).reason == Reason.SESSION_TAKEN_OVER
                gate.set()
                assert await published(again, b"a") != REFUSED
        await until(lambda: not broker.reactor.connection_count)
        assert broker.controller.ends["internal_error"] == 0


@pytest.mark.parametrize("version", [4, 5])
async def test_a_server_that_is_down_has_refused_nothing(backend: Backend, version: int, tmp_path: Path) -> None:
    logs.configure(Log(file=str(tmp_path / "log"), level="info"))
    kept: dict[str, Any] = {"session_expiry_interval": 1000} if version == 5 else {}
    async with serving(HttpRightsTable(urls=(backend.url,))) as broker:
        async with come(broker, version=version, clean_start=False, properties=kept) as client:
            assert await granted(client, b"b", 1) == 1
            backend.answer = down
            # A SUBSCRIBE is refused by another word than one that is not allowed.
            await client.send(Subscribe(1, (wanted(b"b", 1), wanted(b"a", 0))))
            suback = await client.receive()
            assert suback.reasons == (1, AWAY if version == 5 else Reason.UNSPECIFIED_ERROR)
            if version == 5:
                assert suback.properties["reason_string"] == rights_questions.UNAVAILABLE
            # A PUBLISH is not acknowledged: the client may send it again.
            await client.send(Publish(b"a", b"x", 1, packet_identifier=5))
            if version == 5:
                last = await client.receive()
                assert isinstance(last, Disconnect)
                assert last.reason == Reason.SERVER_BUSY
                assert last.properties["reason_string"] == rights_questions.UNAVAILABLE
            assert await client.receive() is None
        assert broker.controller.ends[CloseReason.RIGHTS_UNAVAILABLE] == 1
        assert broker.router.ledger.dropped().get("not_authorized", 0) == 0
        backend.answer = ANSWERS
        age(broker, 5)
        async with come(broker, version=version, clean_start=False, properties=kept) as client:
            await client.send(Publish(b"a", b"x", 1, dup=True, packet_identifier=5))
            answer = await client.receive()
            assert isinstance(answer, Ack)
            assert answer.reason != REFUSED
        logs.flush()
        events = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
        assert {line["what"] for line in events if line["event"] == "http_authorizer_failed"} == {"answered 500"}
        assert "rights_unavailable" in [line.get("reason") for line in events if line["event"] == "connection_ended"]


async def test_answers_end_by_themselves_and_count_longer_if_nobody_answers(backend: Backend) -> None:
    backend.answer = lambda asked: says("allow", {"Cache-Control": "max-age=60, stale-if-error=600"})
    async with serving(HttpRightsTable(urls=(backend.url,))) as broker, come(broker) as client:
        assert await published(client, b"a") != REFUSED
        age(broker, 61)
        backend.answer = down
        for _ in range(2):
            assert await published(client, b"a") != REFUSED
        assert len(backend.asked) == 2  # for a second, an old answer is as good as a new one
        age(broker, 700)
        backend.answer = lambda asked: says("deny")
        assert await published(client, b"a") == REFUSED


async def test_an_answer_that_is_not_to_be_kept_counts_for_a_moment(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_authorizer, "LEAST_S", 0.02)
    monkeypatch.setattr(rights_questions, "RELIED_ON_S", 0.02)
    result = "allow"
    backend.answer = lambda asked: says(result, {"Cache-Control": "no-store"})
    async with serving(HttpRightsTable(urls=(backend.url,))) as broker, come(broker) as client:
        assert await published(client, b"a") != REFUSED
        result = "deny"
        while await published(client, b"a") != REFUSED:
            await trio.lowlevel.checkpoint()
        result = "allow"
        while await published(client, b"a") == REFUSED:
            await trio.lowlevel.checkpoint()


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"220 smtp\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{",
        b"HTTP/1.1 302 Found\r\nLocation: /\r\nContent-Length: 0\r\n\r\n",
        *(
            b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)
            for body in (b'{"result": "yes"}', b'{"result": true}', b"{}", b"allow", b"[" * 5000)
        ),
    ],
)
async def test_a_server_that_says_what_it_should_not_has_allowed_nothing(backend: Backend, raw: bytes) -> None:
    backend.raw = raw
    async with serving(HttpRightsTable(urls=(backend.url,), timeout_s=5)) as broker:
        async with come(broker) as client:
            assert await granted(client, b"a") == AWAY
            await client.send(Publish(b"a", b"x"))
            assert (await client.receive()).reason == Reason.SERVER_BUSY
        assert sum(broker.router.ledger.dropped().values()) == 0


async def test_files_and_servers_are_asked_in_their_order(backend: Backend, tmp_path: Path) -> None:
    first, last = tmp_path / "first.conf", tmp_path / "last.conf"
    first.write_text("user ann\ntopic deny a/secret\ntopic write f\n")
    last.write_text("user ann\ntopic i/#\ntopic a/secret\n")
    tables = (AclFileTable(file=str(first)), HttpRightsTable(urls=(backend.url,)), AclFileTable(file=str(last)))
    async with serving(*tables) as broker, come(broker) as client:
        assert await published(client, b"a/secret") == REFUSED
        assert await published(client, b"f") != REFUSED
        assert not backend.asked  # the file before it has decided
        assert await published(client, b"i/x") != REFUSED
        assert await published(client, b"a/x") != REFUSED
        assert await published(client, b"z/x") == REFUSED
        assert await granted(client, b"a/secret") == REFUSED
        asked = len(backend.asked)
        # A server grants a topic filter as a whole; it cannot be asked about each topic that comes.
        assert await granted(client, b"a/#") == REFUSED
        assert await granted(client, b"a/x") == 0
        assert await granted(client, b"b/#") == 0
        assert await granted(client, b"i/#") == 0
        assert len(backend.asked) == asked + 4
        # What it does not know is narrowed by those behind it: of `#`, i/# and no more.
        assert await granted(client, b"+/x") == REFUSED
        acl = broker.controller.acl
        (connection,) = broker.reactor.connections_snapshot()
        url = backend.url.partition("?")[0]
        assert acl.explain(connection.principal, "publish", b"a/x", 1, False).by == f"authorizer 2, {url}: allow"
        assert acl.explain(connection.principal, "publish", b"b/x", 1, False).by.endswith("not asked yet")
        assert acl.explain(connection.principal, "subscribe", b"b/#", 0, False).by.endswith(": allow")


async def test_a_will_keeps_what_was_said_of_it_at_its_connect(backend: Backend, tmp_path: Path) -> None:
    logs.configure(Log(file=str(tmp_path / "log"), level="info"))
    async with serving(HttpRightsTable(urls=(backend.url,))) as broker, broker.client("inside") as inside:
        await inside.subscribe("#")
        for topic in (b"z/will", b"a/will"):
            backend.answer = ANSWERS
            async with come(broker, will=Will(topic, topic)) as client:
                assert await published(client, b"a") != REFUSED  # what came behind the CONNECT
                backend.answer = down
                age(broker, 100_000)
                await client.client.cut()
        topics = []
        while b"a/will" not in topics:
            topics.append((await inside.__anext__()).payload)
        assert b"z/will" not in topics
        # If nobody answers, the client may try again.
        async with await trio.open_tcp_stream("127.0.0.1", broker.addresses[0].port) as stream:
            refused = Device(stream, 5)
            await refused.send(Connect(5, b"", will=Will(b"a/other", b"x")))
            assert (await refused.receive()).reason == Reason.SERVER_UNAVAILABLE
        await until(lambda: broker.controller.handshake.open_connections == 0)
        logs.flush()
        events = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
        assert [line["topic"] for line in events if line["event"] == "will_refused"] == ["z/will"]


async def test_what_was_granted_stays_through_a_restart_until_the_server_says_otherwise(
    backend: Backend, tmp_path: Path
) -> None:
    tables = (HttpRightsTable(urls=(backend.url,)),)
    kept = {"session_expiry_interval": 1000}
    async with serving(*tables, folder=tmp_path) as broker:
        async with come(broker, properties=kept) as client:
            assert await granted(client, b"b/#", 1) == 1
            assert await granted(client, b"a/#", 1) == 1
        await other_publishes(broker, "b/1", qos=1)
    backend.answer = down
    async with serving(*tables, folder=tmp_path) as broker:
        await until(lambda: len(backend.asked) >= 4)
        await other_publishes(broker, "b/2", qos=1)
        async with come(broker, properties=kept, clean_start=False) as client:
            for expected in (b"b/1", b"b/2"):
                message = await client.receive()
                assert message.payload == expected
                await client.send(Ack(PacketType.PUBACK, message.packet_identifier))
            await lives(client)
    backend.answer = by_topic(a="allow")
    async with serving(*tables, folder=tmp_path) as broker:
        await until(lambda: broker.controller.review.revoked == 1)
        await other_publishes(broker, "b/3", "a/3", qos=1)
        async with come(broker, properties=kept, clean_start=False) as client:
            message = await client.receive()
            assert message.payload == b"a/3"
            await client.send(Ack(PacketType.PUBACK, message.packet_identifier))
            # And a reload asks again.
            backend.answer = by_topic()
            await broker.reload.reload()
            await until(lambda: broker.controller.review.revoked == 2)
            assert await published(client, b"a/4") == REFUSED


async def test_another_user_has_nothing_of_what_the_one_before_was_granted(backend: Backend) -> None:
    kept = {"session_expiry_interval": 1000}
    async with serving(HttpRightsTable(urls=(backend.url,))) as broker:
        async with come(broker, properties=kept) as client:
            assert await granted(client, b"b/#", 1) == 1
        await other_publishes(broker, "b/1", qos=1)
        async with come(broker, user="bob", properties=kept, clean_start=False) as client:
            await other_publishes(broker, "b/2", qos=1)
            await lives(client)
            assert broker.controller.review.revoked == 1


async def test_clients_in_the_process_wait_for_their_answers(backend: Backend) -> None:
    async with serving(HttpRightsTable(urls=(backend.url,))) as broker, broker.client("i", identity="ann") as inside:
        await inside.publish("a", qos=1)
        await inside.subscribe("b/#")
        with pytest.raises(RefusedError):
            await inside.publish("z")
        with pytest.raises(RefusedError):
            await inside.subscribe("z/#")
        backend.answer = down
        with pytest.raises(RefusedError):
            await inside.publish("a/other")


# Contracts ----------------------------------------------------------------------------------------------------------


ANN = Principal("ann", b"c", "127.0.0.1", 0, groups=("g",))
QUESTIONS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "emqx": (
        {"clientid": "c", "username": "ann", "peerhost": "127.0.0.1", "action": "publish", "topic": "a/b", "qos": 1,
         "retain": True},
        {"clientid": "c", "username": "ann", "peerhost": "127.0.0.1", "action": "subscribe", "topic": "a/+", "qos": 2,
         "retain": False},
    ),
    "vernemq": (
        {"username": "ann", "client_id": "c", "mountpoint": "", "qos": 1, "topic": "a/b", "payload": "",
         "retain": True},
        {"username": "ann", "client_id": "c", "mountpoint": "", "topics": [{"topic": "a/+", "qos": 2}]},
    ),
    "mosquitto-go-auth": (
        {"username": "ann", "clientid": "c", "topic": "a/b", "acc": 2},
        {"username": "ann", "clientid": "c", "topic": "a/+", "acc": 4},
    ),
    "rabbitmq": (
        {"username": ["ann"], "vhost": ["/"], "resource": ["topic"], "name": ["amq.topic"], "permission": ["write"],
         "tags": ["g"], "routing_key": ["a.b"], "variable_map.client_id": ["c"], "variable_map.username": ["ann"],
         "variable_map.vhost": ["/"]},
        {"username": ["ann"], "vhost": ["/"], "resource": ["topic"], "name": ["amq.topic"], "permission": ["read"],
         "tags": ["g"], "routing_key": ["a.*"], "variable_map.client_id": ["c"], "variable_map.username": ["ann"],
         "variable_map.vhost": ["/"]},
    ),
}  # fmt: skip


@pytest.mark.parametrize("contract", list(QUESTIONS))
def test_servers_of_other_brokers_are_asked_in_their_own_words(contract: str) -> None:
    wishes = (Wish(ANN, "publish", "a/b", 1, True), Wish(ANN, "subscribe", "a/+", 2, False))
    for wish, expected in zip(wishes, QUESTIONS[contract], strict=True):
        question = WISHES[contract][0](wish)
        said: Any = parse_qs(question.body.decode()) if contract == "rabbitmq" else json.loads(question.body)
        assert said == expected
        hook = dict(question.headers).get("vernemq-hook")
        assert hook == (f"auth_on_{wish.action}" if contract == "vernemq" else None)


@pytest.mark.parametrize(("contract", "status", "body", "expected"), [
    ("shoal", 200, b'{"result": "ignore"}', "ignore"),
    ("shoal", 204, b"", None),
    ("emqx", 200, b'{"result": "allow"}', "allow"),
    ("emqx", 200, b"{}", "ignore"),
    ("emqx", 204, b"", "allow"),
    ("emqx", 404, b"", "ignore"),
    ("emqx", 500, b"", None),
    ("vernemq", 200, b'{"result": "ok"}', "allow"),
    ("vernemq", 200, b'{"result": "ok", "modifiers": {}}', "allow"),
    ("vernemq", 200, b'{"result": "ok", "modifiers": {"topic": "other"}}', None),
    ("vernemq", 200, b'{"result": "ok", "modifiers": [1]}', None),
    ("vernemq", 200, b'{"result": "ok", "topics": [{"topic": "a/+", "qos": 2}]}', "allow"),
    ("vernemq", 200, b'{"result": "ok", "topics": [{"topic": "a/+", "qos": 128}]}', "deny"),
    ("vernemq", 200, b'{"result": "ok", "modifiers": {"topics": [{"topic": "a/+", "qos": 135}]}}', "deny"),
    ("vernemq", 200, b'{"result": "ok", "topics": [{"topic": "a/+", "qos": 1}]}', None),
    ("vernemq", 200, b'{"result": "ok", "topics": [{"topic": "a/b", "qos": 2}]}', None),
    ("vernemq", 200, b'{"result": "ok", "topics": []}', None),
    ("vernemq", 200, b'{"result": "next"}', "ignore"),
    ("vernemq", 200, b'{"result": {"error": "not_allowed"}}', "deny"),
    ("vernemq", 403, b"", None),
    ("mosquitto-go-auth", 200, b"", "allow"),
    ("mosquitto-go-auth", 401, b"", "deny"),
    ("mosquitto-go-auth", 503, b"", None),
    ("rabbitmq", 200, b"allow", "allow"),
    ("rabbitmq", 201, b"Allow", "allow"),
    ("rabbitmq", 200, b"deny because", "deny"),
    ("rabbitmq", 200, b"", None),
    ("rabbitmq", 404, b"allow", None),
])  # fmt: skip
def test_answers_of_other_brokers_are_read_as_they_are_meant(
    contract: str, status: int, body: bytes, expected: str | None
) -> None:
    wish = Wish(ANN, "subscribe", "a/+", 2, False)
    if expected is None:
        with pytest.raises(HttpError):
            answer_to(contract, HttpAnswer(status, {}, body), wish)
    else:
        assert answer_to(contract, HttpAnswer(status, {}, body), wish) == expected
