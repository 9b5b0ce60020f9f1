"""What clients may read of what they have subscribed to, and rights that change."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import trio

from broker.admin.api import Admin, Streamed
from broker.auth.enhanced_auth import Exchange
from broker.auth.outcome import Accepted, Outcome
from broker.auth.principal import Principal
from broker.config.loader import Config, Mqtt, Shutdown
from broker.processes.admin_backend_local import OneWorker
from broker.wire.packets import Ack, Auth, Connect, Publish, Subscribe, Unsubscribe, subscription
from broker.wire.reasons import Reason
from broker.worker.worker import Worker, open_broker
from tests.support.embedded import CONFIG, TIMEOUT_S, Device, device
from tests.support.table_acl import TableAcl

STAYS = {"session_expiry_interval": 3600}


def serve(
    run: Callable[[Worker], Awaitable[None]],
    acl: TableAcl,
    folder: Path | None = None,
    config: Config = CONFIG,
    **seams: Any,
) -> None:
    async def main() -> None:
        with trio.fail_after(TIMEOUT_S):
            async with open_broker(config, acl=acl, folder=folder, **seams) as broker:
                await run(broker)

    trio.run(main)


async def asks(client: Device, topic_filter: bytes, qos: int = 1, **options: Any) -> int:
    """Subscribe, and return the reason code."""
    await client.send(Subscribe(1, (subscription(topic_filter, qos, **options),)))
    return int((await client.receive()).reasons[0])


async def hears(client: Device, last: bytes = b"end") -> list[bytes]:
    """Return the topics of what a client is sent, up to one; each is acknowledged."""
    topics = []
    while True:
        packet = await client.receive()
        assert isinstance(packet, Publish), packet
        if packet.qos == 1:
            await client.send(Ack(4, packet.packet_identifier))  # type: ignore[arg-type]
        topics.append(packet.topic)
        if packet.topic == last:
            return topics


async def publish(broker: Worker, *topics: str, qos: int = 1, retain: bool = False) -> None:
    async with broker.client("publisher") as publisher:
        for topic in topics:
            await publisher.publish(topic, b"x", qos=qos, retain=retain)


@pytest.mark.parametrize("logged", [False, True])
@pytest.mark.parametrize("qos", [0, 1])
def test_a_wide_filter_is_narrowed_to_what_its_client_may_read(logged: bool, qos: int, tmp_path: Path) -> None:
    acl = TableAcl(ann="a/+ end", ben="b/# end", eve="e")

    async def run(broker: Worker) -> None:
        async with (
            device(broker, b"a", user_name="ann", properties=STAYS) as ann,
            device(broker, b"b", user_name="ben") as ben,
            device(broker, b"e", user_name="eve") as eve,
        ):
            assert await asks(ann, b"#", qos) == qos
            assert await asks(ann, b"a/1", qos) == qos
            assert await asks(ben, b"#", qos) == qos
            assert await asks(ben, b"+/b", qos) == qos
            assert await asks(eve, b"a/#", qos) == Reason.NOT_AUTHORIZED
            for _ in range(2):
                await publish(broker, "a/1", "b/1/2", "a/2", "c", "b/b", "end", qos=qos)
                assert await hears(ann) == [b"a/1", b"a/2", b"end"]
                assert await hears(ben) == [b"b/1/2", b"b/b", b"end"]
        assert broker.router.ledger.dropped() == {}

    serve(run, acl, tmp_path if logged else None)


def test_what_may_be_read_is_asked_once_for_each_client_and_topic() -> None:
    acl = TableAcl(ann="a end")

    async def run(broker: Worker) -> None:
        async with device(broker, b"a", user_name="ann") as ann:
            await asks(ann, b"#")
            for _ in range(5):
                await publish(broker, "a", "b", "end")
                await hears(ann)
                async with device(broker, b"other") as other:
                    await other.subscribe(b"#", 0)  # every route is read anew
            assert acl.asked == 3

    serve(run, acl)


@pytest.mark.parametrize("version", [3, 4, 5])
def test_who_may_read_nothing_of_a_filter_is_told_so(version: int) -> None:
    acl = TableAcl(ann="a")

    async def run(broker: Worker) -> None:
        async with device(broker, b"a", version, user_name="ann") as ann:
            await ann.send(Subscribe(1, (subscription(b"b/#", 1), subscription(b"+", 1))))
            refused = {3: 1, 4: 0x80, 5: Reason.NOT_AUTHORIZED}[version]
            assert [int(reason) for reason in (await ann.receive()).reasons] == [refused, 1]

    serve(run, acl)


@pytest.mark.parametrize("logged", [False, True])
def test_of_what_is_retained_comes_what_may_be_read(logged: bool, tmp_path: Path) -> None:
    acl = TableAcl(ann="a/+ end")

    async def run(broker: Worker) -> None:
        await publish(broker, *(f"b/{number}" for number in range(1000)), "a/1", "a/2", "end", retain=True)
        async with device(broker, b"a", user_name="ann") as ann:
            assert await asks(ann, b"#") == 1
            assert sorted([(await ann.receive()).topic for _ in range(3)]) == [b"a/1", b"a/2", b"end"]
            await publish(broker, "end")
            await ann.send(Ack(4, 1))  # type: ignore[arg-type]
            assert (await ann.receive()).topic == b"end"

    serve(run, acl, tmp_path if logged else None)


@pytest.mark.parametrize("qos", [0, 1])
@pytest.mark.parametrize("strategy", ["round_robin", "random", "sticky", "hash_client", "hash_topic"])
@pytest.mark.parametrize("logged", [False, True])
def test_a_member_of_a_shared_subscription_that_may_not_read_a_topic_is_passed_over(
    logged: bool, strategy: Any, qos: int, tmp_path: Path
) -> None:
    acl = TableAcl(ann="a/# end", ben="b/# end")
    config = Config(
        listen=("tcp://127.0.0.1:0",), shutdown=Shutdown(drain_s=0.5), mqtt=Mqtt(shared_subscription_strategy=strategy)
    )

    async def run(broker: Worker) -> None:
        async with (
            device(broker, b"a", user_name="ann", properties=STAYS) as ann,
            device(broker, b"b", user_name="ben") as ben,
        ):
            for client in (ann, ben):
                assert await asks(client, b"$share/g/#", qos) == qos
                assert await asks(client, b"end", qos) == qos
            await publish(broker, *[f"{name}/{number}" for number in range(10) for name in "abc"], qos=qos)
            await publish(broker, "end", qos=qos)
            assert set(await hears(ann)) - {b"end"} == {b"a/%d" % number for number in range(10)}
            assert set(await hears(ben)) - {b"end"} == {b"b/%d" % number for number in range(10)}
            assert broker.router.ledger.dropped() == {"no_member": 10}

    serve(run, acl, tmp_path if logged else None, config)


@pytest.mark.parametrize("logged", [False, True])
def test_rights_that_change_end_subscriptions_and_narrow_others(logged: bool, tmp_path: Path) -> None:
    acl = TableAcl(ann="a/# b/# end")

    async def run(broker: Worker) -> None:
        async with device(broker, b"a", user_name="ann", properties=STAYS) as ann:
            for topic_filter in (b"a/#", b"b/#", b"end", b"$share/g/b/x", b"b/1"):
                assert await asks(ann, topic_filter) == 1
            await publish(broker, "a/1", "b/1", "end")
            assert await hears(ann) == [b"a/1", b"b/1", b"end"]
            acl.change(ann="a/1 end")
            await broker.rights_in_force()
            assert broker.counters()["subscriptions_revoked"] == 3
            session = broker.router.sessions[b"a"]
            assert {row[0] for row in broker.router.tree.subscriptions_of(session)} == {b"a/#", b"end"}
            await publish(broker, "a/1", "a/2", "b/1", "b/x", "end")
            assert await hears(ann) == [b"a/1", b"end"]
            acl.change(ann="a/# end")
            await broker.rights_in_force()
            await publish(broker, "a/1", "a/2", "end")
            assert await hears(ann) == [b"a/1", b"a/2", b"end"]
            await ann.send(Unsubscribe(7, (b"b/#",)))
            assert (await ann.receive()).reasons == (Reason.NO_SUBSCRIPTION_EXISTED,)

    serve(run, acl, tmp_path if logged else None)


@pytest.mark.parametrize("logged", [False, True])
@pytest.mark.parametrize("user", ["ann", "ben"])
def test_what_is_queued_for_a_client_that_is_away_leaves_as_far_as_it_may_be_read(
    user: str, logged: bool, tmp_path: Path
) -> None:
    """Its rights change while it is away, or it comes back as another user."""
    acl = TableAcl(ann="#", ben="a/+ end")
    config = Config(listen=("tcp://127.0.0.1:0",), shutdown=Shutdown(drain_s=0.5), mqtt=Mqtt(queue_qos0=True))

    async def run(broker: Worker) -> None:
        async with device(broker, b"c", user_name="ann", properties=STAYS) as ann:
            await asks(ann, b"a/+")
            await asks(ann, b"b")
            await asks(ann, b"end")
        await publish(broker, "a/1", "b", "a/2", "b")
        await publish(broker, "a/1", "b", qos=0)
        await publish(broker, "end")
        if user == "ann":
            acl.change(ann="a/+ end")
            await broker.rights_in_force()
        async with device(broker, b"c", user_name=user, clean_start=False, properties=STAYS) as back:
            assert sorted(await hears(back)) == [b"a/1", b"a/1", b"a/2", b"end"]
            assert broker.counters()["dropped_not_authorized"] == 3
            session = broker.router.sessions[b"c"]
            assert {row[0] for row in broker.router.tree.subscriptions_of(session)} == {b"a/+", b"end"}

    serve(run, acl, tmp_path if logged else None, config)


class Renamed:
    """Who authenticates again is ben from then on."""

    def authenticate(self, connect: Connect, exchange: Exchange) -> Outcome:
        return Accepted("ben" if exchange.again else "ann")


def test_a_client_that_is_another_after_authenticating_again_has_that_ones_rights(tmp_path: Path) -> None:
    acl = TableAcl(ann="a/+ end", ben="b/+ end")
    properties = {**STAYS, "authentication_method": "any"}

    async def run(broker: Worker) -> None:
        async with device(broker, b"c", properties=properties) as client:
            await asks(client, b"#")
            await asks(client, b"a/+")
            await publish(broker, "a/1", "b/1", "end")
            assert await hears(client) == [b"a/1", b"end"]
            await client.send(Auth(Reason.RE_AUTHENTICATE, {"authentication_method": "any"}))
            assert isinstance(await client.receive(), Auth)
            await publish(broker, "a/1", "b/1", "end")
            assert await hears(client) == [b"b/1", b"end"]
        await publish(broker, "a/1", "b/1", "end")

    async def after(broker: Worker) -> None:
        session = broker.router.sessions[b"c"]
        assert session.principal == Principal("ben", b"c", "127.0.0.1", 0)
        assert [row[0] for row in broker.router.tree.subscriptions_of(session)] == [b"#"]
        await publish(broker, "a/1", "b/2", "end")
        assert sum(len(deliveries) for deliveries in [session.owed.deliveries()]) == 4

    serve(run, acl, tmp_path, authenticator=Renamed())
    serve(after, acl, tmp_path)


@pytest.mark.parametrize("restarts", [1, 2])
def test_a_restart_knows_who_was_owed_what_and_judges_by_the_rights_of_now(restarts: int, tmp_path: Path) -> None:
    acl = TableAcl(ann="a/+ end", ben="#")

    async def first(broker: Worker) -> None:
        for name in ("ann", "ben"):
            async with device(broker, name.encode(), user_name=name, properties=STAYS) as client:
                await asks(client, b"#")
        await publish(broker, "a/1", "b", "a/2", "end")
        async with device(broker, b"ann", user_name="ann", clean_start=False, properties=STAYS) as ann:
            assert (await ann.receive()).topic == b"a/1"
            await ann.send(Ack(4, 1))  # type: ignore[arg-type]

    async def nothing(broker: Worker) -> None:
        pass

    async def after(broker: Worker) -> None:
        await publish(broker, "b", "c", "end")
        async with (
            device(broker, b"ann", user_name="ann", clean_start=False, properties=STAYS) as ann,
            device(broker, b"ben", user_name="ben", clean_start=False, properties=STAYS) as ben,
        ):
            assert await hears(ann) == [b"a/2", b"end"]  # they had been sent, and were not acknowledged
            assert await hears(ann) == [b"b", b"end"]
            assert await hears(ben) == [b"end"]
            assert await hears(ben) == [b"c", b"end"]

    serve(first, acl, tmp_path)
    for _ in range(restarts):
        serve(nothing, acl, tmp_path)
    acl.allow(ann="b end", ben="c end")
    serve(after, acl, tmp_path)


def test_a_replay_gives_what_may_be_read(tmp_path: Path) -> None:
    acl = TableAcl(ann="a/+ end", eve="e")

    async def run(broker: Worker) -> None:
        async with device(broker, b"keeper", properties=STAYS) as keeper:
            await asks(keeper, b"#")
            await publish(broker, "a/1", "b", "a/2", "end")
            async with (
                device(broker, b"a", user_name="ann", properties=STAYS) as ann,
                device(broker, b"e", user_name="eve") as eve,
            ):
                assert await asks(eve, b"$replay/-1h/a/#") == Reason.NOT_AUTHORIZED
                assert await asks(ann, b"$replay/-1h/#") == 1
                assert await hears(ann) == [b"a/1", b"a/2", b"end"]
                acl.change(ann="b end")
                await broker.rights_in_force()
                await publish(broker, "a/1", "b", "end")
                assert await hears(ann) == [b"b", b"end"]
                acl.change(ann="")
                await broker.rights_in_force()
                assert broker.router.sessions[b"a"].replays == {}

    serve(run, acl, tmp_path)


def test_rights_to_publish_change_at_once_for_the_same_topic_too() -> None:
    acl = TableAcl(ann="a")

    async def run(broker: Worker) -> None:
        async with device(broker, b"a", user_name="ann") as ann:
            reasons = []
            for allowed in ("a", "b", "a"):
                acl.change(ann=allowed)
                for number in range(2):
                    await ann.send(Publish(b"a", b"x", 1, False, False, number + 1))
                    reasons.append((await ann.receive()).reason == Reason.NOT_AUTHORIZED)
            assert reasons == [False, False, True, True, False, False]

    serve(run, acl)


@pytest.mark.parametrize("explains", [True, False])
def test_clients_are_told_what_decided_if_they_may_know(explains: bool) -> None:
    acl = TableAcl(ann="a")
    config = Config(
        listen=("tcp://127.0.0.1:0",), shutdown=Shutdown(drain_s=0.5), mqtt=Mqtt(explain_to_clients=explains)
    )

    async def run(broker: Worker) -> None:
        async with device(broker, b"a", user_name="ann") as ann, device(broker, b"b", 4, user_name="ann") as old:
            await ann.send(Subscribe(1, (subscription(b"b", 1), subscription(b"a", 1))))
            suback = await ann.receive()
            assert suback.properties == ({"reason_string": "table: ann subscribe"} if explains else {})
            for qos in (1, 2):
                await ann.send(Publish(b"b", b"x", qos, False, False, 7))
                answer = await ann.receive()
                assert (answer.packet_identifier, answer.reason) == (7, Reason.NOT_AUTHORIZED)
                assert answer.properties == ({"reason_string": "table: ann publish"} if explains else {})
            await old.send(Subscribe(1, (subscription(b"b", 1),)))
            assert int((await old.receive()).reasons[0]) == 0x80
            await old.publish(b"b", b"x", 1)

    serve(run, acl, config=config)


def test_routes_and_why_name_who_is_left_out_and_what_decided(tmp_path: Path) -> None:
    acl = TableAcl(ann="a/+ end")

    async def run(broker: Worker) -> None:
        async with (
            device(broker, b"a", user_name="ann", properties=STAYS) as ann,
            device(broker, b"keeper", properties=STAYS) as keeper,
        ):
            await asks(ann, b"#")
            await asks(keeper, b"b")
            await publish(broker, "a/1", "b", "end")
            await hears(ann)
            admin = Admin(OneWorker(broker, tmp_path))

            async def ask(path: str) -> Any:
                answer = await admin.answer("GET", path, b"")
                assert not isinstance(answer, Streamed)
                return answer[1]

            (row,) = [row for row in (await ask("/routes?topic=b&qos=1"))["rows"] if row["client"] == "a"]
            assert (row["client"], row["outcome"], row["decided_by"]) == ("a", "not_authorized", "table: ann read")
            assert row["filters"][0]["narrowed"] is True
            why = await ask("/clients/a/why?topic=b")
            assert (why["would_be"], why["decided_by"]) == ("not_authorized", "table: ann read")
            assert [message["fate"] for message in why["messages"]] == ["not_authorized"]
            why = await ask("/clients/a/why?topic=a/1")
            # The record of its PUBACK may not be written yet.
            assert [message["fate"] for message in why["messages"]] in (["acknowledged"], ["finished"])

    serve(run, acl, tmp_path)


def test_in_process_clients_with_an_identity_are_narrowed_too() -> None:
    acl = TableAcl(ann="a/+ end", eve="e")

    async def run(broker: Worker) -> None:
        await publish(broker, "a/0", "b", retain=True)
        async with broker.client("a", identity="ann") as ann, broker.client("t") as trusted:
            await ann.subscribe("#", 1)
            await trusted.subscribe("#", 1, retain_handling=2)
            assert (await anext(ann)).topic_name == "a/0"
            await publish(broker, "b", "a/1", "end")
            assert [(await anext(ann)).topic_name for _ in range(2)] == ["a/1", "end"]
            assert [(await anext(trusted)).topic_name for _ in range(3)] == ["b", "a/1", "end"]
            acl.change(ann="e")
            await broker.rights_in_force()
            assert await ann.unsubscribe("#") is True
            acl.change(ann="")

    serve(run, acl)


class NoSharing(TableAcl):
    """Nobody but ben may have shared subscriptions and stored messages, and he not of a/1."""

    def may_use(self, principal: Principal, topic_filter: bytes) -> bool:
        return principal.user_name == "ben" and not topic_filter.endswith(b"/a/1")


def test_shared_subscriptions_and_replays_may_need_a_right_of_their_own(tmp_path: Path) -> None:
    acl = NoSharing(ann="a/#", ben="a/#")

    async def run(broker: Worker) -> None:
        async with device(broker, b"a", user_name="ann") as ann, device(broker, b"b", user_name="ben") as ben:
            for client, reason in ((ann, Reason.NOT_AUTHORIZED), (ben, 1)):
                assert await asks(client, b"a/#") == 1
                assert await asks(client, b"$share/g/a/#") == reason
                assert await asks(client, b"$replay/-1h/a/#") == reason
            assert await asks(ben, b"$share/g/a/1") == Reason.NOT_AUTHORIZED
            assert await asks(ben, b"$share/g/b/#") == Reason.NOT_AUTHORIZED

    serve(run, acl, tmp_path)
