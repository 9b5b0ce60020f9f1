"""What a worker says of messages that another worker's client is asked about, while that worker is not there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import trio

from broker.admin.why_merge import merged_why
from broker.admin.worker_queries import Queries
from broker.config.loader import Archive
from broker.control.inprocess_client import InProcessClient
from broker.worker.placement import Links
from broker.worker.worker import open_broker
from tests.support.embedded import CONFIG, TIMEOUT_S

ARCHIVING = msgspec.structs.replace(CONFIG, archive=Archive(topic_filters=("#",)))


def test_what_became_of_what_a_worker_that_is_away_is_owed(tmp_path: Path) -> None:
    links = Links(b"node/0", f"ipc://{tmp_path}/0", {b"node/1": (f"ipc://{tmp_path}/1", None)})

    async def main() -> None:
        with trio.fail_after(TIMEOUT_S):
            async with (
                open_broker(ARCHIVING, folder=tmp_path, links=links) as broker,
                broker.client("publisher") as client,
            ):
                await look(Queries(broker), client)

    async def look(queries: Queries, client: InProcessClient) -> None:
        mesh, ledger = queries.worker.mesh, queries.router.ledger
        peer = mesh.forwarding.peer(b"node/1")

        async def publish(payload: bytes, qos: int = 1) -> None:
            await client.publish("a/b", payload, qos=qos)
            if qos == 0:  # nobody waits for its record
                await client.publish("another", qos=1)

        async def told() -> list[tuple[Any, ...]]:
            answer = await queries.answer("why_passed", {"topic": "a/b", "worker": 1})
            return [(row["payload"], row["fate"], row.get("reason")) for row in answer["messages"]]

        await publish(b"unwanted")
        mesh.forwarding.want(peer, b"a/+", 1, True)
        await publish(b"wanted")
        await publish(b"qos 0", 0)
        mesh.forwarding.want(peer, b"$share/g/a/#", 1, True, 1)
        await publish(b"shared")
        waiting = [("unwanted", "not_passed_on", "not_wanted"), ("wanted", "waits_for_worker", "connecting"),
                   ("qos 0", "qos0_not_recorded", None), ("shared", "waits_for_worker", "connecting"),
                   ("shared", "waits_for_worker", "connecting")]  # fmt: skip
        assert await told() == waiting
        answer = await queries.answer("why_passed", {"topic": "a/b", "worker": 1, "last": 1})
        assert [row["payload"] for row in answer["messages"]] == ["shared", "shared"]
        assert (answer["worker"], answer["link"], answer["would_be"], answer["queued"], answer["unlogged"]) == (
            0, "connecting", "queued", 3, [])  # fmt: skip
        assert sorted((each["topic_filter"], each["qos"], each["kept"]) for each in answer["filters"]) == [
            ("$share/g/a/#", 1, True),
            ("a/+", 1, True),
        ]

        ledger.peer_bytes_max = 1
        await publish(b"too much")
        assert await told() == [*waiting, ("too much", "not_passed_on", "peer_gone")]
        assert (await queries.answer("why_passed", {"topic": "a/b", "worker": 1}))["would_be"] == "peer_gone"
        ledger.peer_bytes_max = 1 << 30

        assert mesh.forget(b"node/1") == 3
        await publish(b"forgotten")
        assert [row for row in await told() if row[0] in ("wanted", "shared", "forgotten")] == [
            ("wanted", "dropped", "peer_gone"), ("shared", "dropped", "peer_gone"), ("shared", "dropped", "peer_gone"),
            ("forgotten", "not_passed_on", "not_wanted")]  # fmt: skip
        nobody = await queries.answer("why_passed", {"topic": "a/b", "worker": 7})
        assert (nobody["link"], nobody["messages"]) == (None, [])
        assert "error" in await queries.answer("why_passed", {"topic": "a/#", "worker": 1})

    trio.run(main)


def passed(worker: int, *rows: tuple[str, int, str]) -> dict[str, Any]:
    """Return a worker's answer: (time, record under which the message was owed, what became of it)."""
    return {
        "worker": worker,
        "link": "up",
        "filters": [],
        "would_be": "sent",
        "queued": 0,
        "queued_bytes": 0,
        "in_flight": 0,
        "unlogged": [],
        "messages": [
            {"time": time, "record": owed_as, "owed_as": owed_as, "fate": fate} for time, owed_as, fate in rows
        ],
    }


def test_the_answers_of_several_workers_are_one_list_without_what_came() -> None:
    here = {
        "worker": 2,
        "unlogged": [{"fate": "queued"}],
        "messages": [
            {"time": "2", "record": 5, "worker": 0, "record_there": 7, "fate": "queued"},
            {"time": "4", "record": 6, "worker": 2, "fate": "acknowledged"},
        ],
    }
    others = {
        0: passed(0, ("0", 6, "passed_on"), ("1", 7, "on_its_way"), ("3", 8, "waits_for_worker")),
        1: passed(1, ("1", 7, "waits_for_worker"), ("5", 8, "passed_on")),
    }
    merged = merged_why(here, others, 10)
    assert [(row["time"], row["worker"], row["record"], row["fate"]) for row in merged["messages"]] == [
        ("0", 0, 6, "passed_on"),
        ("1", 1, 7, "waits_for_worker"),
        ("2", 0, 5, "queued"),
        ("3", 0, 8, "waits_for_worker"),
        ("4", 2, 6, "acknowledged"),
        ("5", 1, 8, "passed_on"),
    ]
    assert merged["unlogged"] == [{"fate": "queued", "worker": 2}]
    assert [row["worker"] for row in merged["passed_on_by"]] == [0, 1]
    # With so few asked for, older ones that came are not among those of the client's worker.
    cut = merged_why(here, others, 2)
    assert [row["time"] for row in cut["messages"]] == ["4", "5"]
    one = merged_why({**here, "messages": here["messages"][1:]}, others, 1)
    assert [row["time"] for row in one["messages"]] == ["5"]
