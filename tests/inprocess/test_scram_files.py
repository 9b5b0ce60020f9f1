"""Clients of MQTT 5.0 that prove by SCRAM a password that is kept in a password file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from broker.auth.password_hash import new_hash
from broker.config.authenticator import PasswordFileTable
from broker.config.loader import Limits
from broker.wire.packets import Auth, Connack, Connect
from broker.wire.reasons import Reason
from broker.worker.worker import Worker, open_broker
from mesh.node_identity import make_node
from tests.inprocess.test_tokens import answer, client_of, serving, settings
from tests.support.scram import ScramClient

HASHES = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
BAD, REFUSED = Reason.BAD_USER_NAME_OR_PASSWORD, Reason.NOT_AUTHORIZED
NO_DELAY = Limits(login_delay_max_s=0)


def written(file: Path, **users: str) -> PasswordFileTable:
    """Write a file in which each user has the password "pencil", kept in the way that is named."""
    file.write_bytes(
        b"".join(
            b"%b:%b\n" % (name.encode(), new_hash(b"pencil", kind, 4096 if kind.startswith("scram") else 2))
            for name, kind in users.items()
        )
    )
    return PasswordFileTable(file=str(file))


async def proves(
    broker: Worker, user: str, password: str = "pencil", method: str = "SCRAM-SHA-256", before_proof: Any = None
) -> tuple[Any, bytes]:
    """Return what a client is answered in the end, and the challenge that it got."""
    scram = ScramClient(user, password, hash_name=HASHES.get(method, "sha256"))
    async with client_of(broker) as client:
        said = {"authentication_method": method}
        await client.send(Connect(5, b"c", properties={**said, "authentication_data": scram.first}))
        challenge = await client.receive()
        if not isinstance(challenge, Auth):
            return challenge, b""
        data: bytes = challenge.properties["authentication_data"]
        if before_proof is not None:
            await before_proof()
        await client.send(Auth(Reason.CONTINUE_AUTHENTICATION, {**said, "authentication_data": scram.final(data)}))
        answered = await client.receive()
        assert isinstance(answered, Connack)
        if answered.reason == Reason.SUCCESS:
            assert scram.trusts(answered.properties["authentication_data"])
            (connection,) = broker.reactor.connections_snapshot()
            assert connection.principal.user_name == user
        return answered, data


def salt_of(challenge: bytes) -> bytes:
    return challenge.partition(b",s=")[2]


async def test_a_user_of_a_file_proves_its_password_or_sends_it(tmp_path: Path) -> None:
    table = written(tmp_path / "users", ann="scram-sha-256", bob="scram-sha-512", zoe="sha512-pbkdf2")
    async with serving(table, limits=NO_DELAY) as broker:
        for user, method in (("ann", "SCRAM-SHA-256"), ("bob", "SCRAM-SHA-512")):
            assert (await proves(broker, user, method=method))[0].reason == Reason.SUCCESS
            assert (await proves(broker, user, "pen", method))[0].reason == REFUSED
            assert (await answer(broker, b"pencil", user)).reason == Reason.SUCCESS
            assert (await answer(broker, b"pen", user)).reason == BAD
        assert (await answer(broker, b"pencil", "zoe")).reason == Reason.SUCCESS
        assert (await proves(broker, "ann", method="SCRAM-SHA-1"))[0].reason == Reason.BAD_AUTHENTICATION_METHOD


async def test_who_is_not_there_is_asked_for_a_proof_like_any_other(tmp_path: Path) -> None:
    tables = (written(tmp_path / "first", ann="scram-sha-256"), written(tmp_path / "second", bob="scram-sha-256"))
    async with serving(*tables, limits=NO_DELAY) as broker:
        for user in ("ann", "bob"):  # the second file is asked, too
            assert (await proves(broker, user))[0].reason == Reason.SUCCESS
        ended, challenge = await proves(broker, "nobody")
        wrong, _ = await proves(broker, "ann", "pen")
        assert (ended.reason, ended.properties) == (wrong.reason, wrong.properties)
        assert salt_of((await proves(broker, "nobody"))[1]) == salt_of(challenge)
        assert salt_of((await proves(broker, "another"))[1]) != salt_of(challenge)
        assert challenge.endswith(b",i=4096")
        # For a method that no user has there is nobody to ask.
        assert (await proves(broker, "ann", method="SCRAM-SHA-512"))[0].reason == Reason.BAD_AUTHENTICATION_METHOD


async def test_a_password_that_changes_during_the_proof_lets_nobody_in(tmp_path: Path) -> None:
    file = tmp_path / "users"
    async with serving(written(file, ann="scram-sha-256"), limits=NO_DELAY) as broker:

        async def change() -> None:
            written(file, ann="scram-sha-256")  # with another salt
            await broker.reload.reload()

        assert (await proves(broker, "ann", before_proof=change))[0].reason == REFUSED
        assert (await proves(broker, "ann"))[0].reason == Reason.SUCCESS


@pytest.mark.parametrize("first", [b"", b"rubbish", b"p=tls-unique,,n=ann,r=abc", b"n,,n=,r=abc"])
async def test_a_first_message_that_is_none_is_asked_for_or_refused(tmp_path: Path, first: bytes) -> None:
    async with serving(written(tmp_path / "users", ann="scram-sha-256")) as broker, client_of(broker) as client:
        await client.send(
            Connect(5, b"c", properties={"authentication_method": "SCRAM-SHA-256", "authentication_data": first})
        )
        said = await client.receive()
        assert isinstance(said, Auth) if not first else said.reason == REFUSED


async def test_a_restart_does_not_tell_who_is_there(tmp_path: Path) -> None:
    table = written(tmp_path / "users", ann="scram-sha-256")
    data = tmp_path / "data"
    data.mkdir()
    make_node(data)
    salts: list[tuple[bytes, bytes]] = []
    for _ in range(2):
        async with open_broker(settings(table), folder=data) as broker:
            salts.append((salt_of((await proves(broker, "ann"))[1]), salt_of((await proves(broker, "nobody"))[1])))
    assert salts[0] == salts[1]
