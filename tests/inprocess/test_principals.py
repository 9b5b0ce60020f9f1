"""Whom an ACL is asked about, and what it is told of a publish."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from broker.auth.acl import Decision, Grant
from broker.auth.enhanced_auth import Exchange
from broker.auth.outcome import Accepted, Outcome
from broker.auth.principal import IN_PROCESS, Principal
from broker.wire.packets import Ack, Connect, Publish, Subscribe, Will, subscription
from broker.wire.reasons import Reason
from broker.worker.worker import Worker, open_broker
from tests.support.embedded import CONFIG, TIMEOUT_S, Device, device


class Groups:
    """Takes the user name for a list of groups; `root` is a superuser, too."""

    def authenticate(self, connect: Connect, exchange: Exchange) -> Outcome:
        groups = tuple((connect.user_name or "").split())
        return Accepted(connect.user_name, groups=groups, superuser="root" in groups, rules={"of": connect.user_name})


class Noting:
    """Says no, and keeps whom it was asked about."""

    decides_by_qos = False

    def __init__(self) -> None:
        self.asked: list[tuple[Any, ...]] = []

    def may_publish(self, principal: Principal, topic_name: bytes, qos: int, retain: bool) -> bool:
        self.asked.append((principal, topic_name, qos, retain))
        return False

    def may_subscribe(self, principal: Principal, topic_filter: bytes, qos: int) -> Grant:
        self.asked.append((principal, topic_filter, qos))
        return Grant.REFUSED

    def explain(self, principal: Principal, action: str, name: bytes, qos: int, retain: bool) -> Decision:
        return Decision(Grant.REFUSED, f"{action} {name.decode()} {qos} {retain}: no")


class ByQos(Noting):
    """Nothing but QoS 1 without RETAIN may be published."""

    decides_by_qos = True

    def may_publish(self, principal: Principal, topic_name: bytes, qos: int, retain: bool) -> bool:
        super().may_publish(principal, topic_name, qos, retain)
        return qos == 1 and not retain


async def published(client: Device, qos: int, retain: bool, topic: bytes = b"t") -> Reason:
    """Publish, and return what its acknowledgement says."""
    await client.send(Publish(topic, b"x", qos, retain, False, 7))
    answer = await client.receive()
    assert isinstance(answer, Ack)
    return Reason(answer.reason)


async def test_an_acl_is_asked_about_a_principal_with_all_that_is_known_of_the_client() -> None:
    acl = Noting()
    with trio.fail_after(TIMEOUT_S):
        async with open_broker(CONFIG, authenticator=Groups(), acl=acl) as broker:
            async with device(broker, b"", user_name="a b") as client:
                await client.send(Subscribe(1, (subscription(b"t/#", 2),)))
                assert (await client.receive()).reasons == (Reason.NOT_AUTHORIZED,)
                assert await published(client, 1, True) == Reason.NOT_AUTHORIZED
                (name,) = broker.router.sessions
                principal = Principal("a b", name, "127.0.0.1", 0, None, ("a", "b"), False, {"of": "a b"})
                assert name
                assert acl.asked == [(principal, b"t/#", 2), (principal, b"t", 1, True)]
                (info,) = await broker.clients()
                assert info.principal == principal
            async with broker.client("inside", identity="ann") as inside:
                acl.asked.clear()
                with pytest.raises(Exception, match="not authorized"):
                    await inside.publish("t", qos=2)
                assert acl.asked == [(Principal("ann", b"inside", None, IN_PROCESS), b"t", 2, False)]


async def test_superusers_may_do_everything_and_so_may_their_wills() -> None:
    acl = Noting()

    async def run(broker: Worker) -> None:
        async with device(broker, b"boss", user_name="root") as boss:
            await boss.subscribe(b"gone")
            async with device(broker, b"other", user_name="root", will=Will(b"gone", b"will")) as other:
                assert await published(other, 1, False) == Reason.NO_MATCHING_SUBSCRIBERS
            assert (await boss.receive()).payload == b"will"
        assert acl.asked == []

    with trio.fail_after(TIMEOUT_S):
        async with open_broker(CONFIG, authenticator=Groups(), acl=acl) as broker:
            await run(broker)


@pytest.mark.parametrize("decides_by_qos", [True, False])
async def test_answers_are_remembered_by_qos_and_retain_if_the_acl_says_that_it_looks_at_them(
    decides_by_qos: bool,
) -> None:
    acl = ByQos()
    acl.decides_by_qos = decides_by_qos
    kinds = [(1, False), (1, True), (2, False), (1, False), (1, True), (1, False)]
    with trio.fail_after(TIMEOUT_S):
        async with open_broker(CONFIG, acl=acl) as broker, device(broker, b"c") as client:
            verdicts = [await published(client, *kind) != Reason.NOT_AUTHORIZED for kind in kinds if kind[0] == 1]
            if decides_by_qos:
                assert verdicts == [True, False, True, False, True]
                assert await published(client, 2, False) == Reason.NOT_AUTHORIZED
                assert await published(client, 1, False) != Reason.NOT_AUTHORIZED
                assert [asked[2:] for asked in acl.asked] == [(1, False), (1, True), (2, False)]  # each once
            else:
                assert verdicts == [True] * 5
                assert len(acl.asked) == 1
