"""What a reload answers: that it is in force, and what is different by it."""

from __future__ import annotations

from pathlib import Path

import msgspec
import trio

from broker.admin.worker_queries import Queries
from broker.cli.access_text import reloaded
from broker.config.authenticator import PasswordFileTable
from broker.config.authorizer import AclFileTable
from broker.wire.packets import Subscribe, subscription
from broker.worker.worker import open_broker
from tests.support.embedded import CONFIG, device

SUBSCRIPTIONS = 1500  # which are judged in a dozen slices
HASHES = (b"$6$c2FsdHNhbHRzYWx0$" + b"A" * 86 + b"==", b"$6$c2FsdHNhbHRzYWx0$" + b"B" * 86 + b"==")


async def test_a_reload_is_answered_when_what_it_says_is_in_force(tmp_path: Path) -> None:
    acl = tmp_path / "acl.conf"
    acl.write_bytes(b"topic read plant/#\n")
    config = msgspec.structs.replace(CONFIG, authorizer=(AclFileTable(file=str(acl)),))
    with trio.fail_after(60):
        async with open_broker(config) as broker, device(broker, b"c1") as client:
            filters = tuple(subscription(b"plant/%d" % number, 1) for number in range(SUBSCRIPTIONS))
            await client.send(Subscribe(1, filters))
            await client.receive()
            session = broker.router.sessions[b"c1"]
            assert session.subscription_count == SUBSCRIPTIONS
            acl.write_bytes(b"topic read plant/1\n")
            answer = await Queries(broker).answer("reload", {})
            assert session.subscription_count == 1
            assert (answer["error_text"], answer["in_force"]) == (None, True)
            assert answer["rules"]["shown"] == ["- acl.conf: topic read plant/#", "+ acl.conf: topic read plant/1"]
            assert answer["users"] is None


async def test_a_reload_says_which_users_have_come_gone_and_changed(tmp_path: Path) -> None:
    users = tmp_path / "users"
    users.write_bytes(b"ann:%s\nbob:%s\n" % (HASHES[0], HASHES[0]))
    config = msgspec.structs.replace(CONFIG, authenticator=(PasswordFileTable(file=str(users)),))
    with trio.fail_after(60):
        async with open_broker(config) as broker:
            queries = Queries(broker)
            answer = await queries.answer("reload", {})
            assert [str(line) for line in reloaded(answer)] == ["Users: as before."]
            users.write_bytes(b"ann:%s\ncleo:%s\n" % (HASHES[1], HASHES[0]))
            answer = await queries.answer("reload", {})
            shown = ["- users: bob", "+ users: cleo", "~ users: ann"]
            assert answer["users"] == {"come": 1, "gone": 1, "altered": 1, "shown": shown, "seconds_ago": 0.0}
            (text,) = map(str, reloaded({**answer, "users": {**answer["users"], "seconds_ago": 90}}))
            assert text.splitlines() == ["Users: 1 new, 1 gone, 1 with another password, 1 min 30 s ago.", *shown]
            assert not any(stored.decode() in str(answer) for stored in HASHES)
            # Nothing is different now, and what was before is still told.
            assert (await queries.answer("reload", {}))["users"]["shown"] == shown
            users.write_bytes(b"ann:nonsense\n")
            answer = await queries.answer("reload", {})
            assert "line 1" in answer["error_text"]
            assert answer["users"]["shown"] == shown
