"""Rules that a client brings: the `acl` of its token, or of what a server says of it, whatever the authorizers are."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import jwt
import msgspec
import pytest
import trio

from broker import logs
from broker.config.authenticator import HttpTable
from broker.config.authorizer import AclFileTable
from broker.config.loader import Log
from broker.wire.packets import Ack, Auth, Connack, Connect, Pingreq, Pingresp, Publish, Will
from broker.wire.properties import PacketType
from broker.wire.reasons import ConnectReturn, Reason
from broker.worker.worker import Worker, open_broker
from tests.inprocess.test_acl_files import granted, published
from tests.inprocess.test_tokens import answer, client_of, issuer, settings
from tests.support.embedded import Device
from tests.support.http_backend import Backend, running
from tests.support.tokens import private_key, token

REFUSED = Reason.NOT_AUTHORIZED
RULES = [
    {"permission": "deny", "action": "publish", "topic": "a/x"},
    {"permission": "allow", "action": "all", "topic": "a/#"},
    {"permission": "allow", "action": "publish", "topic": "q", "qos": 1, "retain": False},
    {"permission": "allow", "action": "all", "topic": "own/${clientid}/${username}"},
]
LISTED = {"pub": ["a/b"], "sub": ["a/#"], "all": ["own/${clientid}/${username}"]}


@asynccontextmanager
async def serving(*tables: Any, folder: Path | None = None, **more: Any) -> AsyncIterator[Worker]:
    with trio.fail_after(60):
        async with open_broker(settings(*tables, **more), folder=folder) as broker:
            yield broker


@asynccontextmanager
async def let_in(broker: Worker, password: bytes, version: int = 5, **more: Any) -> AsyncIterator[Device]:
    async with client_of(broker, version) as client:
        await client.send(Connect(version, b"c", user_name="ann", password=password, **more))
        connack = await client.receive()
        assert isinstance(connack, Connack)
        assert connack.reason == Reason.SUCCESS
        yield client


async def test_a_token_with_rules_is_held_to_them_without_any_authorizer(tmp_path: Path) -> None:
    async with serving(issuer(tmp_path)) as broker:
        async with let_in(broker, token(acl=RULES)) as client:
            assert await published(client, b"a/b") != REFUSED
            assert await published(client, b"a/x") == REFUSED
            assert await published(client, b"b") == REFUSED
            assert await published(client, b"own/c/ann") != REFUSED
            assert await published(client, b"own/c/bob") == REFUSED
            assert await published(client, b"q") != REFUSED
            await client.send(Publish(b"q", b"x", 2, packet_identifier=8))
            assert (await client.receive()).reason == REFUSED
            assert await granted(client, b"a/+") == 0
            assert await granted(client, b"b/+") == REFUSED
            # What is wider is narrowed.
            assert await granted(client, b"#") == 0
            async with broker.client("inside") as inside:
                await inside.publish("b", b"not this")
                await inside.publish("a/1", b"this")
            assert (await client.receive()).payload == b"this"
        # Who brings none may do everything, as before.
        async with let_in(broker, token()) as client:
            assert await published(client, b"b") != REFUSED
            assert await granted(client, b"#") == 0


async def test_the_older_form_is_all_that_is_allowed(tmp_path: Path) -> None:
    (tmp_path / "acl.conf").write_text("user ann\ntopic b\n")
    tables = (AclFileTable(file=str(tmp_path / "acl.conf")),)
    for authorizer in ((), tables):
        async with serving(issuer(tmp_path), authorizer=authorizer) as broker:
            async with let_in(broker, token(acl=LISTED)) as client:
                assert await published(client, b"a/b") != REFUSED
                assert await published(client, b"a/c") == REFUSED
                assert await published(client, b"b") == REFUSED
                assert await granted(client, b"a/c") == 0
            # Where the list of rules has none for it, an authorizer decides; without one nobody does.
            async with let_in(broker, token(acl=RULES)) as client:
                assert (await published(client, b"b") == REFUSED) == (not authorizer)


@pytest.mark.parametrize(
    ("acl", "words"),
    [
        ("all", "expected a list of rules"),
        (None, "expected a list of rules"),
        (True, "expected a list of rules"),
        ([5], "rule 1: expected a table"),
        ([{"permission": "allow", "action": "publish", "topic": "a/#/b"}], "rule 1: topic: "),
        ([{"permission": "allow", "action": "fly", "topic": "a"}], "rule 1: action: expected one of publish"),
        ([{"permission": "allow", "action": "all", "topic": "${nobody}"}], "expected no placeholders but"),
        ([{"permission": "allow", "action": "all", "topic": "a", "clientid_re": "x"}], "clientid_re, which is not"),
        ({"pub": "a"}, "pub: expected a list"),
        ([{"permission": "allow", "action": "all", "topics": ["a"] * 1001}], "found 1001 rules"),
    ],
)
async def test_rules_that_cannot_be_read_let_nobody_in_and_the_log_says_why(
    tmp_path: Path, acl: Any, words: str
) -> None:
    logs.configure(Log(file=str(tmp_path / "log"), level="info"))
    said = jwt.encode({"sub": "ann", "exp": 99999999999, "acl": acl}, private_key("ES256"), "ES256").encode()
    async with serving(issuer(tmp_path)) as broker:
        refused = await answer(broker, said, "ann")
        assert refused.reason == REFUSED
        assert "the token is refused: acl" in refused.properties["reason_string"]
        assert words in refused.properties["reason_string"]
        assert (await answer(broker, said, "ann", version=4)).reason == ConnectReturn.NOT_AUTHORIZED
        logs.flush()
        lines = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
        assert [words in line["what"] for line in lines if line["event"] == "token_refused"] == [True, True]


async def test_another_claim_may_hold_the_rules_or_none(tmp_path: Path) -> None:
    async with serving(issuer(tmp_path, acl_claim="may"), issuer(tmp_path, which=1, acl_claim="")) as broker:
        async with let_in(broker, token(may=RULES, acl="what another broker understands")) as client:
            assert await published(client, b"b") == REFUSED
        async with let_in(broker, token(which=1, acl=RULES)) as client:
            assert await published(client, b"b") != REFUSED


async def test_a_renewed_token_brings_other_rules_which_count_at_once(tmp_path: Path) -> None:
    def allowing(*topics: str) -> bytes:
        return token(acl=[{"permission": "allow", "action": "all", "topics": list(topics)}])

    async with serving(issuer(tmp_path)) as broker, client_of(broker) as client:
        method = {"authentication_method": "JWT"}
        await client.send(Connect(5, b"c", properties={**method, "authentication_data": allowing("a/#", "b")}))
        assert (await client.receive()).reason == Reason.SUCCESS
        assert await granted(client, b"a/1") == 0
        assert await granted(client, b"b") == 0
        assert await published(client, b"z") == REFUSED
        for said, expected in ((allowing("b", "z"), True), (allowing("b"), False), (token(), True)):
            await client.send(Auth(Reason.RE_AUTHENTICATE, {**method, "authentication_data": said}))
            assert (await client.receive()).reason == Reason.SUCCESS
            assert (await published(client, b"z") != REFUSED) == expected
        (session,) = broker.router.sessions.values()
        assert broker.controller.review.revoked == 1  # a/1, when it could not be read any more
        assert session.entry_count == 1
        async with broker.client("inside") as inside:
            await inside.publish("a/1", b"not this")
            await inside.publish("b", b"this")
        assert (await client.receive()).payload == b"this"
        # A token whose rules cannot be read ends the connection, and leaves nobody with the rights of the one before.
        await client.send(Auth(Reason.RE_AUTHENTICATE, {**method, "authentication_data": token(acl="all")}))
        assert (await client.receive()).reason == REFUSED
        assert await client.receive() is None


async def test_rules_hold_for_a_session_whose_client_is_away_and_after_a_restart(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    properties = {"session_expiry_interval": 1000}
    rules = token(acl=[{"permission": "allow", "action": "all", "topic": "a/#"}])
    folder = tmp_path / "data"
    async with serving(issuer(tmp_path), folder=folder) as broker:
        async with let_in(broker, rules, properties=properties) as client:
            assert await granted(client, b"#", 1) == 1
        async with broker.client("inside") as inside:
            await inside.publish("b", b"not this", qos=1)
            await inside.publish("a/1", b"before", qos=1)
    async with serving(issuer(tmp_path), folder=folder) as broker:
        async with broker.client("inside") as inside:
            await inside.publish("b", b"nor this", qos=1)
            await inside.publish("a/2", b"after", qos=1)
        async with let_in(broker, rules, properties=properties, clean_start=False) as client:
            for expected in (b"before", b"after"):
                message = await client.receive()
                assert message.payload == expected
                await client.send(Ack(PacketType.PUBACK, message.packet_identifier))
            await client.send(Pingreq())
            assert isinstance(await client.receive(), Pingresp)
            assert await published(client, b"b") == REFUSED
        # Back with other rules: what waits is judged by these.
        async with broker.client("inside") as inside:
            await inside.publish("a/3", b"not to be read any more", qos=1)
        other = token(acl=[{"permission": "allow", "action": "all", "topic": "z"}])
        async with let_in(broker, other, properties=properties, clean_start=False) as client:
            await client.send(Pingreq())
            assert isinstance(await client.receive(), Pingresp)


async def test_a_will_is_published_by_the_rules_that_its_client_brought(tmp_path: Path) -> None:
    async with serving(issuer(tmp_path)) as broker, broker.client("inside") as inside:
        await inside.subscribe("#")
        for topic in (b"b", b"a/will"):
            async with let_in(broker, token(acl=RULES), will=Will(topic, topic)) as client:
                await client.client.cut()
        assert (await inside.__anext__()).payload == b"a/will"


def says(**more: Any) -> Any:
    return lambda _asked: (200, {}, json.dumps({"result": "allow", **more}).encode())


@pytest.mark.parametrize("contract", ["shoal", "emqx"])
async def test_a_server_may_say_the_rules_of_a_client(contract: Any) -> None:
    with running(Backend(says(acl=RULES))) as backend:
        async with serving(HttpTable(urls=(backend.url,), contract=contract)) as broker:
            async with let_in(broker, b"x") as client:
                assert await published(client, b"a/b") != REFUSED
                assert await published(client, b"b") == REFUSED
            backend.answer = says()
            async with let_in(broker, b"x") as client:
                assert await published(client, b"b") != REFUSED
            for broken in ("all", None, [{"permission": "allow"}]):
                backend.answer = says(acl=broken)
                assert (await answer(broker, b"x", "ann")).reason == Reason.SERVER_UNAVAILABLE
            # Who is not let in needs no rules.
            backend.answer = lambda _asked: (200, {}, b'{"result": "deny", "acl": 5}')
            assert (await answer(broker, b"x", "ann")).reason == Reason.BAD_USER_NAME_OR_PASSWORD


async def test_rules_of_clients_are_asked_by_qos_though_no_file_asks_for_it(tmp_path: Path) -> None:
    (tmp_path / "acl.conf").write_text("")
    config = msgspec.structs.replace(
        settings(issuer(tmp_path)), authorizer=(AclFileTable(file=str(tmp_path / "acl.conf")),)
    )
    async with open_broker(config) as broker, let_in(broker, token(acl=RULES)) as client:
        assert await published(client, b"q") != REFUSED
        await client.send(Publish(b"q", b"x", 1, True, packet_identifier=8))
        assert (await client.receive()).reason == REFUSED
