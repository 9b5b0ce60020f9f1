"""CONNECTs that a password file decides on, in a broker of this process."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio

from broker.auth.chain import Chain
from broker.auth.hashing import Hashing
from broker.auth.outcome import Accepted, Ignored, Refused
from broker.auth.password_hash import new_hash
from broker.config.authenticator import PasswordFileTable
from broker.config.listener import Listener
from broker.config.loader import Config, Limits
from broker.config.start_error import StartError
from broker.wire.packets import Connack, Connect, Pingreq, Pingresp
from broker.wire.reasons import CloseReason, ConnectReturn, Reason
from broker.worker.placement import Start
from broker.worker.worker import Worker, open_broker
from tests.support.certificates import certificates
from tests.support.conversation import open_tls
from tests.support.embedded import CONFIG, Device

SECRET = b"correct horse battery staple"
HASH = new_hash(SECRET, "sha512-pbkdf2", 2)
OTHER = new_hash(b"another", "sha512-pbkdf2", 2)
TIMEOUT_S = 60


def settings(*files: Path, **more: Any) -> Config:
    tables = tuple(PasswordFileTable(file=str(file)) for file in files)
    return msgspec.structs.replace(CONFIG, authenticator=tables, **more)


def written(folder: Path, name: str = "users", **users: bytes) -> Path:
    file = folder / name
    file.write_bytes(b"".join(user.encode() + b":" + stored + b"\n" for user, stored in users.items()))
    return file


@asynccontextmanager
async def serving(config: Config) -> AsyncIterator[Worker]:
    with trio.fail_after(TIMEOUT_S):
        async with open_broker(config) as broker:
            yield broker


async def answer(
    broker: Worker, user: str | None, password: bytes | None, version: int = 5, properties: dict[str, Any] | None = None
) -> int:
    """Return what a client's CONNECT is answered."""
    stream = await trio.open_tcp_stream("127.0.0.1", broker.addresses[0].port)
    async with stream:
        client = Device(stream, version)
        await client.send(Connect(version, b"c", user_name=user, password=password, properties=properties or {}))
        connack = await client.receive()
        assert isinstance(connack, Connack)
        if connack.reason == Reason.SUCCESS:
            await client.send(Pingreq())
            assert isinstance(await client.receive(), Pingresp)
        return int(connack.reason)


@pytest.fixture
def hashed(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The hashes that passwords were tried on, in the order in which that was begun."""
    tried: list[bytes] = []
    real = Hashing.fits

    async def counted(hashing: Hashing, stored: bytes, password: bytes) -> bool:
        tried.append(stored)
        return await real(hashing, stored, password)

    monkeypatch.setattr(Hashing, "fits", counted)
    return tried


BAD, REFUSED = Reason.BAD_USER_NAME_OR_PASSWORD, Reason.NOT_AUTHORIZED


@pytest.mark.parametrize(("user", "password", "expected"), [
    ("ann", SECRET, Reason.SUCCESS),
    ("ann", SECRET + b"x", BAD),
    ("ann", b"", BAD),
    ("ann", None, BAD),
    ("Ann", SECRET, BAD),
    ("ann ", SECRET, BAD),
    ("", SECRET, BAD),
    ("nobody", SECRET, BAD),
    ("nobody", None, BAD),
    (None, None, REFUSED),
])  # fmt: skip
async def test_a_connect_is_answered_by_the_password_file(
    tmp_path: Path, user: str | None, password: bytes | None, expected: Reason
) -> None:
    returns = {Reason.SUCCESS: 0, BAD: ConnectReturn.BAD_USER_NAME_OR_PASSWORD, REFUSED: ConnectReturn.NOT_AUTHORIZED}
    async with serving(settings(written(tmp_path, ann=HASH))) as broker:
        assert await answer(broker, user, password) == expected
        assert await answer(broker, user, password, version=4) == returns[expected]
        if user is None:
            assert await answer(broker, None, SECRET) == REFUSED  # a password alone, as 5.0 allows


@pytest.mark.parametrize(
    ("allowed", "listener_allows", "expected"),
    [
        (None, None, REFUSED),
        (False, None, REFUSED),
        (True, None, Reason.SUCCESS),
        (True, False, REFUSED),
        (None, True, Reason.SUCCESS),
        (False, True, Reason.SUCCESS),
    ],
)
async def test_a_client_without_a_user_name_comes_in_where_the_settings_say_so(
    tmp_path: Path, allowed: bool | None, listener_allows: bool | None, expected: Reason
) -> None:
    listener = Listener(address="tcp://127.0.0.1:0", allow_anonymous=listener_allows)
    config = settings(written(tmp_path, ann=HASH), listen=(), listener=(listener,), allow_anonymous=allowed)
    async with serving(config) as broker:
        assert await answer(broker, None, None) == expected
        # A user name is looked at wherever it is given.
        assert await answer(broker, "nobody", SECRET) == BAD
        assert await answer(broker, "ann", SECRET) == Reason.SUCCESS


async def test_an_authentication_method_is_refused(tmp_path: Path) -> None:
    async with serving(settings(written(tmp_path, ann=HASH))) as broker:
        given = {"authentication_method": "SCRAM-SHA-256", "authentication_data": b"x"}
        for user in ("ann", None):
            assert await answer(broker, user, SECRET, properties=given) == Reason.BAD_AUTHENTICATION_METHOD


async def test_files_are_asked_in_their_order_and_the_first_that_knows_the_user_decides(tmp_path: Path) -> None:
    first, second = written(tmp_path, "first", ann=HASH), written(tmp_path, "second", ann=OTHER, bob=OTHER)
    async with serving(settings(first, second)) as broker:
        assert await answer(broker, "ann", SECRET) == Reason.SUCCESS
        assert await answer(broker, "ann", b"another") == BAD
        assert await answer(broker, "bob", b"another") == Reason.SUCCESS
        assert await answer(broker, "zoe", b"another") == BAD


# What it costs, and tells -------------------------------------------------------------------------------------------


async def test_a_user_who_is_not_there_costs_as_much_hashing_as_one_who_is(tmp_path: Path, hashed: list[bytes]) -> None:
    first, second = written(tmp_path, "first", ann=HASH), written(tmp_path, "second", bob=OTHER)
    # Without the delay that follows when an address has tried as many users.
    async with serving(settings(first, second, limits=Limits(login_delay_max_s=0))) as broker:
        for user in ("ann", "bob", *(f"nobody{number}" for number in range(20))):
            before = len(hashed)
            assert await answer(broker, user, b"wrong") == BAD
            assert len(hashed) == before + 1, user
        assert {HASH, OTHER} == set(hashed[2:])  # names that are not there look like those of each file
        chosen = []
        for _ in range(3):
            assert await answer(broker, "nobody", b"wrong") == BAD
            chosen.append(hashed[-1])
        assert len(set(chosen)) == 1  # and one name always like the same user
        before = len(hashed)
        for user in ("ann", "nobody"):
            assert await answer(broker, user, None) == BAD
        assert len(hashed) == before


async def test_a_login_that_was_verified_needs_no_hashing(tmp_path: Path, hashed: list[bytes]) -> None:
    file = written(tmp_path, ann=HASH)
    async with serving(settings(file)) as broker:
        for _ in range(5):
            assert await answer(broker, "ann", SECRET) == Reason.SUCCESS
        assert len(hashed) == 1
        assert await answer(broker, "ann", b"wrong") == BAD
        assert await answer(broker, "ann", SECRET) == Reason.SUCCESS
        assert len(hashed) == 2
        # A changed hash, though of the same password, is not what was verified.
        written(tmp_path, ann=new_hash(SECRET, "sha512-pbkdf2", 3))
        await broker.reload.reload()
        assert broker.reload.error is None
        assert await answer(broker, "ann", SECRET) == Reason.SUCCESS
        assert len(hashed) == 3
        written(tmp_path, ann=OTHER)
        await broker.reload.reload()
        assert await answer(broker, "ann", SECRET) == BAD


async def test_who_was_hashed_while_the_password_changed_does_not_get_in_by_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(tmp_path, ann=HASH)

    async def change_first(_hashing: Hashing, _stored: bytes, _password: bytes) -> bool:
        written(tmp_path, ann=OTHER)
        await broker.reload.reload()
        return True

    monkeypatch.setattr(Hashing, "fits", change_first)
    async with serving(settings(tmp_path / "users")) as broker:
        assert await answer(broker, "ann", SECRET) == BAD
        assert await answer(broker, "ann", SECRET) == Reason.SUCCESS  # by the new one, as the double says


# Files that change --------------------------------------------------------------------------------------------------


async def test_a_file_that_cannot_be_used_changes_nothing(tmp_path: Path) -> None:
    first, second = written(tmp_path, "first", ann=HASH), written(tmp_path, "second", bob=HASH)
    async with serving(settings(first, second)) as broker:
        assert await answer(broker, "ann", SECRET) == Reason.SUCCESS
        written(tmp_path, "first", zoe=HASH)
        for broken in (b"bob:" + SECRET, b"bob:" + HASH + b"\nbob:" + HASH):
            second.write_bytes(broken)
            await broker.reload.reload()
            assert broker.reload.error is not None
            assert f"authenticator 2: The password file {second}" in broker.reload.error
            assert "line " in broker.reload.error
            assert SECRET.decode() not in broker.reload.error
            # All or nothing: the first file, which is right, does not count either.
            assert [await answer(broker, user, SECRET) for user in ("ann", "bob", "zoe")] == [0, 0, BAD]
        second.unlink()
        await broker.reload.reload()
        assert broker.reload.error is not None
        assert "No such file" in broker.reload.error
        written(tmp_path, "second", bob=HASH)
        await broker.reload.reload()
        assert broker.reload.error is None
        assert [await answer(broker, user, SECRET) for user in ("ann", "bob", "zoe")] == [BAD, 0, 0]


async def test_a_file_that_is_written_is_noticed_and_who_is_connected_stays(tmp_path: Path) -> None:
    file = written(tmp_path, ann=HASH)
    async with serving(settings(file)) as broker:
        stream = await trio.open_tcp_stream("127.0.0.1", broker.addresses[0].port)
        async with stream:
            client = Device(stream, 5)
            await client.send(Connect(5, b"stays", user_name="ann", password=SECRET))
            assert (await client.receive()).reason == Reason.SUCCESS
            written(tmp_path, bob=HASH)
            while not broker.reload.done:  # noqa: ASYNC110  (it looks from time to time, and tells nobody)
                await trio.sleep(0.01)
            assert await answer(broker, "ann", SECRET) == BAD
            assert await answer(broker, "bob", SECRET) == Reason.SUCCESS
            await client.send(Pingreq())
            assert isinstance(await client.receive(), Pingresp)


@pytest.mark.parametrize(("data", "said"), [(None, "No such file"), (b"ann:plain", "line 1: found no hash")])
async def test_a_broker_does_not_start_without_its_file(tmp_path: Path, data: bytes | None, said: str) -> None:
    file = tmp_path / "users"
    if data is not None:
        file.write_bytes(data)
    with pytest.raises(StartError, match=said) as caught:
        Worker(settings(file))
    assert str(caught.value).startswith("authenticator 1: ")
    assert "plain" not in str(caught.value)


def test_an_authenticator_of_the_program_and_tables_exclude_one_another(tmp_path: Path) -> None:
    class Everybody:
        def authenticate(self, *_: Any) -> Accepted:
            return Accepted("x")

    with pytest.raises(StartError, match="one or the other"):
        Worker(settings(written(tmp_path, ann=HASH)), authenticator=Everybody())


# Certificates --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("username_from", ["cert.cn", None])
async def test_a_certificate_that_gives_the_user_name_is_proof_enough(
    tmp_path: Path, username_from: str | None
) -> None:
    ours = certificates()
    certificate, key = ours.server
    listener = Listener(
        address="tls://127.0.0.1:0",
        certfile=(certificate,),
        keyfile=(key,),
        cafile=str(ours.cafile),
        require_certificate=True,
        username_from=username_from,
    )
    own = ours.issue("device", "device.example", common_name="device")
    config = settings(written(tmp_path, ann=HASH), listen=(), listener=(listener,))
    async with serving(config) as broker:
        for user, password, without in ((None, None, REFUSED), ("nobody", b"x", BAD), ("ann", SECRET, Reason.SUCCESS)):
            stream = await open_tls(broker.addresses[0].port, context=ours.client_context(own))
            client = Device(stream, 5)
            await client.send(Connect(5, b"c", user_name=user, password=password))
            reason = (await client.receive()).reason
            assert reason == (Reason.SUCCESS if username_from else without)
            if username_from:
                (found,) = broker.reactor.connections_snapshot()
                assert found.principal.user_name == "device"
            await trio.aclose_forcefully(stream)
            while broker.reactor.connection_count:  # noqa: ASYNC110  (the reactor knows no trio)
                await trio.sleep(0.01)


# Chains by themselves ------------------------------------------------------------------------------------------------


class Member:
    """Gives the answers that it was told, at once or later."""

    files: list[str] = []

    def __init__(self, answer: Any, later: bool) -> None:
        self.answer, self.later = answer, later

    def authenticate(self, connect: Connect, exchange: Any) -> Any:
        async def wait() -> Any:
            await trio.lowlevel.checkpoint()
            if isinstance(self.answer, Exception):
                raise self.answer
            return self.answer

        if self.later:
            return wait()
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


def orders() -> Iterator[tuple[list[Any], Any]]:
    yes, no = Accepted("x"), Refused(Reason.BANNED)
    ignored = Ignored()
    for answers in ([yes, no], [no, yes], [ignored, yes], [ignored, no], [ignored, ignored], [ignored, yes, no]):
        decided = next((one for one in answers if not isinstance(one, Ignored)), Refused(BAD))
        yield answers, decided


@pytest.mark.parametrize("later", [(False,) * 3, (True,) * 3, (True, False, True), (False, True, False)])
async def test_the_first_that_does_not_ignore_a_client_decides(later: tuple[bool, ...]) -> None:
    class Exchange:
        facts = None
        method = None

    for answers, decided in orders():
        members = [Member(one, wait) for one, wait in zip(answers, later, strict=False)]
        # fmt: off
        found: Any = Chain(CONFIG, members).authenticate(Connect(5, user_name="u"), Exchange())   # type: ignore[arg-type]
        # fmt: on
        if not isinstance(found, (Accepted, Refused)):
            found = await found
        assert found == decided


@pytest.mark.parametrize("later", [False, True])
async def test_one_that_fails_lets_in_nobody(later: bool, tmp_path: Path) -> None:
    async with serving(settings(written(tmp_path, ann=HASH))) as broker:
        # fmt: off
        chain = Chain(CONFIG, [Member(RuntimeError("broken"), later), Member(Accepted("x"), False)])   # type: ignore[list-item]
        # fmt: on
        broker.controller.handshake.authenticator = chain
        assert await answer(broker, "ann", SECRET) == Reason.IMPLEMENTATION_SPECIFIC_ERROR


# Secrets -------------------------------------------------------------------------------------------------------------


def test_a_connect_does_not_show_its_password() -> None:
    assert "staple" not in repr(Connect(5, b"c", user_name="ann", password=SECRET))


def test_settings_go_to_workers_whole(tmp_path: Path) -> None:
    config = settings(tmp_path / "users")
    assert msgspec.json.decode(msgspec.json.encode(config), type=Config) == config
    assert Start.__struct_fields__[0] == "config"
    assert json.loads(msgspec.json.encode(config))["authenticator"][0]["type"] == "password_file"


async def test_who_is_refused_is_counted_by_the_close_reason(tmp_path: Path) -> None:
    async with serving(settings(written(tmp_path, ann=HASH))) as broker:
        assert await answer(broker, "ann", b"wrong") == BAD
        while not broker.controller.refused[CloseReason.BAD_USER_NAME_OR_PASSWORD]:  # noqa: ASYNC110  (likewise)
            await trio.sleep(0.01)
