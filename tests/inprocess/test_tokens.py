"""Clients that come by tokens, whose time runs out, and that renew them in their session."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio

from broker.auth.outcome import Accepted, Outcome
from broker.auth.password_hash import new_hash
from broker.config.authenticator import JwtTable, PasswordFileTable
from broker.config.loader import Config
from broker.config.start_error import StartError
from broker.wire.packets import Auth, Connack, Connect, Disconnect, Pingreq, Pingresp, Will, encode
from broker.wire.reasons import CloseReason, ConnectReturn, Reason
from broker.worker.worker import Worker, open_broker
from tests.support.conversation import MemoryBroker, MemoryClient
from tests.support.embedded import CONFIG, Device
from tests.support.tokens import SECRET, jwk, jwk_set, private_pem, public_pem, token

TIMEOUT_S = 60
BAD, REFUSED = Reason.BAD_USER_NAME_OR_PASSWORD, Reason.NOT_AUTHORIZED


def settings(*tables: Any, **more: Any) -> Config:
    return msgspec.structs.replace(CONFIG, authenticator=tables, **more)


def issuer(folder: Path, algorithm: str = "ES256", which: int = 0, **more: Any) -> JwtTable:
    """Return the table of an issuer whose key is in a file."""
    file = folder / f"{algorithm}-{which}.pem"
    file.write_bytes(public_pem(algorithm, which))
    return JwtTable(algorithms=(algorithm,), keys=(str(file),), **more)


@asynccontextmanager
async def serving(*tables: Any, **more: Any) -> AsyncIterator[Worker]:
    with trio.fail_after(TIMEOUT_S):
        async with open_broker(settings(*tables, **more)) as broker:
            yield broker


@asynccontextmanager
async def client_of(broker: Worker, version: int = 5) -> AsyncIterator[Device]:
    async with await trio.open_tcp_stream("127.0.0.1", broker.addresses[0].port) as stream:
        yield Device(stream, version)


async def answer(
    broker: Worker,
    password: bytes | None,
    user: str | None = None,
    version: int = 5,
    name: bytes = b"c",
    **properties: Any,
) -> Connack:
    """Return what a CONNECT is answered."""
    async with client_of(broker, version) as client:
        await client.send(Connect(version, name, user_name=user, password=password, properties=properties))
        connack = await client.receive()
        assert isinstance(connack, Connack)
        if connack.reason == Reason.SUCCESS:
            await client.send(Pingreq())
            assert isinstance(await client.receive(), Pingresp)
        return connack


# CONNECT ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [3, 4, 5])
async def test_a_token_as_password_lets_its_subject_in(tmp_path: Path, version: int) -> None:
    async with serving(issuer(tmp_path)) as broker:
        async with client_of(broker, version) as client:
            await client.send(Connect(version, b"c", user_name="whoever", password=token()))
            assert (await client.receive()).reason == Reason.SUCCESS
            (known,) = await broker.clients()
            assert known.principal is not None
            assert known.principal.user_name == "ann"
        expired = {5: REFUSED}.get(version, ConnectReturn.NOT_AUTHORIZED)
        assert (await answer(broker, token(ends_in_s=-1), "ann", version)).reason == expired
        assert (await answer(broker, token(which=1), "ann", version)).reason == expired
        not_a_token = {5: BAD}.get(version, ConnectReturn.BAD_USER_NAME_OR_PASSWORD)
        assert (await answer(broker, b"no token", "ann", version)).reason == not_a_token


async def test_a_refused_token_says_why_and_nothing_else(tmp_path: Path) -> None:
    async with serving(issuer(tmp_path, audience=("mqtt",))) as broker:
        refused = await answer(broker, token(aud="http"), "ann")
        assert refused.reason == REFUSED
        assert refused.properties == {"reason_string": "the token is refused: it is for another audience"}
        assert (await answer(broker, token(aud=["http", "mqtt"]), "ann")).reason == Reason.SUCCESS


async def test_a_token_may_come_as_user_name(tmp_path: Path) -> None:
    async with serving(issuer(tmp_path, token_from="user_name")) as broker:
        assert (await answer(broker, None, token().decode())).reason == Reason.SUCCESS
        assert (await answer(broker, token(), "ann")).reason == BAD


async def test_the_client_identifier_is_what_the_token_says(tmp_path: Path) -> None:
    async with serving(issuer(tmp_path, claims={"client": "${clientid}"})) as broker:
        assert (await answer(broker, token(client="c"))).reason == Reason.SUCCESS
        assert (await answer(broker, token(client="other"))).reason == REFUSED
        assert (await answer(broker, token(client=""), name=b"")).reason == Reason.SUCCESS  # none, as it says
        assert (await answer(broker, token(client="auto"), name=b"")).reason == REFUSED


async def test_who_has_no_token_is_looked_up_elsewhere(tmp_path: Path) -> None:
    users = tmp_path / "users"
    users.write_bytes(b"bob:" + new_hash(b"a.b.c", "sha512-pbkdf2", 2))
    first, second = issuer(tmp_path), issuer(tmp_path, which=1)
    for tables in (
        (PasswordFileTable(file=str(users)), first, second),
        (first, PasswordFileTable(file=str(users)), second),
        (first, second, PasswordFileTable(file=str(users))),
    ):
        async with serving(*tables, allow_anonymous=True) as broker:
            assert (await answer(broker, b"a.b.c", "bob")).reason == Reason.SUCCESS
            assert (await answer(broker, token(), "zoe")).reason == Reason.SUCCESS
            assert (await answer(broker, token(which=1))).reason == Reason.SUCCESS
            assert (await answer(broker, None)).reason == Reason.SUCCESS  # nobody, who may come in
            assert (await answer(broker, token(which=2))).reason == REFUSED  # somebody, who is not known
            assert (await answer(broker, token(which=2), "zoe")).reason == REFUSED
            # What the first issuer's token does not allow, nobody else is asked.
            assert (await answer(broker, token(ends_in_s=-1), "zoe")).reason == REFUSED


# Enhanced authentication --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["JWT", "CUSTOM-JWT", "OAUTH2-JWT", "K8S-SAT"])
async def test_a_token_is_renewed_by_auth(tmp_path: Path, method: str) -> None:
    async with serving(issuer(tmp_path)) as broker, client_of(broker) as client:
        await client.send(
            Connect(5, b"c", properties={"authentication_method": method, "authentication_data": token(ends_in_s=50)})
        )
        connack = await client.receive()
        assert (connack.reason, connack.properties["authentication_method"]) == (Reason.SUCCESS, method)
        (connection,) = broker.reactor.connections_snapshot()
        before = connection.expires_at_s
        assert 40 < before - time.time() <= 50
        await client.send(
            Auth(Reason.RE_AUTHENTICATE, {"authentication_method": method, "authentication_data": token(ends_in_s=500)})
        )
        said = await client.receive()
        assert isinstance(said, Auth)
        assert (said.reason, said.properties) == (Reason.SUCCESS, {"authentication_method": method})
        assert 440 < connection.expires_at_s - before <= 460


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (token(sub="bob"), "the token is another client's"),
        (token(ends_in_s=-5), "the token is refused: it ended"),
        (token(which=1), "the token was signed with none of the keys"),
        (b"rubbish", "the token was signed with none of the keys"),
        (b"", "the token was signed with none of the keys"),
    ],
)
async def test_a_renewal_that_is_not_believed_ends_the_connection(tmp_path: Path, data: bytes, said: str) -> None:
    async with serving(issuer(tmp_path)) as broker, client_of(broker) as client:
        method = {"authentication_method": "JWT"}
        await client.send(Connect(5, b"c", properties={**method, "authentication_data": token()}))
        assert (await client.receive()).reason == Reason.SUCCESS
        await client.send(Auth(Reason.RE_AUTHENTICATE, {**method, "authentication_data": data}))
        last = await client.receive()
        assert isinstance(last, Disconnect)
        assert last.reason == REFUSED
        assert last.properties["reason_string"].startswith(said)
        assert await client.receive() is None


async def test_a_method_that_is_not_one_of_tokens_is_refused(tmp_path: Path) -> None:
    async with serving(issuer(tmp_path, methods=("CUSTOM-JWT",))) as broker:
        given = {"authentication_data": token()}
        assert (
            await answer(broker, None, authentication_method="JWT", **given)
        ).reason == Reason.BAD_AUTHENTICATION_METHOD
        assert (await answer(broker, None, authentication_method="CUSTOM-JWT", **given)).reason == Reason.SUCCESS
        # A password is another matter.
        assert (await answer(broker, token(), authentication_method="CUSTOM-JWT")).reason == REFUSED
        assert (await answer(broker, token())).reason == Reason.SUCCESS


async def test_the_name_of_the_connect_has_to_agree_where_the_settings_say_so(tmp_path: Path) -> None:
    table = issuer(tmp_path, user_claim="", claims={"user": "${username}"})
    async with serving(table) as broker:
        assert (await answer(broker, token(user="zoe"), "zoe")).reason == Reason.SUCCESS
        assert (await answer(broker, token(user="zoe"), "ann")).reason == REFUSED
        assert (await answer(broker, token(user=""))).reason == REFUSED
        async with client_of(broker) as client:
            method = {"authentication_method": "JWT"}
            await client.send(
                Connect(5, b"c", user_name="zoe", properties={**method, "authentication_data": token(user="zoe")})
            )
            assert (await client.receive()).reason == Reason.SUCCESS
            await client.send(Auth(Reason.RE_AUTHENTICATE, {**method, "authentication_data": token(user="zoe")}))
            assert isinstance(await client.receive(), Auth)
            await client.send(Auth(Reason.RE_AUTHENTICATE, {**method, "authentication_data": token(user="ann")}))
            assert isinstance(await client.receive(), Disconnect)


# The end of a token -------------------------------------------------------------------------------------------------


async def test_a_silent_client_is_told_when_its_token_ends_and_its_will_is_published(tmp_path: Path) -> None:
    async with serving(issuer(tmp_path)) as broker, client_of(broker) as watcher, client_of(broker) as client:
        await watcher.send(Connect(5, b"watcher", password=token()))
        assert (await watcher.receive()).reason == Reason.SUCCESS
        await watcher.subscribe(b"will")
        await client.send(Connect(5, b"c", will=Will(b"will", b"gone"), password=token(exp=time.time() + 1.5)))
        assert (await client.receive()).reason == Reason.SUCCESS
        last = await client.receive()
        assert isinstance(last, Disconnect)
        assert (last.reason, last.properties["reason_string"]) == (REFUSED, "the authentication has ended")
        assert await client.receive() is None
        assert (await watcher.receive()).payload == b"gone"
        assert broker.controller.ends[CloseReason.AUTHENTICATION_EXPIRED] == 1


class Dated:
    """Accepts everybody until a time that the test sets; a method `again` sets it anew."""

    def __init__(self) -> None:
        self.expires_at_s: float | None = None
        self.groups: tuple[str, ...] = ()
        self.user = "ann"

    def authenticate(self, connect: Connect, exchange: Any) -> Outcome:
        """Accept."""
        return Accepted(self.user, expires_at_s=self.expires_at_s, groups=self.groups)


@asynccontextmanager
async def timed() -> AsyncIterator[tuple[MemoryBroker, Dated, list[float]]]:
    """Run a broker whose two clocks the test moves: `wait()` moves the one, the list has what the other is ahead."""
    dated, ahead = Dated(), [0.0]
    async with trio.open_nursery() as nursery:
        broker = MemoryBroker(CONFIG, nursery, None, None, dated)
        broker.controller.handshake.expiry.clock_s = lambda: broker.now_ms / 1000 + ahead[0]
        yield broker, dated, ahead


async def connected(broker: MemoryBroker, keep_alive_s: int = 0, version: int = 5) -> MemoryClient:
    client = await broker.connect()
    await client.send(
        encode(
            Connect(
                version,
                b"c",
                keep_alive_s=keep_alive_s,
                properties={} if version < 5 else {"authentication_method": "again"},
            ),
            version,
        ),
        False,
    )
    assert await client.receive() is not None
    return client


@pytest.mark.parametrize("keep_alive_s", [0, 1, 20, 1000])
@pytest.mark.parametrize("lasts_s", [0.1, 30, 59.9, 60, 400])
async def test_a_connection_ends_with_its_authentication_not_before_and_a_tick_later_at_most(
    keep_alive_s: int, lasts_s: float
) -> None:
    async with timed() as (broker, dated, _):
        began_ms = broker.now_ms
        dated.expires_at_s = began_ms / 1000 + lasts_s
        client = await connected(broker, keep_alive_s)
        while not client.connection.is_closing:
            await broker.wait(250)
            if keep_alive_s and not client.connection.is_closing:
                await client.send(encode(Pingreq(), 5), False)
            assert broker.now_ms - began_ms < lasts_s * 1000 + 1000
        assert client.connection.close_reason == CloseReason.AUTHENTICATION_EXPIRED
        assert broker.now_ms - began_ms >= lasts_s * 1000


async def test_a_client_that_is_silent_for_too_long_ends_by_that_though_its_authentication_goes_on() -> None:
    async with timed() as (broker, dated, _):
        dated.expires_at_s = broker.now_ms / 1000 + 40
        client = await connected(broker, 10)
        await broker.wait(16_000)
        assert client.connection.close_reason == CloseReason.KEEP_ALIVE_TIMEOUT


async def test_a_renewed_authentication_ends_when_the_new_one_says_sooner_later_or_never() -> None:
    again = encode(Auth(Reason.RE_AUTHENTICATE, {"authentication_method": "again"}), 5)
    async with timed() as (broker, dated, _):
        dated.expires_at_s = broker.now_ms / 1000 + 100
        client = await connected(broker)
        dated.expires_at_s = broker.now_ms / 1000 + 1000
        await client.send(again, False)
        await broker.wait(500_000)
        assert client.connection.is_open
        dated.expires_at_s = None
        await client.send(again, False)
        await broker.wait(1_000_000)
        assert client.connection.is_open
        dated.expires_at_s = broker.now_ms / 1000 + 5
        await client.send(again, False)
        await broker.wait(6000)
        assert client.connection.close_reason == CloseReason.AUTHENTICATION_EXPIRED


async def test_the_will_keeps_the_rights_of_its_connect_as_long_as_its_user_is_the_same() -> None:
    again = encode(Auth(Reason.RE_AUTHENTICATE, {"authentication_method": "again"}), 5)
    async with timed() as (broker, dated, _):
        dated.groups = ("may leave a will",)
        client = await broker.connect()
        await client.send(
            encode(Connect(5, b"c", will=Will(b"will"), properties={"authentication_method": "again"}), 5), False
        )
        session = client.connection.session
        dated.groups = ()
        await client.send(again, False)
        assert client.connection.principal.groups == ()
        assert session.will.principal.groups == ("may leave a will",)
        dated.user = "bob"
        await client.send(again, False)
        assert (session.will.principal.user_name, session.will.principal.groups) == ("bob", ())


async def test_an_authentication_that_ended_before_it_was_answered_ends_the_connection_at_once() -> None:
    async with timed() as (broker, dated, _):
        dated.expires_at_s = 1.0
        client = await connected(broker, version=4)
        await broker.wait(500)
        assert client.connection.close_reason == CloseReason.AUTHENTICATION_EXPIRED


async def test_a_clock_that_is_set_forward_ends_it_within_a_minute_and_backward_later() -> None:
    async with timed() as (broker, dated, ahead):
        dated.expires_at_s = broker.now_ms / 1000 + 4000
        client = await connected(broker)
        await broker.wait(1000)
        ahead[0] = 5000.0
        await broker.wait(61_000)
        assert client.connection.close_reason == CloseReason.AUTHENTICATION_EXPIRED
        ahead[0] = 0.0
        dated.expires_at_s = broker.now_ms / 1000 + 30
        client = await connected(broker)
        ahead[0] = -1000.0
        await broker.wait(500_000)
        assert client.connection.is_open
        await broker.wait(531_000)
        assert client.connection.close_reason == CloseReason.AUTHENTICATION_EXPIRED


# Files of keys ------------------------------------------------------------------------------------------------------


async def test_keys_of_a_folder_that_change_are_taken_up_and_who_is_connected_stays(tmp_path: Path) -> None:
    folder = tmp_path / "keys"
    folder.mkdir()
    (folder / "a.pem").write_bytes(public_pem("ES256"))
    (folder / ".hidden").write_bytes(b"no key")
    async with serving(JwtTable(algorithms=("ES256",), keys=(str(folder),))) as broker, client_of(broker) as stays:
        await stays.send(Connect(5, b"stays", password=token()))
        assert (await stays.receive()).reason == Reason.SUCCESS
        assert (await answer(broker, token(which=1))).reason == REFUSED
        (folder / "b.json").write_bytes(jwk_set(jwk("ES256", 1)))
        (folder / "a.pem").unlink()
        while not broker.reload.done:  # noqa: ASYNC110  (it looks from time to time, and tells nobody)
            await trio.sleep(0.01)
        assert (await answer(broker, token(which=1))).reason == Reason.SUCCESS
        assert (await answer(broker, token())).reason == REFUSED
        await stays.send(Pingreq())
        assert isinstance(await stays.receive(), Pingresp)
        # A file that is written in its place is noticed, too; one that cannot be used changes nothing.
        (folder / "b.json").write_bytes(b"{}")
        while not broker.reload.failed:  # noqa: ASYNC110
            await trio.sleep(0.01)
        assert broker.reload.error is not None
        assert f"authenticator 1: The file {folder / 'b.json'} cannot be used: found no key" in broker.reload.error
        assert (await answer(broker, token(which=1))).reason == Reason.SUCCESS


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (None, "cannot be read: No such file"),
        (b"", "cannot be used: found neither PEM"),
        (private_pem("ES256"), "cannot be used: found a private key, expected the public one: `openssl pkey"),
    ],
)
async def test_a_broker_does_not_start_without_its_keys(tmp_path: Path, data: bytes | None, said: str) -> None:
    file = tmp_path / "key.pem"
    if data is not None:
        file.write_bytes(data)
    with pytest.raises(StartError, match=said) as caught:
        Worker(settings(JwtTable(algorithms=("ES256",), keys=(str(file),))))
    assert str(caught.value).startswith("authenticator 1: The ")
    assert "BEGIN" not in str(caught.value)


async def test_a_secret_in_a_file_signs_tokens(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_bytes(SECRET + b"0\n")
    async with serving(JwtTable(algorithms=("HS256", "HS512"), secret_file=str(file))) as broker:
        for algorithm, expected in (("HS256", Reason.SUCCESS), ("HS384", REFUSED), ("HS512", Reason.SUCCESS)):
            assert (await answer(broker, token(algorithm))).reason == expected
