"""Rules on trial: what they would refuse is counted and told, and nothing is refused by them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio

from broker.admin.shadow_query import merged_shadows
from broker.admin.worker_queries import Queries
from broker.auth import shadow as shadow_module
from broker.auth.acl import Grant
from broker.auth.principal import Principal
from broker.auth.rule import PUBLISH, READ, REPLAY, SHARE, Rule
from broker.auth.rule_chain import RuleChain
from broker.auth.rule_set import RuleSet
from broker.auth.shadow import LOGGED_S, Shadow
from broker.cli.access_text import on_trial
from broker.config.authorizer import AclFileTable
from broker.config.start_error import StartError
from broker.telemetry.metrics import flat
from broker.wire.reasons import Reason
from broker.worker.worker import Worker, open_broker
from tests.inprocess.test_acl_files import REFUSED, granted, published
from tests.support.embedded import CONFIG, device

OLD = """user ann
topic readwrite plant/#
topic read old/#
"""
NEW = """user ann
topic write plant/a
topic read plant/#
topic deny plant/secret
topic write other/a
"""
TIMEOUT_S = 60


class Files:
    """An ACL file that counts, one on trial, and the settings that name them."""

    def __init__(self, folder: Path, new: str = NEW) -> None:
        self.counts, self.on_trial = folder / "acl.conf", folder / "new.conf"
        self.counts.write_text(OLD)
        self.on_trial.write_text(new)
        table = AclFileTable(file=str(self.counts), shadow=str(self.on_trial))
        self.config = msgspec.structs.replace(CONFIG, authorizer=(table,))


async def told(broker: Worker) -> dict[str, Any]:
    answer = await Queries(broker).answer("shadow", {})
    return merged_shadows({0: answer})


def found(answer: dict[str, Any]) -> set[tuple[str, str, str, int, str]]:
    return {(row["verdict"], row["action"], row["topic"], row["count"], row["decided_by"]) for row in answer["rows"]}


async def test_what_differs_is_counted_and_everything_goes_on_by_the_rules_that_count(tmp_path: Path) -> None:
    files = Files(tmp_path)
    with trio.fail_after(TIMEOUT_S):
        async with open_broker(files.config) as broker, device(broker, b"c1", user_name="ann") as client:
            answer = await told(broker)
            assert (answer["refused"], answer["allowed"], answer["rules"], answer["rows"]) == (0, 0, [], [])
            for _ in range(3):  # answers are remembered
                for topic in (b"plant/a", b"plant/b"):
                    assert await published(client, topic) == Reason.NO_MATCHING_SUBSCRIBERS
                assert await published(client, b"other/a") == REFUSED
            assert await granted(client, b"plant/#") == 0
            assert await granted(client, b"old/#") == 0
            assert await granted(client, b"none/#") == REFUSED
            answer = await told(broker)
            narrowing = "new.conf:3 topic read plant/#, new.conf:4 topic deny plant/secret"
            assert found(answer) == {
                ("refused", "publish", "plant/b", 1, "no rule of new.conf"),
                ("allowed", "publish", "other/a", 1, "new.conf:5 topic write other/a"),
                ("narrowed", "subscribe", "plant/#", 1, narrowing),
                ("refused", "subscribe", "old/#", 1, "no rule of new.conf"),
            }
            assert (answer["refused"], answer["allowed"]) == (3, 1)
            assert answer["rules"][0] == {"verdict": "refused", "decided_by": "no rule of new.conf", "count": 2}
            counters = flat(broker.metrics())
            assert (counters["shadow_refused"], counters["shadow_allowed"]) == (3, 1)
            (text,) = map(str, on_trial(answer))
            assert ": 3 would have been refused or narrowed, 1 allowed." in text
            assert "1 refused: c1 (ann) publish plant/b" in text


async def test_a_changed_file_is_asked_anew_and_one_that_cannot_be_used_leaves_the_one_before(tmp_path: Path) -> None:
    files = Files(tmp_path)
    with trio.fail_after(TIMEOUT_S):
        async with open_broker(files.config) as broker, device(broker, b"c1", user_name="ann") as client:
            queries = Queries(broker)
            await published(client, b"plant/b")
            assert (await told(broker))["refused"] == 1
            files.on_trial.write_text("topics x\n")
            answer = await queries.answer("reload", {})
            assert "new.conf cannot be used: line 1: found 'topics'" in answer["error_text"]
            assert (await told(broker))["refused"] == 1
            files.on_trial.write_text(NEW.replace("plant/a", "plant/b"))
            answer = await queries.answer("reload", {})
            assert answer["rules"]["shown"] == [
                "- new.conf: user ann: topic write plant/a",
                "+ new.conf: user ann: topic write plant/b",
            ]
            assert (await told(broker))["rows"] == []
            await published(client, b"plant/b")
            await published(client, b"plant/a")
            assert [row["topic"] for row in (await told(broker))["rows"]] == ["plant/a"]
            # What is subscribed is judged again by both, whenever files are read.
            assert await granted(client, b"plant/#") == 0
            before = (await told(broker))["refused"]
            await queries.answer("reload", {})
            assert (await told(broker))["refused"] == before + 1


async def test_without_one_there_is_nothing_to_say_and_a_bad_one_ends_the_start(tmp_path: Path) -> None:
    files = Files(tmp_path, "topics x\n")
    with pytest.raises(StartError, match="new.conf cannot be used: line 1"):
        Worker(files.config)
    config = msgspec.structs.replace(CONFIG, authorizer=(AclFileTable(file=str(files.counts)),))
    with trio.fail_after(TIMEOUT_S):
        async with open_broker(config) as broker:
            answer = await Queries(broker).answer("shadow", {})
            assert answer["error"]["reason"] == "no_shadow"


def chain(*rules: Rule) -> RuleChain:
    return RuleChain([RuleSet(rules, "rules")])


class Described(list[Rule]):
    """Rules that say what they are."""

    def described(self, rule: Rule) -> str:
        return f"rule {rule.line}"


ANN = Principal("ann", b"c1", None, 0)


def test_each_kind_of_answer_is_compared() -> None:
    every = PUBLISH | READ | SHARE | REPLAY
    counts = chain(Rule(True, every, b"#"))
    rules = Described(
        [Rule(False, SHARE, b"#", line=1), Rule(True, every, b"a", line=2), Rule(True, READ, b"b/+", line=3)]
    )
    counts.shadow = shadow = Shadow(RuleChain([RuleSet(rules, rules)]))
    assert counts.may_publish(ANN, b"a", 0, False)
    assert counts.may_read(ANN, b"b/x")
    assert counts.may_subscribe(ANN, b"b/+", 0) == Grant.WHOLE
    assert counts.may_use(ANN, b"$replay/-1h/a")
    assert shadow.describe()["rows"] == []
    assert counts.may_publish(ANN, b"b/x", 0, False)
    assert counts.may_read(ANN, b"c")
    assert counts.may_subscribe(ANN, b"b/#", 0) == Grant.WHOLE
    assert counts.may_subscribe(ANN, b"c/#", 0) == Grant.WHOLE
    assert counts.may_use(ANN, b"$share/g/a")
    rows = {(row["verdict"], row["action"], row["topic"]) for row in shadow.describe()["rows"]}
    assert rows == {
        ("refused", "publish", "b/x"),
        ("refused", "read", "c"),
        ("narrowed", "subscribe", "b/#"),
        ("refused", "subscribe", "c/#"),
        ("refused", "subscribe", "$share/g/a"),
    }
    assert shadow.refused == len(rows)


def test_a_trial_that_fails_decides_nothing(caplog: pytest.LogCaptureFixture) -> None:
    class Failing:
        def __getattr__(self, name: str) -> Any:
            raise RuntimeError(name)

    counts = chain(Rule(True, PUBLISH | READ, b"#"))
    counts.shadow = Shadow(Failing())  # type: ignore[arg-type]
    assert counts.may_publish(ANN, b"a", 0, False)
    assert counts.may_read(ANN, b"a")
    assert counts.may_subscribe(ANN, b"#", 0) == Grant.WHOLE
    assert not counts.may_use(ANN, b"$share/g/a")


def test_memory_and_lines_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shadow_module, "ROWS_MAX", 3)
    lines: list[dict[str, Any]] = []
    monkeypatch.setattr(shadow_module.log, "info", lambda event, **fields: lines.append({"event": event, **fields}))
    now_s = 0.0
    counts = chain(Rule(True, PUBLISH | READ, b"#"))
    counts.shadow = shadow = Shadow(RuleChain([RuleSet((), "nothing")]), lambda: now_s)
    for number in range(10):
        counts.may_publish(ANN, b"t/%d" % number, 0, False)
    found = shadow.describe()
    assert (found["refused"], found["beyond"], len(found["rows"])) == (10, 7, 3)
    assert found["rules"] == [{"verdict": "refused", "decided_by": "no rule of nothing", "count": 10}]
    now_s = LOGGED_S
    counts.may_publish(ANN, b"x" * 60_000, 0, False)
    assert [(line["event"], line["topic"], line["not_logged"]) for line in lines] == [
        ("shadow_would_refuse", "t/0", 0),
        ("shadow_would_refuse", "x" * 200, 9),
    ]
