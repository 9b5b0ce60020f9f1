"""What clients may do by an ACL file, in a broker of this process, and what becomes of it when the file changes."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio

from broker.auth.acl import AllowAll
from broker.auth.authorizers import authorizers_of
from broker.config.authenticator import JwtTable, PasswordFileTable
from broker.config.authorizer import AclFileTable, RulesFileTable
from broker.config.loader import Config
from broker.config.start_error import StartError
from broker.wire.packets import Ack, Pingreq, Pingresp, Publish, Subscribe, Will, subscription
from broker.wire.reasons import Reason
from broker.worker.worker import Worker, open_broker
from tests.support.embedded import CONFIG, Device, device

ACL = b"""
topic read public/#
user ann
topic readwrite plant/#
topic deny plant/secret/#
user bob
topic read plant/+/state
pattern readwrite devices/%c/#
pattern read $SYS/#
"""
TIMEOUT_S = 60


def settings(*files: Path, **more: Any) -> Config:
    return msgspec.structs.replace(CONFIG, authorizer=tuple(AclFileTable(file=str(file)) for file in files), **more)


def written(folder: Path, data: bytes = ACL, name: str = "acl.conf") -> Path:
    file = folder / name
    new = folder / f"{name}.new"
    new.write_bytes(data)
    os.replace(new, file)
    return file


@asynccontextmanager
async def serving(config: Config) -> AsyncIterator[Worker]:
    with trio.fail_after(TIMEOUT_S):
        async with open_broker(config) as broker:
            yield broker


async def granted(client: Device, topic_filter: bytes, qos: int = 0) -> int:
    """Return what a SUBSCRIBE is answered."""
    await client.send(Subscribe(1, (subscription(topic_filter, qos),)))
    return int((await client.receive()).reasons[0])


async def published(client: Device, topic: bytes) -> int:
    """Return what a PUBLISH of QoS 1 is answered."""
    await client.send(Publish(topic, b"x", 1, packet_identifier=7))
    answer = await client.receive()
    assert isinstance(answer, Ack), answer
    return int(answer.reason)


REFUSED = Reason.NOT_AUTHORIZED


@pytest.mark.parametrize(
    ("user", "topic", "expected"),
    [
        ("ann", b"plant/a", True),
        ("ann", b"plant/secret/a", False),
        ("ann", b"plant/secret", False),
        ("ann", b"other", False),
        ("bob", b"plant/a/state", False),
        ("bob", b"devices/c1/up", True),
        ("bob", b"devices/c2/up", False),
        (None, b"public/a", False),
        (None, b"devices/c1", True),
        ("zoe", b"plant/a", False),
        ("ann", b"$SYS/a", False),
        ("a+", b"devices/c1/up", False),
    ],
)
async def test_a_publish_is_answered_by_the_file(
    tmp_path: Path, user: str | None, topic: bytes, expected: bool
) -> None:
    async with serving(settings(written(tmp_path))) as broker, device(broker, b"c1", user_name=user) as client:
        reason = await published(client, topic)
        assert reason == (Reason.NO_MATCHING_SUBSCRIBERS if expected else REFUSED)


@pytest.mark.parametrize(
    ("user", "topic_filter", "expected"),
    [
        ("ann", b"plant/a/#", True),
        ("ann", b"plant/secret/a", False),
        ("ann", b"other/#", False),
        ("bob", b"plant/+/state", True),
        ("bob", b"plant/a/b", False),
        (None, b"public/#", True),
        ("ann", b"public/#", False),
        ("bob", b"devices/c1/#", True),
        ("bob", b"$share/g/devices/c1/+", True),
        ("bob", b"$share/g/devices/c2/+", False),
        ("bob", b"$SYS/#", True),
        ("zoe", b"$SYS/broker/uptime", True),
    ],
)
async def test_a_subscribe_is_answered_by_the_file(
    tmp_path: Path, user: str | None, topic_filter: bytes, expected: bool
) -> None:
    async with serving(settings(written(tmp_path))) as broker:
        async with device(broker, b"c1", user_name=user) as client:
            assert await granted(client, topic_filter) == (0 if expected else REFUSED)
        async with device(broker, b"c1", version=4, user_name=user) as client:
            assert await granted(client, topic_filter) == (0 if expected else 0x80)


async def test_a_wider_topic_filter_is_narrowed_or_where_that_is_set_refused(tmp_path: Path) -> None:
    file = written(tmp_path)
    # fmt: off
    narrow, strict = (AclFileTable(file=str(file), subscribe=way) for way in ("narrow", "strict"))     # type: ignore[arg-type]
    # fmt: on
    for tables, expected in (((narrow,), 0), ((strict,), REFUSED), ((narrow, strict), REFUSED)):
        async with (
            serving(msgspec.structs.replace(CONFIG, authorizer=tables)) as broker,
            device(broker, b"c1", user_name="ann") as ann,
            broker.client("inside") as inside,
        ):
            await inside.publish("plant/a", b"kept", retain=True)
            await inside.publish("other", b"kept", retain=True)
            # Of plant/# plant/secret/# is denied.
            asked = (subscription(b"devices/c1/#", 0), subscription(b"plant/#", 0), subscription(b"#", 0))
            await ann.send(Subscribe(1, asked))
            assert (await ann.receive()).reasons == (0, expected, expected)
            await inside.publish("plant/secret/a", b"no")
            await inside.publish("other", b"no")
            await inside.publish("plant/b", b"yes")
            await inside.publish("devices/c1/x", b"last")
            seen = []
            while not seen or seen[-1] != b"last":
                seen.append((await ann.receive()).payload)
            # Twice, since both of its topic filters ask for what is retained; one copy of what is live.
            assert seen == ([b"kept", b"kept", b"yes", b"last"] if expected == 0 else [b"last"])


async def test_what_is_allowed_comes_and_what_is_not_does_not(tmp_path: Path) -> None:
    async with (
        serving(settings(written(tmp_path))) as broker,
        device(broker, b"c1", user_name="ann") as ann,
        device(broker, b"c2", version=4, user_name="bob") as bob,
    ):
        await ann.subscribe(b"plant/a/#")
        # 3.1.1 has no answer that says no: the message is acknowledged and dropped.
        await bob.publish(b"plant/a/x", b"from bob", 1)
        await ann.publish(b"plant/a/x", b"from ann")
        assert (await ann.receive()).payload == b"from ann"


async def test_a_will_has_the_rights_of_its_client(tmp_path: Path) -> None:
    async with serving(settings(written(tmp_path))) as broker, device(broker, b"c1", user_name="ann") as ann:
        await ann.subscribe(b"plant/a/#")
        for user, payload in (("bob", b"of bob"), ("ann", b"of ann")):
            stream = device(broker, b"c2", user_name=user, will=Will(b"plant/a/will", payload))
            async with stream as client:
                await client.send(Pingreq())
                assert isinstance(await client.receive(), Pingresp)
        assert (await ann.receive()).payload == b"of ann"


async def test_a_change_counts_for_publishers_that_are_connected(tmp_path: Path) -> None:
    file = written(tmp_path)
    async with (
        serving(settings(file)) as broker,
        device(broker, b"c1", user_name="ann") as ann,
        device(broker, b"c2", user_name="bob") as bob,
    ):
        for _ in range(3):  # so that the answer is remembered
            assert await published(ann, b"plant/a") != REFUSED
            assert await published(bob, b"plant/a") == REFUSED
        written(tmp_path, ACL.replace(b"user ann", b"user bob"))
        await broker.reload.reload()
        assert broker.reload.error is None
        assert await published(ann, b"plant/a") == REFUSED
        assert await published(bob, b"plant/a") != REFUSED
        assert await published(ann, b"devices/c1/a") != REFUSED


async def test_a_file_that_cannot_be_used_changes_nothing(tmp_path: Path) -> None:
    first, second = written(tmp_path), written(tmp_path, b"user zoe\ntopic zoe/#\n", "more.conf")
    async with serving(settings(first, second)) as broker, device(broker, b"c1", user_name="ann") as ann:
        assert await published(ann, b"plant/a") != REFUSED
        written(tmp_path, b"user ann\n")
        written(tmp_path, b"user zoe\n\ntopics a\n", "more.conf")
        await broker.reload.reload()
        assert broker.reload.error == (
            f"authorizer 2: The ACL file {second} cannot be used: line 3: found 'topics', expected user, topic or "
            "pattern."
        )
        assert broker.reload.failed == 1
        assert await published(ann, b"plant/a") != REFUSED
        second.unlink()
        await broker.reload.reload()
        assert "cannot be read: No such file" in (broker.reload.error or "")
        written(tmp_path, b"user ann\ntopic read b\n", "more.conf")
        await broker.reload.reload()
        assert broker.reload.error is None
        assert await published(ann, b"plant/a") == REFUSED


async def test_what_one_file_has_no_line_for_the_next_decides(tmp_path: Path) -> None:
    first = written(tmp_path, b"user ann\ntopic deny a\ntopic b\n")
    second = written(tmp_path, b"user ann\ntopic a\ntopic c\ntopic deny b\n", "more.conf")
    async with serving(settings(first, second)) as broker, device(broker, b"c1", user_name="ann") as ann:
        assert await published(ann, b"a") == REFUSED
        assert await published(ann, b"b") != REFUSED
        assert await published(ann, b"c") != REFUSED
        assert await published(ann, b"d") == REFUSED


def test_a_file_that_cannot_be_used_is_no_start(tmp_path: Path) -> None:
    with pytest.raises(StartError, match=r"authorizer 1: The ACL file .*none cannot be read: No such file"):
        Worker(settings(tmp_path / "none"))
    with pytest.raises(StartError, match=r"authorizer 2: .*line 2: found the topic filter 'a\+': \+ fills a whole"):
        Worker(settings(written(tmp_path), written(tmp_path, b"\ntopic a+\n", "more.conf")))


def test_authorizers_and_an_acl_are_one_too_many(tmp_path: Path) -> None:
    with pytest.raises(StartError, match="expected one or the other"):
        Worker(settings(written(tmp_path)), acl=AllowAll())


def test_answers_are_remembered_by_qos_only_where_rules_may_ask_for_it(tmp_path: Path) -> None:
    users = tmp_path / "users"
    users.write_bytes(b"")
    config = settings(written(tmp_path), authenticator=(PasswordFileTable(file=str(users)),))
    assert authorizers_of(config).chain.decides_by_qos is False
    (tmp_path / "rules.toml").write_text("")
    rules = (*config.authorizer, RulesFileTable(file=str(tmp_path / "rules.toml")))
    assert authorizers_of(msgspec.structs.replace(config, authorizer=rules)).chain.decides_by_qos is True
    token = JwtTable(algorithms=("ES256",), keys=("issuer.pem",))
    assert authorizers_of(msgspec.structs.replace(config, authenticator=(token,))).chain.decides_by_qos is True
