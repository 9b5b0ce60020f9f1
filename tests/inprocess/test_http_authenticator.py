"""Clients about whom a server is asked over HTTP: one that answers, stalls, dies, lies and comes back."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import pytest
import trio

from broker import logs
from broker.auth.http_client import HttpAnswer, HttpError
from broker.auth.http_contracts import CONTRACTS, kept_for, verdict_of
from broker.auth.password_hash import new_hash
from broker.config.authenticator import HttpTable, JwtTable, PasswordFileTable
from broker.config.listener import Listener
from broker.config.loader import Limits, Log
from broker.config.start_error import StartError
from broker.wire.packets import Connect, Pingreq, Pingresp
from broker.wire.reasons import CloseReason, Reason
from broker.worker.worker import Worker
from tests.inprocess.test_tokens import answer, client_of, issuer, serving, settings
from tests.support.http_backend import Answer, Asked, Backend, running
from tests.support.tokens import jwk, jwk_set, token

BAD, REFUSED, AWAY = Reason.BAD_USER_NAME_OR_PASSWORD, Reason.NOT_AUTHORIZED, Reason.SERVER_UNAVAILABLE
ONCE = {"Cache-Control": "no-store"}


def says(result: Any, status: int = 200, headers: dict[str, str] | None = None, **more: Any) -> Answer:
    return status, headers or {}, json.dumps({"result": result, **more}).encode()


@pytest.fixture
def backend() -> Iterator[Backend]:
    """Lets ann in by the password "right"; knows nothing of zoe."""

    def decide(asked: Asked) -> Answer:
        said = json.loads(asked.body)
        if said["user_name"] == "zoe":
            return says("ignore")
        return says("allow" if (said["user_name"], said["password"]) == ("ann", "right") else "deny")

    with running(Backend(decide)) as found:
        yield found


async def test_a_server_decides_and_its_connections_are_kept(backend: Backend) -> None:
    async with serving(HttpTable(urls=(backend.url,))) as broker:
        assert (await answer(broker, b"right", "ann")).reason == Reason.SUCCESS
        assert (await answer(broker, b"wrong", "ann")).reason == BAD
        assert (await answer(broker, b"right", "zoe")).reason == BAD
        assert (await answer(broker, None)).reason == BAD
        assert (await answer(broker, b"\xff", "ann")).reason == BAD  # which no contract can say
        assert len({asked.connection for asked in backend.asked}) == 1
        first = backend.asked[0]
        assert first.path == "/login?a=b"
        said = json.loads(first.body)
        assert said.pop("address") == "127.0.0.1"
        assert said == {
            "client_identifier": "c",
            "user_name": "ann",
            "password": "right",
            "version": 5,
            "listener": 0,
            "certificate": None,
        }


async def test_who_is_ignored_is_looked_up_elsewhere(backend: Backend, tmp_path: Path) -> None:
    users = tmp_path / "users"
    users.write_bytes(b"zoe:" + new_hash(b"known", "sha512-pbkdf2", 2))
    async with serving(HttpTable(urls=(backend.url,)), PasswordFileTable(file=str(users))) as broker:
        assert (await answer(broker, b"known", "zoe")).reason == Reason.SUCCESS
        assert (await answer(broker, b"right", "ann")).reason == Reason.SUCCESS


async def test_answers_count_for_as_long_as_they_say_refusals_too(backend: Backend) -> None:
    backend.answer = lambda asked: says(
        "allow" if b"right" in asked.body else "deny", headers={"Cache-Control": "private, max-age=300"}
    )
    async with serving(HttpTable(urls=(backend.url,))) as broker:
        for _ in range(3):
            assert (await answer(broker, b"right", "ann")).reason == Reason.SUCCESS
            assert (await answer(broker, b"wrong", "ann")).reason == BAD
        assert len(backend.asked) == 2
        assert (await answer(broker, b"right", "ann", name=b"another")).reason == Reason.SUCCESS
        assert len(backend.asked) == 3
        # What counts no more is asked again.
        backend.answer = lambda asked: says("deny", headers=ONCE)
        (member,) = broker.reload.authenticators
        member.use(member.read())
        for _ in range(2):
            assert (await answer(broker, b"right", "ann")).reason == BAD
        assert len(backend.asked) == 5


async def test_a_kept_connection_that_the_server_has_cut_is_replaced(backend: Backend) -> None:
    async with serving(HttpTable(urls=(backend.url,))) as broker:
        for _ in range(3):
            assert (await answer(broker, b"right", "ann")).reason == Reason.SUCCESS
            backend.cut()
        assert len({asked.connection for asked in backend.asked}) == 3
        (member,) = broker.reload.authenticators
        assert member.describe()["failed"] == 0


async def test_a_client_that_names_an_authentication_method_is_not_asked_about(backend: Backend) -> None:
    async with serving(HttpTable(urls=(backend.url,))) as broker:
        assert (
            await answer(broker, b"right", "ann", authentication_method="x")
        ).reason == Reason.BAD_AUTHENTICATION_METHOD
        assert not backend.asked


async def test_a_server_that_stalls_keeps_its_clients_waiting_and_nobody_else(backend: Backend) -> None:
    async with serving(HttpTable(urls=(backend.url,), timeout_s=0.3)) as broker, client_of(broker) as stays:
        await stays.send(Connect(5, b"stays", user_name="ann", password=b"right"))
        assert (await stays.receive()).reason == Reason.SUCCESS
        backend.answer = lambda asked: None
        async with trio.open_nursery() as nursery:
            reasons: list[Any] = []

            async def come(number: int) -> None:
                reasons.append((await answer(broker, b"right", "ann", name=b"%d" % number)).reason)

            for number in range(4):
                nursery.start_soon(come, number)
            await stays.send(Pingreq())
            assert isinstance(await stays.receive(), Pingresp)
        assert reasons == [AWAY] * 4
        assert broker.controller.refused[CloseReason.SERVER_UNAVAILABLE] == 4


async def test_a_server_that_dies_is_left_alone_for_a_while_and_asked_again_when_it_is_back(backend: Backend) -> None:
    with running(Backend(backend.answer)) as dying:
        async with serving(HttpTable(urls=(dying.url,), timeout_s=2)) as broker:
            assert (await answer(broker, b"right", "ann")).reason == Reason.SUCCESS
            (member,) = broker.reload.authenticators
            dying.raw = b""  # and every connection is closed
            for _ in range(8):
                assert (await answer(broker, b"right", "ann")).reason == AWAY
            assert member.describe()["failed"] == 5  # then it was left alone
            assert member.describe()["trouble"] == dying.url.partition("?")[0]
            dying.raw = None
            while (await answer(broker, b"right", "ann")).reason != Reason.SUCCESS:  # noqa: ASYNC110
                await trio.sleep(0.1)
            assert member.describe()["trouble"] is None


async def test_the_next_server_is_asked_if_one_is_down(backend: Backend) -> None:
    with running(Backend(lambda asked: (503, {}, b"busy"))) as down:
        async with serving(HttpTable(urls=(down.url, backend.url))) as broker:
            for _ in range(10):
                assert (await answer(broker, b"right", "ann")).reason == Reason.SUCCESS
            assert len(down.asked) < 10  # the one that answers is asked first
            assert len(backend.asked) == 10


async def test_an_answer_may_count_for_longer_if_nobody_answers(backend: Backend) -> None:
    backend.answer = lambda asked: says("allow", headers={"Cache-Control": "max-age=0, stale-if-error=600"})
    async with serving(HttpTable(urls=(backend.url,))) as broker:
        assert (await answer(broker, b"right", "ann")).reason == Reason.SUCCESS
        backend.answer = lambda asked: (500, {}, b"")
        assert (await answer(broker, b"right", "ann")).reason == Reason.SUCCESS
        assert (await answer(broker, b"another", "ann")).reason == AWAY
        backend.answer = lambda asked: says("allow", headers={"Cache-Control": "max-age=60, stale-if-error=600"})
        assert (await answer(broker, b"right", "ann")).reason == Reason.SUCCESS
        # Ten minutes later.
        (member,) = broker.reload.authenticators
        answers = vars(member)["_answers"]
        for key, known in list(answers.items()):
            answers[key] = replace(known, until_s=known.until_s - 660, stale_until_s=known.stale_until_s - 660)
        backend.answer = lambda asked: (500, {}, b"")
        assert (await answer(broker, b"right", "ann")).reason == AWAY
        backend.answer = lambda asked: says("deny")
        assert (await answer(broker, b"right", "ann")).reason == BAD


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"\0" * 100,
        b"HTTP/1.1 200 OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{",
        b"220 smtp\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n[]",
        b"HTTP/1.1 200 OK\r\nContent-Length: 70000\r\n\r\n" + b" " * 70_000,
        b"HTTP/1.1 302 Found\r\nLocation: /\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        *(
            b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)
            for body in (
                b'{"result": "yes"}',
                b'{"result": true}',
                b'{"result": "allow", "superuser": "yes"}',
                b'{"result"',
                b"allow",
                b'{"result": "allow", "user_name": ""}',
                b'{"result": "allow", "user_name": "a\\u0000"}',
                b'{"result": "allow", "expires_at": -1}',
                b'{"result": "allow", "expires_at": "soon"}',
                b"[" * 5000,
            )
        ),
    ],
)
async def test_a_server_that_says_what_it_should_not_has_let_nobody_in(backend: Backend, raw: bytes) -> None:
    backend.raw = raw
    async with serving(HttpTable(urls=(backend.url,), timeout_s=5)) as broker:
        assert (await answer(broker, b"right", "ann")).reason == AWAY


async def test_what_a_server_says_of_a_client_holds_and_ends(backend: Backend) -> None:
    backend.answer = lambda asked: says(
        "allow", user_name="device/7", groups=["meters"], superuser=True, expires_at=time.time() + 1.5
    )
    async with serving(HttpTable(urls=(backend.url,))) as broker, client_of(broker) as client:
        await client.send(Connect(5, b"c", user_name="ann", password=b"right"))
        assert (await client.receive()).reason == Reason.SUCCESS
        (connection,) = broker.reactor.connections_snapshot()
        principal = connection.principal
        assert (principal.user_name, principal.groups, principal.superuser) == ("device/7", ("meters",), True)
        assert (await client.receive()).reason == REFUSED
        backend.answer = lambda asked: says("allow", expires_at=time.time() - 5)
        assert (await answer(broker, b"right", "ann")).reason == BAD


async def test_authorization_comes_from_a_file_and_no_secret_is_told(backend: Backend, tmp_path: Path) -> None:
    logs.configure(Log(file=str(tmp_path / "log")))
    file = tmp_path / "authorization"
    file.write_text("Bearer of-the-broker\n")
    async with serving(HttpTable(urls=(backend.url,), authorization_file=str(file))) as broker:
        assert (await answer(broker, b"right", "ann")).reason == Reason.SUCCESS
        assert backend.asked[-1].headers["authorization"] == "Bearer of-the-broker"
        file.write_text("Bearer another")
        await broker.reload.reload()
        backend.raw = b"HTTP/1.1 200 OK\r\n\r\nright Bearer another"
        assert (await answer(broker, b"right", "ann")).reason == AWAY
        assert backend.asked[-1].headers["authorization"] == "Bearer another"
        (member,) = broker.reload.authenticators
        logs.flush()
        told = (tmp_path / "log").read_text() + str(member.describe()) + repr(vars(member)["_answers"])
        assert "http_failed" in told
        assert "right" not in told
        assert "Bearer" not in told
    for text in ("", "é", "a\nb"):
        file.write_text(text)
        with pytest.raises(StartError, match="expected one line"):
            Worker(settings(HttpTable(urls=(backend.url,), authorization_file=str(file))))


# Contracts ----------------------------------------------------------------------------------------------------------


def asked_by(contract: str) -> dict[str, Any]:
    return {
        "emqx": {
            "clientid": "c",
            "username": "ann",
            "password": "right",
            "peerhost": "127.0.0.1",
            "cert_common_name": None,
            "cert_subject": None,
        },
        "vernemq": {
            "username": "ann",
            "password": "right",
            "mountpoint": "",
            "client_id": "c",
            "clean_start": True,
            "peer_addr": "127.0.0.1",
        },
        "mosquitto-go-auth": {"username": "ann", "password": "right", "clientid": "c"},
        "rabbitmq": {"username": ["ann"], "password": ["right"], "vhost": ["/"], "client_id": ["c"]},
    }[contract]


@pytest.mark.parametrize(("contract", "status", "body", "expected"), [
    ("emqx", 200, b'{"result": "allow", "is_superuser": true}', Reason.SUCCESS),
    ("emqx", 204, b"", Reason.SUCCESS),
    ("emqx", 200, b'{"result": "deny"}', BAD),
    ("emqx", 200, b'{"result": "ignore"}', BAD),
    ("emqx", 403, b"", BAD),
    ("emqx", 502, b"", AWAY),
    ("vernemq", 200, b'{"result": "ok"}', Reason.SUCCESS),
    ("vernemq", 200, b'{"result": "next"}', BAD),
    ("vernemq", 200, b'{"result": {"error": "not_allowed"}}', BAD),
    ("vernemq", 404, b"", AWAY),
    ("mosquitto-go-auth", 200, b"", Reason.SUCCESS),
    ("mosquitto-go-auth", 401, b"", BAD),
    ("mosquitto-go-auth", 500, b"", AWAY),
    ("rabbitmq", 200, b"allow", Reason.SUCCESS),
    ("rabbitmq", 200, b"allow administrator", Reason.SUCCESS),
    ("rabbitmq", 200, b"deny", BAD),
    ("rabbitmq", 200, b"", AWAY),
])  # fmt: skip
async def test_servers_of_other_brokers_are_asked_in_their_own_words(
    backend: Backend, contract: Any, status: int, body: bytes, expected: Reason
) -> None:
    backend.answer = lambda asked: (status, {}, body)
    async with serving(HttpTable(urls=(backend.url,), contract=contract)) as broker:
        assert (await answer(broker, b"right", "ann")).reason == expected
        (asked,) = backend.asked
        said: dict[str, Any] = parse_qs(asked.body.decode()) if contract == "rabbitmq" else json.loads(asked.body)
        said.pop("peer_port", None)
        assert said == asked_by(contract)
        if contract == "vernemq":
            assert asked.headers["vernemq-hook"] == "auth_on_register_m5"


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("", (7, 9)),
        ("max-age=300, private", (300, 9)),
        ("private,max-age=300", (300, 9)),
        ("MAX-AGE=5", (5, 9)),
        ("max-age=x", (7, 9)),
        ("s-maxage=5", (7, 9)),
        ("no-store", (0, 0)),
        ("max-age=5, no-cache", (0, 0)),
        ("max-age=1, stale-if-error=60", (1, 60)),
        ('max-age="4"', (4, 9)),
        ("xmax-age=4", (7, 9)),
    ],
)
def test_how_long_an_answer_counts(said: str, expected: tuple[float, float]) -> None:
    assert kept_for({"cache-control": said} if said else {}, 7, 9) == expected


@pytest.mark.parametrize("contract", list(CONTRACTS))
@pytest.mark.parametrize("status", [500, 502, 503, 504, 429])
def test_a_server_that_is_out_of_order_has_decided_nothing(contract: str, status: int) -> None:
    with pytest.raises(HttpError):
        verdict_of(contract, HttpAnswer(status, {}, b'{"result": "allow"}'))


# Keys of tokens at a URL --------------------------------------------------------------------------------------------


async def test_keys_at_a_url_are_found_and_others_when_a_token_names_them(monkeypatch: pytest.MonkeyPatch) -> None:
    from broker.auth import key_source

    published = [jwk("ES256", kid="first")]
    with running(Backend(lambda asked: (200, {}, jwk_set(*published)))) as issuer_of:
        async with serving(JwtTable(algorithms=("ES256",), jwks_url=issuer_of.url)) as broker:
            assert (await answer(broker, token(headers={"kid": "first"}))).reason == Reason.SUCCESS
            looks = len(issuer_of.asked)
            published[:] = [jwk("ES256", 1, kid="second")]
            # Names of keys can be made up: so a name that is not known leads to a look only once in a while.
            for _ in range(2):
                assert (await answer(broker, token(which=1, headers={"kid": "second"}))).reason == REFUSED
            assert len(issuer_of.asked) == looks
            monkeypatch.setattr(key_source, "ASK_AGAIN_S", 0.0)
            assert (await answer(broker, token(which=1, headers={"kid": "second"}))).reason == Reason.SUCCESS
            assert (await answer(broker, token(headers={"kid": "first"}))).reason == REFUSED
            # An issuer that is away keeps nobody out whose key is known.
            issuer_of.answer = lambda asked: (500, {}, b"")
            assert (await answer(broker, token(which=1, headers={"kid": "second"}))).reason == Reason.SUCCESS
            assert (await answer(broker, token(headers={"kid": "third"}))).reason == AWAY
            (member,) = broker.reload.authenticators
            assert member.describe()["trouble"] == "answered 500, expected 200"
            issuer_of.answer = lambda asked: (200, {}, jwk_set(jwk("ES256", 2, kid="third")))
            await broker.reload.reload()
            while member.describe()["trouble"]:  # noqa: ASYNC110
                await trio.sleep(0.01)
            assert (await answer(broker, token(which=2, headers={"kid": "third"}))).reason == Reason.SUCCESS


async def test_tokens_are_not_refused_for_good_while_the_issuer_was_never_there(tmp_path: Path) -> None:
    async with serving(
        JwtTable(algorithms=("ES256",), jwks_url="http://127.0.0.1:1/keys"), issuer(tmp_path, which=1)
    ) as broker:
        assert (await answer(broker, token())).reason == AWAY
        assert (await answer(broker, token(which=1))).reason == Reason.SUCCESS
        assert (await answer(broker, b"no token", "ann")).reason == BAD


# A chain for each listener ------------------------------------------------------------------------------------------


async def test_a_listener_asks_those_that_it_names(tmp_path: Path, backend: Backend) -> None:
    users = tmp_path / "users"
    users.write_bytes(b"bob:" + new_hash(b"known", "sha512-pbkdf2", 2))
    listeners = (
        Listener(address="tcp://127.0.0.1:0", authenticators=("people",)),
        Listener(address="tcp://127.0.0.1:0", authenticators=("devices", "asked")),
        Listener(address="tcp://127.0.0.1:0"),
        Listener(address="tcp://127.0.0.1:0", authenticators=(), allow_anonymous=True),
    )
    async with serving(
        PasswordFileTable(file=str(users), name="people"),
        issuer(tmp_path, name="devices"),
        HttpTable(urls=(backend.url,), name="asked"),
        listen=(),
        listener=listeners,
        limits=Limits(login_delay_max_s=0),
    ) as broker:
        ports = [broker.addresses_of(number)[0].port for number in range(4)]
        logins: dict[str, tuple[str | None, bytes | None]] = {
            "bob": ("bob", b"known"),
            "token": ("x", token()),
            "ann": ("ann", b"right"),
            "nobody": (None, None),
        }
        let_in = {}
        for number, port in enumerate(ports):
            for name, (user, password) in logins.items():
                async with client_of_port(port) as client:
                    await client.send(Connect(5, b"c", user_name=user, password=password))
                    let_in[number, name] = (await client.receive()).reason == Reason.SUCCESS
    expected = {0: {"bob"}, 1: {"token", "ann"}, 2: {"bob", "token", "ann"}, 3: {"nobody"}}
    assert {number: {name for name in logins if let_in[number, name]} for number in range(4)} == expected


def client_of_port(port: int) -> Any:
    class There:
        addresses = [Listener(address=f"tcp://127.0.0.1:{port}").where]

    return client_of(There())  # type: ignore[arg-type]
