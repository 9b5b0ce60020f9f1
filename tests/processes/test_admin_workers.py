"""The admin socket of a broker with several workers: the supervisor asks them all."""

from __future__ import annotations

import json
import resource
import signal
from pathlib import Path

from broker.admin.http_server import CONNECTIONS_MAX
from broker.wire.packets import Ack, Publish, Suback, Subscribe, subscription
from broker.wire.properties import PacketType
from tests.processes.test_admin import UnixConnection, asked, client, shoal, socket_of
from tests.support.raw_client import RawClient, wait_until
from tests.support.workers import Workers


def test_the_answers_of_all_workers_are_one(tmp_path: Path) -> None:
    with Workers(tmp_path) as broker:
        names = [broker.names(home)[0] for home in range(3)]
        with (
            client(broker, names[0], "-t", "a/#", "-q", "1", "--session-expiry-interval", "100"),
            client(broker, names[1], "-t", "a/+", "-q", "1"),
            client(broker, names[2], "-t", "b"),
        ):
            status = asked(broker, "/status")[1]
            assert (status["ready"], status["workers"], status["clients"], status["sessions"]) == (True, 3, 3, 3)
            assert [row["worker"] for row in asked(broker, "/workers")[1]["rows"]] == [0, 1, 2]
            found: list[tuple[str, int]] = []
            cursor = ""
            while True:  # one row a page, so that pages cross from worker to worker
                page = asked(broker, f"/clients?limit=1{cursor}")[1]
                found += [(row["client"], row["worker"]) for row in page["rows"]]
                if page["cursor"] is None:
                    break
                cursor = f"&cursor={page['cursor']}"
            assert found == list(zip(names, range(3), strict=True))
            assert len(shoal(broker, "admin", "subscriptions", "--json").splitlines()) == 3
            assert json.loads(shoal(broker, "admin", "client", names[2], "--json"))["worker"] == 2
            rows = asked(broker, f"/routes?topic=a/1&qos=1&publisher={names[2]}")[1]["rows"]
            assert {row["client"]: row["outcome"] for row in rows if "client" in row} == {
                names[0]: "sent",
                names[1]: "sent",
            }
            assert {row["state"] for row in asked(broker, "/peers")[1]["rows"]} == {"up"}
            assert len(shoal(broker, "admin", "peers").splitlines()) == 1 + 3 * 2
            assert asked(broker, "/clients/nobody")[0] == 404
            assert asked(broker, "/routes?topic=a&publisher=nobody")[0] == 404
            assert asked(broker, f"/clients/{names[1]}/kick", "POST")[0] == 200


def test_a_publish_counts_clients_and_not_workers(tmp_path: Path) -> None:
    with Workers(tmp_path, SHOAL_PROCESSES__STALL_S="60") as broker:
        members = []
        for home, count in enumerate((1, 4, 7)):
            for name in broker.names(home, count):
                members.append(RawClient(broker.port))
                members[-1].connect(name, keep=True)
                topic_filters = (b"a/+", b"a/b", b"$share/g/a/#")  # who matches twice is one, a group is one
                members[-1].send(Subscribe(1, tuple(subscription(each, 1) for each in topic_filters)))
                assert isinstance(members[-1].read(), Suback)
        assert shoal(broker, "admin", "publish", "a/b", "x", "-q", "1") == "a/b: 13 receivers, in the log\n"
        assert shoal(broker, "admin", "publish", "a/c", "x") == "a/c: 13 receivers\n"
        broker.kill_worker(2, signal.SIGSTOP)
        assert "6 receivers, and those of worker 2, which gave no answer" in shoal(
            broker, "admin", "publish", "a/b", "x"
        )
        broker.kill_worker(2, signal.SIGCONT)
        for member in members:
            member.socket.close()


def test_a_broker_is_not_ready_while_a_worker_keeps_nothing(tmp_path: Path) -> None:
    with Workers(tmp_path) as broker, RawClient(broker.port) as keeper:
        pid = broker.pid_of(1)
        keeper.connect(broker.names(1)[0], keep=True)
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))  # a disk that takes nothing
        keeper.send(Subscribe(1, (subscription(b"a", 1),)))
        _, answer = wait_until(
            lambda: (found := asked(broker, "/ready"))[0] == 503 and found, "it is ready all the same"
        )
        (reason,) = answer["reasons"]
        assert reason.startswith("Worker 1 cannot keep anything: ")
        assert "File too large" in reason
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        wait_until(lambda: asked(broker, "/ready") == (200, {"ready": True}), "it is not ready again")


def test_health_is_told_while_all_connections_of_the_socket_are_busy(tmp_path: Path) -> None:
    with Workers(tmp_path, SHOAL_PROCESSES__STALL_S="60") as broker:
        assert asked(broker, "/ready")[0] == 200
        broker.kill_worker(2, signal.SIGSTOP)  # so that an answer takes its time
        busy: list[UnixConnection] = []

        def is_full() -> bool:
            while len(busy) < CONNECTIONS_MAX or asked(broker, "/nowhere")[0] != 503:
                # One whose question had not been read when another one came was the idle one that made room for it.
                busy.append(UnixConnection(socket_of(broker)))
                busy[-1].request("GET", "/workers")
            return True

        wait_until(is_full, "they are not busy")
        assert asked(broker, "/nowhere")[1]["error"]["reason"] == "too_many_connections"
        assert asked(broker, "/ready") == (200, {"ready": True})
        assert asked(broker, "/live") == (200, {"live": True})
        broker.kill_worker(2, signal.SIGCONT)
        for connection in busy:
            connection.close()
        wait_until(lambda: asked(broker, "/status")[0] == 200, "nobody else is answered")


def test_why_knows_what_came_from_another_worker(tmp_path: Path) -> None:
    with Workers(tmp_path) as broker:
        (name,) = broker.names(2)  # what the socket publishes comes to worker 0
        with client(
            broker, name, "-t", "a", "-q", "1", "--session-expiry-interval", "100", "--no-clean-start"
        ) as program:
            shoal(broker, "admin", "publish", "a", "first", "-q", "1")
            assert program.stdout is not None
            assert program.stdout.readline() == "first\n"
            wait_until(
                lambda: "acknowledged (packet identifier 1)" in shoal(broker, "admin", "why", name, "a"),
                "the acknowledgement is not told of",
            )


def test_a_broker_is_ready_again_when_a_killed_worker_is_back(tmp_path: Path) -> None:
    with Workers(tmp_path) as broker:
        assert asked(broker, "/ready") == (200, {"ready": True})
        broker.kill_worker(1, signal.SIGKILL)
        wait_until(lambda: asked(broker, "/status")[1]["restarts"] == 1, "no restart is told of")
        wait_until(lambda: asked(broker, "/ready")[0] == 200, "it is not ready again")
        assert [row["worker"] for row in asked(broker, "/workers")[1]["rows"]] == [0, 1, 2]
        assert asked(broker, "/drain", "POST") == (202, {"draining": True})
        assert broker.process is not None
        assert broker.process.wait(60) == 0
        assert broker.process.stdout is not None
        broker.process.stdout.close()
    assert not (tmp_path / "data" / "admin.sock").exists()


def test_what_a_forgotten_worker_was_owed_is_dropped_and_what_is_published_later_reaches_it(tmp_path: Path) -> None:
    settings = {"SHOAL_MESH__SILENCE_S": "1", "SHOAL_PROCESSES__STALL_S": "60"}
    with Workers(tmp_path, **settings) as broker, RawClient(broker.port) as publisher:
        publisher.connect(broker.names(0)[0])
        away = broker.names(2)[0]
        with RawClient(broker.port) as subscriber:
            subscriber.connect(away, keep=True)
            subscriber.send(Subscribe(1, (subscription(b"a", 1),)))
            assert isinstance(subscriber.read(), Suback)

        def publish(payload: bytes) -> None:
            publisher.send(Publish(b"a", payload, 1, packet_identifier=1))
            answer = publisher.read()
            assert isinstance(answer, Ack)
            assert answer.type == PacketType.PUBACK

        peer = next(row["peer"] for row in asked(broker, "/peers")[1]["rows"] if row["peer"].endswith("/2"))
        forget = f"/peers/{peer.replace('/', '%2F')}/forget"
        assert asked(broker, forget, "POST")[0] == 409
        assert asked(broker, "/peers/nobody/forget", "POST")[0] == 404
        broker.kill_worker(2, signal.SIGSTOP)
        for worker in (0, 1):
            broker.wait_for("peer", worker=worker, state="silent")
        for number in range(3):
            publish(b"%d" % number)
        assert json.loads(shoal(broker, "admin", "forget", peer, "--json")) == {"peer": peer, "messages_dropped": 3}
        publish(b"nobody is known to want it")
        broker.kill_worker(2, signal.SIGCONT)
        for worker in (0, 1):
            broker.wait_for("peer", worker=worker, state="up", before="silent")

        def arrives() -> bool:
            publish(b"later")
            with RawClient(broker.port) as subscriber:
                assert subscriber.connect(away, keep=True).session_present
                subscriber.send(Publish(b"own", b"", 1, packet_identifier=9))
                packet = subscriber.read()
                assert isinstance(packet, Ack) or packet.payload == b"later", packet
                return isinstance(packet, Publish)

        # It has to be told first that it was forgotten, and says then what it wants.
        assert wait_until(arrives, "nothing arrives at a worker that was forgotten")


def test_routes_are_those_of_all_workers_and_name_the_member_whose_turn_it_is(tmp_path: Path) -> None:
    with Workers(tmp_path) as broker:
        members: dict[str, RawClient] = {}
        for home in range(3):
            for name in broker.names(home, 2):
                members[name] = RawClient(broker.port)
                members[name].connect(name)
                members[name].send(Subscribe(1, (subscription(b"$share/g/a/+", 1), subscription(b"b/#", 1))))
                assert isinstance(members[name].read(), Suback)
        found = asked(broker, "/routes?topic=b/1&qos=1")[1]
        assert found["filters"] == [{"topic_filter": "b/#", "subscribers": 6}]
        assert sorted(row["client"] for row in found["rows"]) == sorted(members)
        picked = []
        with RawClient(broker.port) as publisher:
            name = broker.names(1, 3)[-1]
            publisher.connect(name)
            for number in range(12):
                for _ in range(2):  # whose turn it is does not change by asking
                    (group,) = asked(broker, f"/routes?topic=a/b&qos=1&publisher={name}")[1]["groups"]
                    assert sorted(shown["client"] for shown in group["shown"]) == sorted(members)
                    assert (group["members"], group["outcome"]) == (6, "sent")
                picked.append(group["picked"]["client"])
                publisher.send(Publish(b"a/b", b"%d" % number, 1, packet_identifier=1))
                assert publisher.read() == Ack(PacketType.PUBACK, 1)
                packet = members[picked[-1]].read()
                assert isinstance(packet, Publish)
                assert packet.payload == b"%d" % number
                members[picked[-1]].send(Ack(PacketType.PUBACK, packet.packet_identifier))
        assert sorted(picked) == sorted([*members] * 2)
        for member in members.values():
            member.socket.close()
