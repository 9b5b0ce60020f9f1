"""Settings that change while the broker runs: a worker that is told goes by them as one that began with them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from broker.config.live import HOW_IN_WORDS, NEW, NOW, START, Change, differences, how_it_changes, taken_over, value_of
from broker.config.loader import SETTINGS, Config, ConfigError, load
from broker.config.setting import TABLES
from broker.config.source import Source
from broker.worker.worker import Worker
from tests.support.process import ROOT

WORDS = {
    "log.level": "debug",
    "mqtt.queue_overflow": "push_back",
    "mqtt.queue_rules": ("t: drop_oldest",),
    "mqtt.auto_id_prefix": "other-",
    "mqtt.response_information": "answers/{client_identifier}",
    "mqtt.server_reference": "elsewhere",
    "mqtt.server_reference_use": "always",
    "shutdown.server_reference": "elsewhere",
}
ELSEWHERE = {
    "log.level": "of the process: tests/processes/test_settings_reload.py",
    "processes.restarts_max": "of the supervisor",
    "processes.restarts_within_s": "of the supervisor",
}


def other(key: str) -> Any:
    """Return a value of a setting that is not its default."""
    default = SETTINGS[key].default
    if key in WORDS:
        return WORDS[key]
    if isinstance(default, bool):
        return not default
    lowest, highest = (float(word) for word in SETTINGS[key].expected.split()[-3::2])
    found = default + 1 if default + 1 <= highest else default - 1
    assert lowest <= found <= highest, key
    return found


def with_other(key: str) -> Config:
    section, _, name = key.rpartition(".")
    changed = msgspec.structs.replace(getattr(Config(), section), **{name: other(key)})
    return msgspec.structs.replace(Config(), **{section: changed})


def goes_by(worker: Worker) -> dict[str, Any]:
    """Return everything that a worker has made of its settings."""
    worker.limit_connections()
    ledger, handshake = worker.router.ledger, worker.controller.handshake
    sessions = (ledger.session_limits, handshake.limit_rules.usual.session)
    return {
        "terms": worker.reactor.terms,
        "output": worker.memory_guard._output_bytes_max,
        "ledger": [getattr(ledger, name) for name in (
            "push_back_ms", "inflight_max", "queue_qos0", "retained_messages_max", "retained_bytes_max",
            "peer_bytes_max",
        )],
        "overflow": [ledger.overflow.policy(topic) for topic in (b"t", b"other")],
        "sessions": [(of.queue_messages_max, of.queue_bytes_max, of.subscriptions_max) for of in sessions],
        "connections": handshake.connections_max,
        "rate": handshake._rate._step_us,
        "sessions_max": handshake.session_limit.maximum,
        "explains": worker.controller.acl.explains,
        "lines": worker.controller.lines._says_all,
        "connack": handshake._connack._response_information,
        # These are asked when they are needed, by whoever holds them.
        "config": (worker.config, handshake.config, worker.controller.mqtt, worker.controller.limits),
    }  # fmt: skip


@pytest.mark.parametrize("key", sorted((NOW | NEW) - set(ELSEWHERE)))
def test_a_worker_that_is_told_goes_by_a_setting_as_one_that_began_with_it(key: str) -> None:
    usual, told, began = Worker(Config()), Worker(Config()), Worker(with_other(key))
    try:
        told.change(with_other(key))
        assert goes_by(told) == goes_by(began)
        assert goes_by(told) != goes_by(usual)
        told.change(Config())
        back = goes_by(told)
        if other(key) == "push_back":  # who waits by it goes on doing so
            assert back["terms"].pop("pushes_back") > goes_by(usual)["terms"]["pushes_back"]
        assert {**goes_by(usual), "terms": {**goes_by(usual)["terms"], **back["terms"]}} == {
            **back, "terms": {**goes_by(usual)["terms"], **back["terms"]},
        }  # fmt: skip
    finally:
        for worker in (usual, told, began):
            worker.close()


def test_each_setting_changes_in_one_way_and_is_one() -> None:
    groups = (NOW, NEW, START)
    assert set().union(*groups) <= {*SETTINGS, *TABLES}
    assert sum(map(len, groups)) == len(set().union(*groups))
    assert {how_it_changes(key) for key in SETTINGS} == set(HOW_IN_WORDS)


def test_what_is_taken_over_is_what_changes_without_a_restart() -> None:
    after = load(None, {}, {"mqtt.keep_alive_max_s": 60, "mqtt.receive_maximum": 7, "log.level": "debug", "workers": 3})
    assert taken_over(Config(), after) == load(None, {}, {"mqtt.keep_alive_max_s": 60, "log.level": "debug"})
    restarted = taken_over(Config(), after, frozenset(("now", "new", "restart")))
    assert [change.key for change in differences(restarted, after)] == ["workers"]
    assert differences(Config(), Config()) == []


def test_a_source_says_what_differs_where_from_and_what_stays(tmp_path: Path) -> None:
    file = tmp_path / "shoal.toml"
    file.write_text("[mqtt]\nkeep_alive_max_s = 60\n")
    source = Source(file, {"SHOAL_LIMITS__SESSIONS_MAX": "9"}, {"log.level": "debug"})
    origins = {row["key"]: (row["value"], row["origin"]) for row in source.rows()}
    assert origins["mqtt.keep_alive_max_s"] == (60, f"file {file}")
    assert origins["limits.sessions_max"] == (9, "environment SHOAL_LIMITS__SESSIONS_MAX")
    assert origins["log.level"] == ("debug", "flag --log-level")
    assert origins["mqtt.inflight_max"] == (1000, "default")
    file.write_text(
        "[mqtt]\nkeep_alive_max_s = 90\nreceive_maximum = 5\n[[limit]]\nusers = ['secret']\nqueue_messages_max = 5\n"
    )
    read = source.read()
    assert [change.described()["counts"] for change in read.changes] == [
        "after a restart of the workers", "for clients that connect from then on", "after a restart of the workers",
    ]  # fmt: skip
    assert [str(change) for change in read.changes] == [
        "mqtt.receive_maximum: 1024 -> 5", "mqtt.keep_alive_max_s: 60 -> 90", "[[limit]]"
    ]  # fmt: skip
    assert "secret" not in str([change.described() for change in read.changes])
    source.adopt(read)
    assert (source.config.mqtt.keep_alive_max_s, source.config.mqtt.receive_maximum) == (90, 1024)
    origins = {row["key"]: (row["value"], row["origin"]) for row in source.rows()}
    assert origins["mqtt.receive_maximum"] == (1024, "default")
    assert [change.key for change in source.read().changes] == ["mqtt.receive_maximum", "limit"]
    file.write_text("[mqtt]\nkeep_alive_max = 90\n")
    with pytest.raises(ConfigError, match="keep_alive_max_s perhaps"):
        source.read()


@pytest.mark.parametrize(
    ("text", "expected"),
    [("a,b", ("a", "b")), ('["a"]', ("a",)), (' [ "a", "b,c" ]', ("a", "b,c")), ("[]", ()), ("", ()), ("a", ("a",))],
)
def test_a_list_in_the_environment_is_what_people_write(text: str, expected: tuple[str, ...]) -> None:
    config = load(None, {"SHOAL_ARCHIVE__TOPIC_FILTERS": text}, {})
    assert config.archive.topic_filters == expected


@pytest.mark.parametrize("text", ["[a]", '["a"', "[1]", '[["a"]]'])
def test_a_list_in_the_environment_that_is_none_is_a_problem(text: str) -> None:
    with pytest.raises(ConfigError, match="found .*expected a list of texts"):
        load(None, {"SHOAL_ARCHIVE__TOPIC_FILTERS": text}, {})


def test_the_page_is_that_of_the_settings() -> None:
    from broker.config.page import page

    assert (ROOT / "docs/configuration.md").read_text() == page(), (
        "python -m broker.config.page > docs/configuration.md"
    )


def test_a_change_of_a_table_shows_no_value() -> None:
    assert value_of(Config(), "mqtt.inflight_max") == 1000
    assert str(Change("authenticator", None, None)) == "[[authenticator]]"
