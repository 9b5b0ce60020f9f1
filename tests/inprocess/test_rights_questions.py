"""Clients that wait until a server has said what they may do: for how long, and what happens meanwhile."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
import trio

from broker import logs
from broker.auth import http_authorizer, http_servers
from broker.auth.http_contracts import Question
from broker.config.authenticator import DynamicSecurityTable, HttpTable
from broker.config.authorizer import HttpRightsTable
from broker.config.loader import Log
from broker.control import rights_review
from broker.wire.packets import Connack, Connect, Publish, Subscribe, Will
from broker.wire.packets import subscription as wanted
from broker.wire.reasons import Reason
from broker.worker.worker import Worker
from tests.inprocess.test_acl_files import granted, published
from tests.inprocess.test_http_authorizer import (
    REFUSED,
    backend,
    by_topic,
    come,
    down,
    lives,
    member_of,
    other_publishes,
    says,
    serving,
)
from tests.support.dynamic_security import ADMIN, ADMIN_PASSWORD, start_file
from tests.support.embedded import CONFIG, Device, until
from tests.support.http_backend import Answer, Asked, Backend, running

__all__ = ["backend"]


def gated(gate: threading.Event, result: Callable[[], str]) -> Callable[[Asked], Answer]:
    """Return what answers when a gate is open what it would have said when it was asked."""

    def answer(_asked: Asked) -> Answer:
        said = result()
        gate.wait(30)
        return says(said)

    return answer


async def test_nobody_waits_for_a_turn_for_ever(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_authorizer, "TURN_S", 0.05)
    gate = threading.Event()
    backend.answer = gated(gate, lambda: "allow")
    async with (
        serving(HttpRightsTable(urls=(backend.url,), timeout_s=30, connections_max=1)) as broker,
        come(broker, b"1") as one,
        come(broker, b"2") as two,
        come(broker, b"3") as three,
    ):
        await one.send(Publish(b"a", b"x", 1, packet_identifier=1))
        await until(lambda: len(backend.asked) == 1)
        await two.send(Publish(b"a", b"x", 1, packet_identifier=1))
        await three.send(Subscribe(1, (wanted(b"a", 0),)))
        assert (await two.receive()).reason == Reason.SERVER_BUSY
        assert (await three.receive()).reasons == (Reason.IMPLEMENTATION_SPECIFIC_ERROR,)
        assert (
            await granted(three, b"a") == Reason.IMPLEMENTATION_SPECIFIC_ERROR
        )  # it is remembered, or found out again
        gate.set()
        assert (await one.receive()).reason != REFUSED


async def test_who_goes_does_not_stand_in_line_any_more(backend: Backend) -> None:
    gate = threading.Event()
    backend.answer = gated(gate, lambda: "allow")
    table = HttpRightsTable(urls=(backend.url,), timeout_s=30, connections_max=1)
    async with serving(table) as broker, AsyncExitStack() as clients:
        for number in range(8):
            client = await clients.enter_async_context(come(broker))  # it takes over the one before
            await client.send(Publish(b"a", b"x") if number % 2 else Subscribe(1, (wanted(b"a", 0),)))
            await until(lambda: len(backend.asked) == number + 1)  # noqa: B023  (nobody stands before it)
        gate.set()
        await until(lambda: not any(one.is_parked for one in broker.reactor.connections_snapshot()))


async def test_what_was_granted_is_asked_about_until_the_server_is_back(
    backend: Backend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_authorizer, "LEAST_S", 0.02)
    monkeypatch.setattr(http_servers, "LEFT_ALONE_S", (0.02, 0.02))
    monkeypatch.setattr(rights_review, "ASK_AGAIN_S", (0.02, 0.05))
    kept = {"session_expiry_interval": 1000}
    async with (
        serving(HttpRightsTable(urls=(backend.url,)), folder=tmp_path) as broker,
        come(broker, properties=kept) as client,
    ):
        filters = [b"a/%d" % number for number in range(12)] + [b"b/#"]
        await client.send(Subscribe(1, tuple(wanted(one, 0) for one in filters)))
        assert set((await client.receive()).reasons) == {0}
    backend.answer, before = down, len(backend.asked)
    async with serving(HttpRightsTable(urls=(backend.url,)), folder=tmp_path) as broker:
        await until(lambda: len(backend.asked) > before + 3)
        assert broker.controller.review.revoked == 0
        backend.answer = by_topic(a="allow")
        await until(lambda: broker.controller.review.revoked == 1)
        asked = {json.loads(one.body)["topic"] for one in backend.asked[before:]}
        assert len(asked) == 13


async def test_an_answer_of_before_a_reload_is_none(backend: Backend) -> None:
    gate, result = threading.Event(), "allow"
    backend.answer = gated(gate, lambda: result)
    async with serving(HttpRightsTable(urls=(backend.url,))) as broker, come(broker) as client:
        await client.send(Publish(b"a", b"x", 1, packet_identifier=1))
        await until(lambda: len(backend.asked) == 1)
        result = "deny"
        await broker.reload.reload()
        gate.set()
        assert (await client.receive()).reason == REFUSED
        assert len(backend.asked) == 2


async def test_a_login_of_before_a_reload_is_not_remembered_behind_it(backend: Backend) -> None:
    gate, result = threading.Event(), "allow"
    backend.answer = gated(gate, lambda: result)

    async def answer(broker: Worker) -> Reason:
        async with await trio.open_tcp_stream("127.0.0.1", broker.addresses[0].port) as stream:
            client = Device(stream, 5)
            await client.send(Connect(5, b"c", user_name="ann", password=b"x"))
            connack = await client.receive()
            assert isinstance(connack, Connack)
            return Reason(connack.reason)

    async def reload(broker: Worker) -> None:
        await until(lambda: len(backend.asked) == 1)
        await broker.reload.reload()
        gate.set()

    async with (
        serving(authenticator=(HttpTable(urls=(backend.url,), cache_s=1000),)) as broker,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(reload, broker)
        assert await answer(broker) == Reason.SUCCESS
        result = "deny"
        assert await answer(broker) == Reason.BAD_USER_NAME_OR_PASSWORD


async def test_an_answer_that_ends_while_another_server_is_asked_is_asked_for_once_more(backend: Backend) -> None:
    backend.answer = lambda asked: says("ignore", {"Cache-Control": "no-store"})

    with running(Backend(lambda asked: says("allow"))) as slow:
        tables = (HttpRightsTable(urls=(backend.url,)), HttpRightsTable(urls=(slow.url,)))
        async with serving(*tables) as broker, come(broker) as client:
            assert broker.reload.authorizers is not None
            first = broker.reload.authorizers.chain.members[0]

            def answer(_asked: Asked) -> Answer:  # as if it took two seconds
                answers = vars(first)["_answers"]
                for key, known in list(answers.items()):
                    answers[key] = replace(known, until_s=0.0)
                return says("allow")

            slow.answer = answer
            assert await published(client, b"a") != REFUSED
            assert await granted(client, b"a") == 0
            assert (len(backend.asked), len(slow.asked)) == (4, 2)


async def test_a_will_is_asked_about_with_the_client_identifier_that_is_assigned(backend: Backend) -> None:
    async with (
        serving(HttpRightsTable(urls=(backend.url,))) as broker,
        await trio.open_tcp_stream("127.0.0.1", broker.addresses[0].port) as stream,
    ):
        client = Device(stream, 5)
        await client.send(Connect(5, b"", will=Will(b"a/will", b"x")))
        connack = await client.receive()
        assert isinstance(connack, Connack)
        assert connack.reason == Reason.SUCCESS
        (asked,) = backend.asked
        assert json.loads(asked.body)["client_identifier"] == connack.properties["assigned_client_identifier"]


async def test_remembered_answers_have_a_bound(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_authorizer, "ANSWERS_MAX", 4)
    async with serving(HttpRightsTable(urls=(backend.url,))) as broker, come(broker) as client:
        for number in range(12):
            assert (await published(client, b"a/%d" % number) == REFUSED) is False
            assert (await published(client, b"z/%d" % number) == REFUSED) is True
        assert member_of(broker).describe()["remembered"] == 4


async def test_what_is_asked_and_its_secrets_are_told_to_nobody(tmp_path: Path) -> None:
    logs.configure(Log(file=str(tmp_path / "log"), level="debug"))
    token = tmp_path / "token"
    token.write_text("Bearer HIDDEN-TOKEN\n")
    with running(Backend(by_topic(a="allow"))) as found:
        url = f"http://127.0.0.1:{found.port}/rights?key=HIDDEN-KEY"
        table = HttpRightsTable(urls=(url,), authorization_file=str(token))
        mqtt = msgspec.structs.replace(CONFIG.mqtt, explain_to_clients=True)
        async with serving(table, mqtt=mqtt) as broker, come(broker) as client:
            await client.send(Publish(b"z", b"x", 1, packet_identifier=1))
            refused = await client.receive()
            assert refused.reason == REFUSED
            assert found.asked[0].path == "/rights?key=HIDDEN-KEY"
            assert found.asked[0].headers["authorization"] == "Bearer HIDDEN-TOKEN"
            assert refused.properties["reason_string"] == f"authorizer 1, http://127.0.0.1:{found.port}/rights: deny"
            assert broker.reload.authorizers is not None
            told = [repr(refused), str(broker.reload.authorizers.describe()), str(member_of(broker))]
            found.answer = down
            assert await granted(client, b"a") == Reason.IMPLEMENTATION_SPECIFIC_ERROR
            told.append(str(broker.reload.authorizers.describe()))
        logs.flush()
        told.append((tmp_path / "log").read_text())
        assert "http_authorizer_failed" in told[-1]
    assert "HIDDEN" not in "".join(told)
    assert "HIDDEN" not in repr(Question((("X", "HIDDEN"),), b'{"password": "HIDDEN"}'))


async def test_what_is_stored_is_replayed_where_the_server_lets_it(backend: Backend, tmp_path: Path) -> None:
    stays = {"session_expiry_interval": 1000}
    async with (
        serving(HttpRightsTable(urls=(backend.url,)), folder=tmp_path) as broker,
        come(broker, b"keeper", properties=stays) as keeper,
        come(broker) as client,
    ):
        assert await granted(keeper, b"a/#", 1) == 1
        assert await granted(keeper, b"b/#", 1) == 1
        await other_publishes(broker, "a/1", "b/1", "a/2", qos=1)
        assert await granted(client, b"$replay/-1h/z/#") == REFUSED
        assert await granted(client, b"$replay/-1h/#") == REFUSED
        assert await granted(client, b"$replay/-1h/a/#") == 0
        assert [(await client.receive()).payload for _ in range(2)] == [b"a/1", b"a/2"]
        asked = [json.loads(one.body) for one in backend.asked]
        assert [one["topic"] for one in asked if one["client_identifier"] == "c"] == ["z/#", "#", "a/#"]
        backend.answer = down
        await client.send(Subscribe(7, (wanted(b"$replay/-1h/a/other", 0),)))
        suback = await client.receive()
        assert suback.reasons == (Reason.IMPLEMENTATION_SPECIFIC_ERROR,)
        await lives(client)


async def test_roles_are_asked_before_the_server_and_leave_the_rest_to_it(backend: Backend, tmp_path: Path) -> None:
    tree = json.loads(start_file())
    rules = [
        {"acltype": kind, "topic": topic, "priority": 0, "allow": allow}
        for kind in ("publishClientSend", "subscribePattern")
        for topic, allow in (("r/#", True), ("a/deny/#", False))
    ]
    tree["roles"].append({"rolename": "plant", "acls": rules})
    (admin,) = tree["clients"]
    admin["roles"].append({"rolename": "plant"})
    tree["defaultACLAccess"] = {"publishClientSend": False, "subscribe": False, "publishClientReceive": True}
    (tmp_path / "roles.json").write_text(json.dumps(tree))
    roles = DynamicSecurityTable(file=str(tmp_path / "roles.json"))
    who = {"user": ADMIN, "password": ADMIN_PASSWORD.encode()}
    async with serving(
        HttpRightsTable(urls=(backend.url,)), folder=tmp_path / "data", authenticator=(roles,)
    ) as broker:
        assert broker.controller.acl.waits
        async with come(broker, will=Will(b"a/will", b"w"), **who) as client:
            assert [json.loads(asked.body)["topic"] for asked in backend.asked] == ["a/will"]
            backend.asked.clear()
            # What the roles decide the server never hears of.
            assert await published(client, b"r/1") != REFUSED
            assert await published(client, b"a/deny/1") == REFUSED
            assert await granted(client, b"r/#") == 0
            assert await granted(client, b"a/deny/#") == REFUSED
            assert not backend.asked
            assert await published(client, b"a/1") != REFUSED
            assert await published(client, b"z/1") == REFUSED
            assert await granted(client, b"b/#") == 0
            assert await granted(client, b"z/#") == REFUSED
            assert [json.loads(asked.body)["topic"] for asked in backend.asked] == ["a/1", "z/1", "b/#", "z/#"]
            await other_publishes(broker, "b/1")
            assert (await client.receive()).payload == b"b/1"
            backend.answer = down
            assert await granted(client, b"a/2") == Reason.IMPLEMENTATION_SPECIFIC_ERROR
            assert await granted(client, b"r/2") == 0
            await client.send(Publish(b"a/never", b"x"))
            assert (await client.receive()).reason == Reason.SERVER_BUSY
