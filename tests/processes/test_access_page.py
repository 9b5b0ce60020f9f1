"""docs/access.md: the example, by the file, settings and commands that stand there."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

from broker.auth.acl import Grant
from broker.auth.principal import Principal
from broker.auth.rule_chain import RuleChain
from broker.auth.rule_set import RuleSet
from broker.auth.rules_lines import RulesLines
from broker.config.loader import load
from broker.control.client_limits import LimitRules
from tests.support.http_backend import Answer, Asked, Backend, running
from tests.support.process import ROOT, BrokerProcess

PAGE = (ROOT / "docs" / "access.md").read_text(encoding="utf-8")


def blocks(kind: str) -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def run(folder: Path, command: str, port: int) -> subprocess.CompletedProcess[str]:
    """Run a line of the page as a person has it: `shoal` on the path."""
    bin_folder = folder / "bin"
    bin_folder.mkdir(exist_ok=True)
    shoal = bin_folder / "shoal"
    shoal.write_text(f'#!/bin/sh\nPYTHONPATH={ROOT} exec {sys.executable} -m broker.cli.main "$@"\n')
    shoal.chmod(0o755)
    environment = {**os.environ, "PATH": f"{bin_folder}:{os.environ['PATH']}"}
    there = command.replace("shoal pub", f"shoal pub --url tcp://127.0.0.1:{port}")
    return subprocess.run(
        ["sh", "-ec", there], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )


def test_the_rules_of_the_page_allow_and_refuse_what_it_says(tmp_path: Path) -> None:
    acl, *_ = re.findall(r"^```\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    settings, *_ = blocks("toml")
    (tmp_path / "acl.conf").write_text(acl)
    (tmp_path / "shoal.toml").write_text(settings.replace('"acl.conf"', f'"{tmp_path / "acl.conf"}"'))
    allowed, refused, *_ = blocks("sh")
    with BrokerProcess(tmp_path, "--config", str(tmp_path / "shoal.toml")) as broker:
        for line in allowed.splitlines():
            done = run(tmp_path, line, broker.port)
            assert done.returncode == 0, (line, done.stderr)
        for line in refused.splitlines():
            done = run(tmp_path, line, broker.port)
            assert done.returncode != 0, line
            assert "not authorized" in done.stderr.lower(), done.stderr


def test_the_rules_file_of_the_page_is_one() -> None:
    rules = next(block for block in blocks("toml") if "[[rule]]" in block)
    lines = RulesLines(rules.encode(), "rules.toml")
    assert lines.described(lines.rules[0]) == ("rules.toml:3 (no message is kept here) deny publish #")
    assert len(lines.rules) == 7
    assert len(lines.times) == 1


def test_rules_of_emqx_are_what_the_page_says() -> None:
    lines = RulesLines([block for block in blocks("toml") if "[[rule]]" in block][1].encode(), "rules.toml")
    chain = RuleChain([RuleSet(lines.rules, lines)], decides_by_qos=True)

    def may(principal: Principal, action: str, name: bytes) -> bool:
        return bool(chain.may_publish(principal, name, 0, False) if action == "publish" else
                    chain.may_subscribe(principal, name, 0) == Grant.WHOLE)  # fmt: skip

    near, far = Principal("ann", b"new-1", "10.1.2.3", 0), Principal("dashboard", b"old-1", "192.0.2.1", 0)
    asked = [("publish", b"plant/a"), ("subscribe", b"plant/#"), ("subscribe", b"$SYS/#"), ("publish", b"up/new-1/a"),
             ("publish", b"up/old-1/a"), ("publish", b"other")]  # fmt: skip
    assert [may(near, *one) for one in asked] == [True, True, False, True, False, False]
    assert [may(far, *one) for one in asked] == [False, False, True, False, False, False]


def test_the_settings_of_the_page_can_be_loaded(tmp_path: Path) -> None:
    for settings in blocks("toml"):
        if "[[rule]]" not in settings and "[[limit]]" not in settings:
            (tmp_path / "shoal.toml").write_text(settings)
            assert load(tmp_path / "shoal.toml", {}, {}).authorizer


def test_the_limits_of_the_page_are_settings(tmp_path: Path) -> None:
    (limits,) = [block for block in blocks("toml") if "[[limit]]" in block]
    (tmp_path / "shoal.toml").write_text(limits)
    config = load(tmp_path / "shoal.toml", {}, {})
    rules = LimitRules(config)

    def told(user: str | None, *groups: str) -> tuple[int, int, int]:
        found = rules.of(Principal(user, b"c", None, 0, groups=groups))
        rate = 0 if found.rates is None else found.rates.messages_per_second_max
        return rate, found.session.subscriptions_max, found.connections_per_user_max

    assert told("gateway", "guests") == (1000, 10_000, 0)
    assert told("ann", "guests") == (5, 10, 2)
    assert told("ann") == told(None) == (0, 10_000, 0)


def test_the_page_asks_a_server(tmp_path: Path) -> None:
    (settings,) = [block for block in blocks("toml") if 'type = "http"' in block]
    (question,) = [json.loads(block) for block in blocks("json")]

    def decide(asked: Asked) -> Answer:
        said = json.loads(asked.body)
        assert set(said) == set(question)
        return 200, {}, json.dumps({"result": "allow" if said == question else "deny"}).encode()

    assert '`{"result": "allow"}`' in PAGE
    with running(Backend(decide)) as backend:
        (tmp_path / "shoal.toml").write_text(settings.replace("127.0.0.1:8080", f"127.0.0.1:{backend.port}"))
        with BrokerProcess(tmp_path, "--config", str(tmp_path / "shoal.toml"), "--workers", "2") as broker:
            publish = "shoal pub --user ann -i meter-7 -q 1 -m x -t "
            done = run(tmp_path, publish + "plant/pump", broker.port)
            assert done.returncode == 0, done.stderr
            done = run(tmp_path, publish + "plant/other", broker.port)
            assert done.returncode != 0
            assert "not authorized" in done.stderr.lower(), done.stderr
            for topic, said in (("plant/pump", "yes"), ("plant/third", "no")):
                shown = run(tmp_path, f"shoal admin --data-dir data acl meter-7 publish {topic} --user ann "
                            "--address 127.0.0.1 --qos 1", broker.port)  # fmt: skip
                assert shown.stdout.startswith(f"{said}: authorizer 1, {backend.url[:20]}"), shown
            shown = run(tmp_path, "shoal admin --data-dir data reload", broker.port)
            assert shown.returncode == 0, shown
            assert backend.url[:20] in shown.stdout
