"""The lines of the log about clients that come and go."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.control import slow_turns
from broker.wire.packets import Ack, Disconnect, Publish, Suback, Subscribe, subscription
from broker.wire.reasons import Reason
from tests.support.process import BrokerProcess
from tests.support.raw_client import RawClient, wait_until


def test_who_comes_and_goes_has_a_line_each(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path) as broker:
        for session in ("new", "resumed"):
            with RawClient(broker.port) as client:
                client.connect("pump", keep=True, user_name="ann")
                (came,) = wait_until(
                    lambda session=session: broker.events(  # type: ignore[misc]
                        "client_connected", session=session
                    ),
                    "no line says who came",
                )
                client.send(Disconnect(Reason.SUCCESS))
                assert client.read() is None
            expected = {
                "client": "pump",
                "user": "ann",
                "version": "5.0",
                "transport": "tcp",
                "keep_alive_s": 0,
                "level": "info",
            }
            assert {key: came[key] for key in expected} == expected
            assert came["address"].startswith("127.0.0.1:")
        first, _ = wait_until(
            lambda: len(found := broker.events("connection_ended")) == 2 and found, "no line of an end"
        )
        assert (first["client"], first["reason"], first["messages_dropped"], first["bytes_in"] > 20) == (
            "pump",
            "client_disconnect",
            0,
            True,
        )
        assert 0 <= first["duration_s"] < 60
        assert "address" not in first


def test_what_is_everyday_has_no_lines_if_that_is_set(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path, environment={"SHOAL_LOG__CONNECTIONS": "false"}) as broker:
        with RawClient(broker.port) as client:
            client.connect("quiet")
            client.send(Disconnect(Reason.SUCCESS))
            assert client.read() is None
        with RawClient(broker.port) as client:
            client.connect("loud")
        wait_until(lambda: broker.events("connection_ended", client="loud"), "no line of an end")
        assert len(broker.events("connection_ended")) == 1
        assert not broker.events("client_connected")


def test_processes_say_what_they_are(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path) as broker:
        assert broker.process is not None
        assert Path(f"/proc/{broker.process.pid}/cmdline").read_bytes().startswith(b"shoal: broker\0")


def test_slow_turns_are_told_together(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[dict[str, int]] = []
    monkeypatch.setattr(slow_turns.log, "warning", lambda event, **fields: told.append(fields), raising=False)
    turns = slow_turns.SlowTurns()
    turns.add({"turn_us": 49_999}, 0)
    assert told == []
    for now_ms, turn_us in ((0, 50_000), (1, 60_000), (2, 90_000), (slow_turns.EVERY_MS - 1, 70_000)):
        turns.add({"turn_us": turn_us, "flush_us": turn_us - 1}, now_ms)
    turns.tell(slow_turns.EVERY_MS)
    turns.tell(3 * slow_turns.EVERY_MS)
    assert told == [
        {"count": 1, "turn_us": 50_000, "flush_us": 49_999},
        {"count": 3, "turn_us": 90_000, "flush_us": 89_999},
    ]
    assert turns.count == 5


def test_a_client_that_loses_messages_while_it_is_away_has_a_line(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path, environment={"SHOAL_MQTT__QUEUE_MESSAGES_MAX": "3"}) as broker:
        with RawClient(broker.port) as client:
            client.connect("pump", keep=True)
            client.send(Subscribe(1, (subscription(b"t", 1),)))
            assert isinstance(client.read(), Suback)
        with RawClient(broker.port) as publisher:
            publisher.connect("p")
            for number in range(1, 11):
                publisher.send(Publish(b"t", b"x", 1, packet_identifier=number))
                assert isinstance(publisher.read(), Ack)
        broker.stop()
        (line,) = broker.events("client_loses_messages")
        assert (line["client"], line["reason"], line["count"]) == ("pump", "queue_full", 7)
        assert line["level"] == "warning"
