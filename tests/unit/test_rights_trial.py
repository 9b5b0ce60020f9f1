"""Other rules on what a log has: whom they would have refused what, and which of them decide about nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from broker.auth.principal import Principal
from router.core.message import message
from router.log.disk import Disk
from router.log.record_buffer import RecordBuffer
from router.log.segments import RECORDS_AT
from router.recovery.snapshot import compact
from tests.support.commit_logs import open_log
from tests.support.log_folders import content, shoal, worker_folder

ACL = """user ann
topic write plant/+
topic read plant/a
topic read plant/#
topic deny plant/secret
user bob
topic read b/#
topic read b/never/heard
pattern write own/%c
"""
SECOND_US = 1_000_000
NARROWING = "new.conf:3 topic read plant/a, new.conf:5 topic deny plant/secret"


def kept(user: str | None, **more: Any) -> bytes:
    return Principal(user, b"", "192.0.2.7", 0, **more).encoded()


class Written:
    """A log that is written record by record; each commit begins a new segment."""

    def __init__(self, folder: Path) -> None:
        self.disk = Disk(str(worker_folder(folder)))
        self.log, _ = open_log(self.disk, segment_bytes_max=RECORDS_AT + 1, durability="os")
        self.buffer = RecordBuffer(0)

    def session(self, client: bytes, principal: bytes | None, time_s: int, *filters: bytes, options: int = 1) -> None:
        self.buffer.add("session", time_s * SECOND_US, client, 3600)
        if principal is not None:
            self.buffer.add("principal", time_s * SECOND_US, client, principal)
        for topic_filter in filters:
            self.buffer.add("subscribe", time_s * SECOND_US, client, topic_filter, options, 0)

    def published(self, client: bytes | None, topic: bytes, time_s: int, qos: int = 1, retain: bool = False) -> None:
        n = self.log.appended + self.buffer.count + 1
        self.buffer.add_accepted(time_s * SECOND_US, n, message(topic, b"x", qos, retain=retain), client, 0)

    def commit(self) -> None:
        self.log.append(self.buffer)
        assert self.log.commit()
        self.buffer = RecordBuffer(self.log.appended)


def told(folder: Path, *options: str, code: int, acl: str = ACL, name: str = "new.conf") -> dict[str, Any]:
    file = folder / name
    file.write_text(acl)
    before = content(folder)
    result = shoal("acl", "test", file, "--data-dir", folder, "--json", *options)
    assert result.exit_code == code, result.output
    assert content(folder) == before
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def refusals(found: dict[str, Any]) -> list[tuple[Any, ...]]:
    return sorted(
        (row["verdict"], row["client"], row["action"], row["topic"], row["count"], row["decided_by"])
        for row in found["rows"]
    )


def test_what_new_rules_would_have_refused(tmp_path: Path) -> None:
    log = Written(tmp_path)
    log.session(b"a1", kept("ann"), 10, b"plant/a", b"plant/#", b"other/#", b"ended/#")
    log.session(b"b1", kept("bob"), 10, b"b/#")
    log.session(b"root", kept("root", superuser=True), 10, b"#")
    log.published(b"a1", b"too/early", 10)
    log.buffer.add("unsubscribe", 11 * SECOND_US, b"a1", b"ended/#")
    log.commit()
    for _ in range(3):
        log.published(b"a1", b"plant/secret", 20)
    log.published(b"a1", b"plant/x", 20)
    log.published(b"b1", b"own/b1", 20, 0)
    log.published(b"b1", b"own/a1", 20, 2)
    log.published(b"root", b"anything", 20)
    log.published(b"clean", b"plant/x", 20)
    log.published(None, b"of/the/broker", 20)
    log.published(None, b"$shoal/bans/x", 20)
    log.commit()
    log.log.close()
    found = told(tmp_path, "--since", "1970-01-01T00:00:15Z", code=1)
    assert refusals(found) == [
        ("narrowed", "a1", "subscribe", "plant/#", 1, NARROWING),
        ("refused", "a1", "publish", "plant/secret", 3, "new.conf:5 topic deny plant/secret"),
        ("refused", "a1", "subscribe", "other/#", 1, "no rule of new.conf"),
        ("refused", "b1", "publish", "own/a1", 1, "no rule of new.conf"),
    ]
    assert (found["messages"], found["subscriptions"]) == (7, 5)
    assert found["not_judged"] == {
        "messages": 1, "subscriptions": 0, "clients": {"clean": 1}, "of_the_broker": 1, "too_many": 0,
    }  # fmt: skip
    # Nothing is ever asked of a rule behind one that decides about all of the same.
    assert [rule.rpartition(":")[2] for rule in found["unused"]] == ["8 topic read b/never/heard"]
    earlier = told(tmp_path, code=1)
    assert {row["topic"] for row in earlier["rows"]} - {row["topic"] for row in found["rows"]} == {
        "too/early",
        "ended/#",
    }
    text = shoal("acl", "test", tmp_path / "new.conf", "--data-dir", tmp_path, "--since", "1970-01-01T00:00:15Z").stdout
    assert text.splitlines()[0] == "7 messages and 5 subscriptions judged: 5 would have been refused, 1 narrowed."
    assert "refused: a1 (ann) publish plant/secret, 3 times: " in text
    assert "1 messages, 0 subscriptions (clean). --connections FILE says it." in text
    strict = told(tmp_path, "--strict", "--since", "1970-01-01T00:00:15Z", code=1)
    assert {row["verdict"] for row in strict["rows"]} == {"refused"}


def test_lines_of_the_log_say_who_clients_were(tmp_path: Path) -> None:
    log = Written(tmp_path)
    log.published(b"clean", b"plant/x", 20)
    log.published(b"clean", b"b/x", 20)
    log.commit()
    log.log.close()
    lines = tmp_path / "broker.log"
    connected = {"event": "client_connected", "client": "clean", "user": "ann", "address": "192.0.2.7:50000"}
    lines.write_text(f'{json.dumps(connected)}\n{{"event":"client_connected","client":\n')
    found = told(tmp_path, "--connections", str(lines), code=1)
    assert [(row["user"], row["topic"]) for row in found["rows"]] == [("ann", "b/x")]
    assert found["not_judged"]["messages"] == 0
    assert told(tmp_path, code=0)["not_judged"]["messages"] == 2


def test_a_snapshot_says_who_there_was_before_it(tmp_path: Path) -> None:
    log = Written(tmp_path)
    log.session(b"a1", kept("ann"), 10, b"plant/a", b"other/#")
    log.session(b"b1", kept("bob"), 10, b"gone/#")
    log.commit()
    log.buffer.add("ended", 11 * SECOND_US, b"b1")
    log.commit()
    log.published(b"a1", b"plant/secret", 20)
    log.published(b"b1", b"b/x", 20)  # by another client of that name, perhaps
    log.commit()
    log.log.close()
    whole = told(tmp_path, "--since", "1970-01-01T00:00:15Z", code=1)
    made = compact(log.disk, 0, lambda: 7, None)
    assert made is not None
    for path in (tmp_path / "worker-0").glob("segment-*.log"):
        if path.name < made.name.replace("snapshot", "segment"):
            path.unlink()
    later = told(tmp_path, "--since", "1970-01-01T00:00:15Z", code=1)
    rows = refusals(whole)
    assert [row for row in rows if row[2] == "subscribe"] == [row for row in refusals(later) if row[2] == "subscribe"]
    assert ("refused", "a1", "subscribe", "other/#", 1, "no rule of new.conf") in rows
    assert not any(row[1] == "b1" for row in rows)
    assert whole["not_judged"]["clients"] == {"b1": 1}


def test_rules_that_hold_for_hours_are_asked_about_the_time_of_a_message(tmp_path: Path) -> None:
    log = Written(tmp_path)
    log.session(b"a1", kept("ann"), 10)
    for hour in (1, 9, 15, 20):
        log.published(b"a1", b"t", hour * 3600)
    log.commit()
    log.log.close()
    rules = 'time_zone = "UTC"\n[[rule]]\nhours = "08:00-16:00"\nallow = "publish"\ntopics = "#"\n'
    found = told(tmp_path, code=1, acl=rules, name="new.toml")
    assert [(row["count"], row["last"]) for row in found["rows"]] == [(2, "1970-01-01T20:00:00.000000Z")]


def test_memory_is_bounded(tmp_path: Path, monkeypatch: Any) -> None:
    for name in ("ROWS_MAX", "REMEMBERED_MAX", "SUBSCRIPTIONS_MAX", "NAMED_MAX"):
        monkeypatch.setattr(f"broker.storage.rights_trial.{name}", 3)
    log = Written(tmp_path)
    log.session(b"a1", kept("ann"), 10, *(b"s/%d" % number for number in range(5)))
    for number in range(10):
        log.published(b"a1", b"t/%d" % number, 20)
        log.published(b"c%d" % number, b"t", 20)
    log.commit()
    log.log.close()
    found = told(tmp_path, code=1)
    assert len(found["rows"]) == 5  # with one of others, for each action
    assert sum(row["count"] for row in found["rows"]) == 13
    assert (found["not_judged"]["too_many"], found["not_judged"]["messages"]) == (2, 10)
    assert len(found["not_judged"]["clients"]) == 3


def test_files_that_cannot_be_used_are_said(tmp_path: Path) -> None:
    Written(tmp_path).log.close()
    (tmp_path / "new.conf").write_text("topics x\n")
    result = shoal("acl", "test", tmp_path / "new.conf", "--data-dir", tmp_path)
    assert (result.exit_code, "line 1: found 'topics'" in result.output) == (1, True)
    (tmp_path / "new.conf").write_text("topic x\n")
    assert shoal("acl", "test", tmp_path / "new.conf", "--data-dir", tmp_path / "none").exit_code == 2
    assert shoal("acl", "test", tmp_path / "new.conf", "--data-dir", tmp_path, "--since", "soon").exit_code == 2
    assert shoal("acl", "test", tmp_path / "new.conf", "--data-dir", tmp_path, "--since", "24h").exit_code == 0
