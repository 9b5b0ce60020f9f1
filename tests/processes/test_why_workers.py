"""`shoal admin why` where a message was published at another worker than its receiver's."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path
from typing import Any

from broker.cli.admin_client import AdminClient
from broker.wire.packets import Ack, Publish, Suback, Subscribe, subscription
from broker.wire.properties import PacketType
from tests.processes.test_admin import asked, shoal, socket_of
from tests.support.raw_client import RawClient, wait_until
from tests.support.workers import Workers

SETTINGS = {"SHOAL_MESH__SILENCE_S": "1", "SHOAL_PROCESSES__STALL_S": "60"}


def kept_session(broker: Workers, name: str, *topic_filters: bytes) -> None:
    """Make a session that is kept, with subscriptions at QoS 1, and leave it."""
    with RawClient(broker.port) as client:
        client.connect(name, keep=True)
        client.send(Subscribe(1, tuple(subscription(topic_filter, 1) for topic_filter in topic_filters)))
        assert isinstance(client.read(), Suback)


def publish(client: RawClient, payload: bytes, topic: bytes = b"a/b") -> None:
    client.send(Publish(topic, payload, 1, packet_identifier=1))
    answer = client.read()
    assert isinstance(answer, Ack)
    assert answer.type == PacketType.PUBACK


def told(broker: Workers, name: str) -> dict[str, tuple[int, str, str | None]]:
    """Return payload -> (where it was published, what became of it, the reason), as the admin socket says."""
    return {row["payload"]: (row["worker"], row["fate"], row.get("reason")) for row in why(broker, name)["messages"]}


def why(broker: Workers, name: str) -> Any:
    status, answer = asked(broker, f"/clients/{name}/why?topic=a/b")
    assert status == 200, answer
    return answer


def test_why_names_the_worker_where_a_message_was_published_and_how_it_went_on(tmp_path: Path) -> None:
    with Workers(tmp_path, **SETTINGS) as broker:
        (name,), (near,), (far,) = broker.names(2), broker.names(0), broker.names(1)
        publishers = [RawClient(broker.port) for _ in range(2)]
        for client, identifier in zip(publishers, (near, far), strict=True):
            client.connect(identifier)
        publish(publishers[0], b"too early")
        kept_session(broker, name, b"a/+", b"other")
        publish(publishers[0], b"zero")
        publish(publishers[1], b"one")
        wait_until(lambda: len(told(broker, name)) == 2, "not both came")
        assert told(broker, name) == {"zero": (0, "queued", None), "one": (1, "queued", None)}
        answer = why(broker, name)
        assert [row["record_there"] > 0 for row in answer["messages"]] == [True, True]
        assert [
            (row["worker"], row["link"], [each["topic_filter"] for each in row["filters"]], row["would_be"])
            for row in answer["passed_on_by"]
        ] == [(0, "up", ["a/+"], "sent"), (1, "up", ["a/+"], "sent")]
        assert answer["unknown"] == []

        broker.kill_worker(2, signal.SIGSTOP)
        for worker in (0, 1):
            broker.wait_for("peer", worker=worker, state="silent")
        publish(publishers[0], b"while it is stopped")
        broker.kill_worker(2, signal.SIGCONT)
        wait_until(lambda: told(broker, name).get("while it is stopped") == (0, "queued", None), "it does not come")
        text = shoal(broker, "admin", "why", name, "a/b")
        assert "from worker 0  link up, wanted by a/+ (QoS 1)" in text
        with RawClient(broker.port) as client:
            assert client.connect(name, keep=True).session_present
            for _ in range(3):
                packet = client.read()
                assert isinstance(packet, Publish)
                client.send(Ack(PacketType.PUBACK, packet.packet_identifier))
            wait_until(lambda: {fate for _, fate, _ in told(broker, name).values()} == {"acknowledged"}, "no answer")
        for client in publishers:
            client.socket.close()


def test_why_says_that_nothing_was_kept_of_what_came_for_others(tmp_path: Path) -> None:
    with Workers(tmp_path) as broker:
        kept, passing = broker.names(2, 2)
        (near,) = broker.names(0)
        with RawClient(broker.port) as client:
            client.connect(kept, keep=True)
            client.send(Subscribe(1, (subscription(b"a/+", 0),)))
            assert isinstance(client.read(), Suback)
        with RawClient(broker.port) as subscriber, RawClient(broker.port) as publisher:
            subscriber.connect(passing)
            subscriber.send(Subscribe(1, (subscription(b"a/b", 2),)))
            assert isinstance(subscriber.read(), Suback)
            publisher.connect(near)
            publisher.send(Publish(b"a/b", b"for somebody else", 2, packet_identifier=1))
            packet = subscriber.read()
            assert isinstance(packet, Publish)
            wait_until(lambda: told(broker, kept) == {"for somebody else": (0, "passed_on", None)}, "it is still owed")
        assert "came to the client's worker, which kept no trace of it" in shoal(broker, "admin", "why", kept, "a/b")


def test_a_silent_worker_costs_one_wait_and_only_where_it_is_asked(tmp_path: Path) -> None:
    with Workers(tmp_path, **SETTINGS) as broker:
        (name,), (other,), (lost,) = broker.names(0), broker.names(1), broker.names(2)
        for each in (name, other, lost):
            kept_session(broker, each, b"a/+")
        stopped = broker.kill_worker(2, signal.SIGSTOP)
        for worker in (0, 1):
            broker.wait_for("peer", worker=worker, state="silent")
        # Questions about a client go to its home, so nobody waits.
        assert asked(broker, f"/clients/{name}")[0] == 200
        assert asked(broker, f"/clients/{other}/kick", "POST")[0] == 409
        # What the silent worker has passed on is not known.
        answer = why(broker, name)
        assert answer["unknown"] == [2]
        # Nor is a client that lives there, and whether one lives there that nobody else knows.
        status, refused = asked(broker, f"/clients/{lost}/why?topic=a/b")
        assert (status, refused["error"]["reason"]) == (503, "worker_silent")
        assert asked(broker, f"/clients/{broker.names(1, 2)[1]}")[0] == 404
        # A trace begins all the same.
        with contextlib.closing(AdminClient(socket_of(broker))) as admin:
            assert next(admin.lines(f"/clients/{name}/trace")) == {"event": "tracing", "client": name, "session": True}
        os.kill(stopped, signal.SIGCONT)
