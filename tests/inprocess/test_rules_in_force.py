"""Rules files in a broker of this process: what they can say and ACL files cannot."""

from __future__ import annotations

from pathlib import Path

import msgspec
import trio

from broker.auth import conditions
from broker.config.authorizer import RulesFileTable
from broker.wire.packets import Ack, Publish
from broker.wire.reasons import Reason
from broker.worker.worker import open_broker
from tests.inprocess.test_acl_files import REFUSED, granted, published
from tests.support.embedded import CONFIG, Device, device

RULES = """
time_zone = "UTC"

[[rule]]
deny = "publish"
topics = "#"
retain = true

[[rule]]
users = "ann"
allow = ["publish", "subscribe"]
topics = "plant/#"
qos = [0, 1]

[[rule]]
users = "ann"
allow = ["share", "replay"]
topics = "plant/shared/#"

[[rule]]
networks = "127.0.0.0/8"
listeners = "tcp://127.0.0.1:0"
allow = "publish"
topics = "near/#"

[[rule]]
networks = "10.0.0.0/8"
allow = "publish"
topics = "far/#"

[[rule]]
hours = "08:00-16:00"
allow = "publish"
topics = "day/#"
"""


async def answered(client: Device, topic: bytes, qos: int, retain: bool = False) -> int:
    """Return what a PUBLISH is answered."""
    await client.send(Publish(topic, b"x", qos, retain, packet_identifier=9))
    answer = await client.receive()
    assert isinstance(answer, Ack)
    return int(answer.reason)


async def test_rules_are_about_qos_retain_and_where_a_client_comes_from(tmp_path: Path) -> None:
    (tmp_path / "rules.toml").write_text(RULES)
    config = msgspec.structs.replace(CONFIG, authorizer=(RulesFileTable(file=str(tmp_path / "rules.toml")),))
    with trio.fail_after(60):
        async with open_broker(config) as broker, device(broker, b"c1", user_name="ann") as ann:
            for _ in range(2):  # the answers are remembered, each for its QoS
                assert await answered(ann, b"plant/a", 1) != REFUSED
                assert await answered(ann, b"plant/a", 2) == REFUSED
                assert await answered(ann, b"plant/a", 1, retain=True) == REFUSED
                assert await published(ann, b"near/a") != REFUSED
                assert await published(ann, b"far/a") == REFUSED
            assert await granted(ann, b"plant/#", 1) == 1
            assert await granted(ann, b"plant/#", 2) == REFUSED
            assert await granted(ann, b"$share/g/plant/shared/+", 1) == 1
            assert await granted(ann, b"$share/g/plant/+", 1) == REFUSED


async def test_what_holds_for_some_hours_begins_and_ends_by_itself(tmp_path: Path) -> None:
    (tmp_path / "rules.toml").write_text(RULES)
    config = msgspec.structs.replace(CONFIG, authorizer=(RulesFileTable(file=str(tmp_path / "rules.toml")),))
    midnight = 1_790_000_000 // 86_400 * 86_400
    with trio.fail_after(60):
        async with open_broker(config) as broker, device(broker, b"c1", user_name="ann") as ann:
            authorizers = broker.reload.authorizers
            assert authorizers is not None
            assert any(
                isinstance(found, conditions.Times)
                for rule_set in authorizers.chain.rule_sets
                for found in rule_set.source.times
            )
            for hour, expected in ((7, False), (9, True), (15, True), (16, False)):
                # As the worker says it every two seconds; nothing waits in between.
                authorizers.look_at_clock(midnight + hour * 3600)
                assert (await published(ann, b"day/a") == REFUSED) != expected, hour


async def test_a_rules_file_and_an_acl_file_stand_beside_one_another(tmp_path: Path) -> None:
    from broker.config.authorizer import AclFileTable

    (tmp_path / "rules.toml").write_text('[[rule]]\ndeny = "all"\ntopics = "plant/secret/#"\n')
    (tmp_path / "acl.conf").write_text("user ann\ntopic plant/#\n")
    config = msgspec.structs.replace(
        CONFIG,
        authorizer=(RulesFileTable(file=str(tmp_path / "rules.toml")), AclFileTable(file=str(tmp_path / "acl.conf"))),
    )
    with trio.fail_after(60):
        async with open_broker(config) as broker, device(broker, b"c1", user_name="ann") as ann:
            assert await published(ann, b"plant/a") == Reason.NO_MATCHING_SUBSCRIBERS
            assert await published(ann, b"plant/secret/a") == REFUSED
            (tmp_path / "rules.toml").write_text('[[rule]]\ndeny = "all"\n')
            await broker.reload.reload()
            assert "rules.toml cannot be used: 1: topics: expected a text" in (broker.reload.error or "")
            (tmp_path / "rules.toml").write_text("")
            await broker.reload.reload()
            assert await published(ann, b"plant/secret/a") != REFUSED
