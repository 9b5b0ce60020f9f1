"""`$auth/renew`: who publishes its next token stays; one that is refused changes nothing, and others hear nothing."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio

from broker.auth import key_source
from broker.auth.password_hash import new_hash
from broker.config.authenticator import JwtTable, PasswordFileTable
from broker.config.listener import Listener
from broker.wire.packets import Ack, Connack, Connect, Pingreq, Pingresp, Publish, Will
from broker.wire.properties import PacketType
from broker.wire.reasons import Reason
from broker.worker.worker import Worker, open_broker
from tests.inprocess.test_tokens import issuer, settings
from tests.support.embedded import TIMEOUT_S, Device
from tests.support.http_backend import Backend, running
from tests.support.tokens import jwk, jwk_set, token

RENEW, RESULT = b"$auth/renew", b"$auth/result"


@asynccontextmanager
async def serving(*tables: Any, **more: Any) -> AsyncIterator[Worker]:
    with trio.fail_after(TIMEOUT_S):
        async with open_broker(settings(*tables, **more)) as broker:
            yield broker


@asynccontextmanager
async def client_of(
    broker: Worker, name: bytes = b"c", version: int = 5, listener: int = 0, **connect: Any
) -> AsyncIterator[Device]:
    async with await trio.open_tcp_stream("127.0.0.1", broker.addresses[listener].port) as stream:
        client = Device(stream, version)
        await client.send(Connect(version, name, **{"password": token(), "user_name": "ann", **connect}))
        connack = await client.receive()
        assert isinstance(connack, Connack)
        assert connack.reason == Reason.SUCCESS
        yield client


async def renewed(
    client: Device, payload: bytes, qos: int = 1, retain: bool = False
) -> tuple[dict[str, Any], int | None]:
    """Publish a token; return what is answered, and the reason code of the acknowledgement."""
    await client.send(Publish(RENEW, payload, qos, retain, False, 7 if qos else None))
    said = await client.receive()
    assert isinstance(said, Publish), said
    assert (said.topic, said.qos, said.retain) == (RESULT, 0, False)
    reason = None
    if qos:
        acknowledged = await client.receive()
        assert isinstance(acknowledged, Ack)
        assert acknowledged.type == (PacketType.PUBACK if qos == 1 else PacketType.PUBREC)
        reason = acknowledged.reason
    assert payload not in said.payload or not payload
    found: dict[str, Any] = json.loads(said.payload)
    return found, reason


def end_of(broker: Worker, name: bytes = b"c") -> float:
    """Return when the authentication of a client ends."""
    end: float = broker.router.sessions[name].connection.expires_at_s
    return end


@pytest.mark.parametrize("version", [3, 4, 5])
async def test_a_token_is_renewed_by_a_publish(tmp_path: Path, version: int) -> None:
    async with (
        serving(issuer(tmp_path)) as broker,
        client_of(broker, version=version, password=token(ends_in_s=50)) as client,
    ):
        before = end_of(broker)
        for qos in (0, 1, 2):
            said, reason = await renewed(client, token(ends_in_s=500 + qos), qos, retain=True)
            assert said == {"ok": True, "expires_at": end_of(broker)}
            assert end_of(broker) > before + 400 + qos
            assert not reason
        assert broker.router.retained_message(RENEW) is None
        await client.send(Pingreq())
        assert isinstance(await client.receive(), Pingresp)


@pytest.mark.parametrize("version", [4, 5])
async def test_a_token_that_is_refused_leaves_the_connection_its_end(tmp_path: Path, version: int) -> None:
    table = issuer(tmp_path, claims={"client": "${clientid}"})
    async with serving(table) as broker, client_of(broker, version=version, password=token(client="c")) as client:
        before, principal = end_of(broker), broker.router.sessions[b"c"].connection.principal
        for payload, error in (
            (token(which=1, client="c"), "the token was signed with none of the keys that count here"),
            (token(ends_in_s=-9, client="c"), "the token is refused: it ended "),
            (token(client="d"), "the token is refused: its claim client does not say what it has to"),
            (token(sub="bob", client="c"), "the token is another client's"),
            (b"no token", "the token was signed with none of the keys that count here"),
            (b"", "the token was signed with none of the keys that count here"),
        ):
            for qos in (1, 0):
                said, reason = await renewed(client, payload, qos)
                assert said["ok"] is False
                assert said["error"].startswith(error)
                assert set(said) == {"ok", "error"}
                assert reason == ((Reason.NOT_AUTHORIZED if version == 5 else Reason.SUCCESS) if qos else None)
        assert end_of(broker) == before
        assert broker.router.sessions[b"c"].connection.principal is principal
        assert (await renewed(client, token(client="c", ends_in_s=9999)))[0]["ok"]
        assert end_of(broker) > before


async def test_only_the_client_itself_hears_of_it(tmp_path: Path) -> None:
    async with serving(issuer(tmp_path)) as broker, client_of(broker, b"other") as other, client_of(broker) as client:
        for topic_filter in (b"$auth/#", RENEW, RESULT, b"#", b"+/+"):
            await other.subscribe(topic_filter, 2)
        await client.subscribe(RESULT)  # it is not sent twice for that
        assert (await renewed(client, token()))[0]["ok"]
        await client.send(Pingreq())
        assert isinstance(await client.receive(), Pingresp)
        await other.send(Pingreq())
        assert isinstance(await other.receive(), Pingresp)


async def test_where_no_tokens_are_taken_it_is_a_topic_like_any_other(tmp_path: Path) -> None:
    users = tmp_path / "users"
    users.write_bytes(b"ann:" + new_hash(b"secret", "sha512-pbkdf2", 1))
    tables = (
        msgspec.structs.replace(issuer(tmp_path), name="tokens"),
        PasswordFileTable(file=str(users), name="users"),
    )
    listeners = tuple(
        Listener(address="tcp://127.0.0.1:0", authenticators=names)
        for names in (("tokens",), ("users",), ("users", "tokens"))
    )
    async with (
        serving(*tables, listen=(), listener=listeners) as broker,
        client_of(broker, b"other", listener=1, password=b"secret") as other,
    ):
        await other.subscribe(b"$auth/#")
        for listener, password in ((0, token()), (2, b"secret")):
            async with client_of(broker, listener=listener, password=password) as client:
                assert (await renewed(client, token()))[0]["ok"]
        async with client_of(broker, listener=1, password=b"secret") as client:
            await client.publish(RENEW, b"for others", 1)
        assert (await other.receive()).payload == b"for others"


async def test_under_a_mount_point_the_topics_are_as_the_client_writes_them(tmp_path: Path) -> None:
    listeners = tuple(Listener(address="tcp://127.0.0.1:0", mount_point=name) for name in ("plant/", ""))
    async with (
        serving(issuer(tmp_path), listen=(), listener=listeners) as broker,
        client_of(broker, b"other", listener=1) as other,
        client_of(broker) as client,
    ):
        await other.subscribe(b"$plant/#")
        assert (await renewed(client, token(ends_in_s=9999)))[0] == {"ok": True, "expires_at": end_of(broker)}
        assert (await renewed(client, b"another"))[1] == Reason.NOT_AUTHORIZED
        await other.publish(b"$plant/auth/renew", b"no request here")
        assert (await other.receive()).payload == b"no request here"


async def test_what_the_new_token_does_not_allow_ends_and_the_will_stays_as_it_was(tmp_path: Path) -> None:
    first, second = ({"acl": {"pub": [name], "sub": [name]}} for name in ("a", "b"))
    async with serving(issuer(tmp_path)) as broker, client_of(broker, b"other") as other:
        await other.subscribe(b"a")
        async with client_of(broker, password=token(**first), will=Will(b"a", b"gone")) as client:
            await client.subscribe(b"a")
            # It may not publish to $auth/renew by its rules, and need not.
            assert (await renewed(client, token(**second)))[0]["ok"]
            await other.publish(b"a", b"1")
            assert (await other.receive()).payload == b"1"
            await client.send(Publish(b"a", b"2", 1, packet_identifier=9))
            acknowledged = await client.receive()
            assert isinstance(acknowledged, Ack), acknowledged
            assert acknowledged.reason == Reason.NOT_AUTHORIZED
        assert (await other.receive()).payload == b"gone"


async def test_what_comes_behind_a_token_waits_until_its_key_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_source, "ASK_AGAIN_S", 0.0)
    shown = [jwk("ES256", kid="old")]
    with running(Backend(lambda _asked: (200, {}, jwk_set(*shown)))) as issuer_of:
        async with serving(JwtTable(algorithms=("ES256",), jwks_url=issuer_of.url)) as broker:
            old, new = token(headers={"kid": "old"}), token(which=1, headers={"kid": "new"}, ends_in_s=9999)
            async with client_of(broker, password=old) as client:
                shown.append(jwk("ES256", 1, kid="new"))
                await client.subscribe(b"a")
                await client.send(Publish(RENEW, new, 1, packet_identifier=7))
                await client.send(Publish(b"a", b"behind it", 0))
                said, acknowledged, behind = [await client.receive() for _ in range(3)]
                assert json.loads(said.payload)["ok"], said
                assert isinstance(acknowledged, Ack)
                assert behind.payload == b"behind it"
