"""Settings change while the broker runs: by SIGHUP and by a command, on all workers, and all or nothing."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from broker.wire.packets import Ack, Publish, Suback, Subscribe, subscription
from tests.processes.test_admin import shoal
from tests.support.process import BrokerProcess
from tests.support.raw_client import RawClient, wait_until
from tests.support.workers import Workers

BEFORE = "[mqtt]\nqueue_messages_max = 2\n[log]\nlevel = 'info'\n"
AFTER = "[mqtt]\nqueue_messages_max = 5\nkeep_alive_max_s = 77\nreceive_maximum = 9\n[log]\nlevel = 'debug'\n"


def waiting(broker: BrokerProcess, name: str) -> int:
    """Publish seven messages for a client that is away; return how many wait for it."""
    with RawClient(broker.port) as publisher:
        publisher.connect("publisher")
        for number in range(1, 8):
            publisher.send(Publish(b"to/" + name.encode(), b"x", 1, packet_identifier=number))
            assert isinstance(publisher.read(), Ack)
    queued: int = json.loads(shoal(broker, "admin", "client", name, "--json"))["queued"]
    return queued


@pytest.mark.parametrize("workers", [1, 2])
def test_settings_are_read_again(tmp_path: Path, workers: int) -> None:
    file = tmp_path / "shoal.toml"
    file.write_text(BEFORE)
    broker = Workers(tmp_path, workers) if workers > 1 else BrokerProcess(tmp_path)
    broker.environment.pop("SHOAL_LOG__LEVEL", None)
    broker.options = (*broker.options, "--config", str(file))
    with broker:
        assert broker.process is not None
        names = [f"away-{number}" for number in range(2)]
        for name in names:
            with RawClient(broker.port) as client:
                assert "server_keep_alive" not in client.connect(name, keep=True).properties
                client.send(Subscribe(1, (subscription(b"to/" + name.encode(), 1),)))
                assert isinstance(client.read(), Suback)
            assert waiting(broker, name) == 2

        broker.process.send_signal(signal.SIGHUP)
        wait_until(lambda: broker.events("settings_as_before"), "nothing says that nothing has changed")

        file.write_text(AFTER + "[limits]\nsessions = 9\n")
        said = shoal(broker, "admin", "reload", exit_code=1)
        assert "limits.sessions: found an unknown setting" in said
        assert "Nothing has changed." in said
        assert waiting(broker, names[0]) == 2
        broker.process.send_signal(signal.SIGHUP)
        wait_until(lambda: broker.events("reload_failed"), "nothing says that a setting is wrong")

        file.write_text(AFTER)
        text = shoal(broker, "admin", "reload")
        assert "mqtt.queue_messages_max: 2 -> 5, at once" in text
        assert "mqtt.keep_alive_max_s: 0 -> 77, for clients that connect from then on" in text
        assert "mqtt.receive_maximum: 1024 -> 9, after a restart of the workers" in text
        assert [waiting(broker, name) for name in names] == [5, 5]  # those who were there before, on either worker
        with RawClient(broker.port) as client:
            properties = client.connect("new").properties
            assert (properties["server_keep_alive"], properties["receive_maximum"]) == (77, 1024)
        assert shoal(broker, "admin", "log-level").strip() == "debug"
        (line,) = wait_until(lambda: broker.events("settings_changed"), "no line")
        assert "mqtt.receive_maximum: 1024 -> 9" in line["pending"]

        rows = {row["key"]: row for row in map(json.loads, shoal(
            broker, "admin", "config", "mqtt.", "--changed", "--json").splitlines())}  # fmt: skip
        assert {key: (row["value"], row["origin"]) for key, row in rows.items()} == {
            "mqtt.queue_messages_max": (5, f"file {file}"), "mqtt.keep_alive_max_s": (77, f"file {file}"),
        }  # fmt: skip
        assert "default" in shoal(broker, "admin", "config", "mqtt.inflight_max")

        file.write_text(BEFORE)
        broker.process.send_signal(signal.SIGHUP)
        wait_until(lambda: len(broker.events("settings_changed")) == 2, "SIGHUP reads no settings")
        wait_until(lambda: len(broker.events("reloaded")) >= 3 * workers, "not all workers have read it")
        assert shoal(broker, "admin", "log-level").strip() == "info"
        with RawClient(broker.port) as client:
            assert "server_keep_alive" not in client.connect("newer").properties

        if isinstance(broker, Workers):  # who is started again goes by what is in force, and no setting waits for that
            file.write_text(AFTER)
            shoal(broker, "admin", "reload")
            broker.kill_worker(1)
            broker.wait_for("worker_listening", worker=1, restarts=1)
            for name in broker.names(1, 1):
                with RawClient(broker.port) as client:
                    properties = client.connect(name).properties
                    assert (properties["server_keep_alive"], properties["receive_maximum"]) == (77, 1024)
