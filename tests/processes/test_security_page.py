"""docs/security.md: from open to closed, by the commands and settings that stand there."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

from tests.support.process import ROOT, BrokerProcess
from tests.support.raw_client import wait_until

PAGE = (ROOT / "docs" / "security.md").read_text(encoding="utf-8")


def block(kind: str, word: str) -> str:
    """Return the one block of a kind that has a word in it."""
    blocks = re.findall(rf"^```{kind}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    (found,) = [text for text in blocks if word in text]
    return str(found)


def run(folder: Path, command: str, port: int = 8883) -> subprocess.CompletedProcess[str]:
    """Run a command of the page as a person has it: `shoal` on the path, the folder of the files."""
    bin_folder = folder / "bin"
    bin_folder.mkdir(exist_ok=True)
    shoal = bin_folder / "shoal"
    shoal.write_text(f'#!/bin/sh\nPYTHONPATH={ROOT} exec {sys.executable} -m broker.cli.main "$@"\n')
    shoal.chmod(0o755)
    environment = {**os.environ, "PATH": f"{bin_folder}:{os.environ['PATH']}"}
    return subprocess.run(["sh", "-ec", command.replace("8883", str(port))], cwd=folder, env=environment,
                          capture_output=True, text=True, check=False)


def test_the_page_closes_a_broker(tmp_path: Path) -> None:
    publish = block("sh", "shoal pub")
    for command in (block("sh", "| shoal passwd"), block("sh", "openssl req")):
        done = run(tmp_path, command)
        assert done.returncode == 0, done.stderr
    settings = block("toml", 'file = "users"')
    # Nothing of a test listens where others reach it, and its files are where it is.
    local = settings.replace("tls://0.0.0.0:8883", "tls://127.0.0.1:0")
    for name in ("server.crt", "server.key", "users"):
        local = local.replace(f'"{name}"', f'"{tmp_path / name}"')
    (tmp_path / "shoal.toml").write_text(local)
    with BrokerProcess(tmp_path, "--config", str(tmp_path / "shoal.toml")) as broker:
        port = broker.ports["tls"]
        done = run(tmp_path, publish, port)
        assert done.returncode == 0, done.stderr
        refused = [(publish.replace("MQTT_PASSWORD='correct", "MQTT_PASSWORD='wrong"), "bad_user_name_or_password"),
                   (publish.replace("--user ann", "--user zoe"), "bad_user_name_or_password"),
                   (publish.replace("--user ann", "").replace("MQTT_PASSWORD=", "UNUSED="), "not_authorized")]
        for command, reason in refused:
            before = len(broker.events("connection_ended", reason=reason))
            assert run(tmp_path, command, port).returncode != 0
            wait_until(lambda reason=reason, before=before: len(       # type: ignore[misc]
                broker.events("connection_ended", reason=reason)) > before, reason)
        found = next(iter(broker.events("connection_ended", reason="bad_user_name_or_password")))
        example = block("json", "connection_ended")
        assert set(json.loads(example)) == set(found) - {"timestamp", "level"}
        # fail2ban finds each of them, and puts an address where <ADDR> is.
        pattern = re.search(r'^`("address".*)`\. ', PAGE, re.MULTILINE)
        assert pattern is not None
        expression = re.compile(pattern[1].replace("<ADDR>", r"(?P<address>[0-9a-f.:]+)"))
        addresses = [found["address"] for line in broker.log.read_text().splitlines()
                     if (found := expression.search(line))]
        assert addresses == ["127.0.0.1"] * 3


def test_the_page_keeps_clients_out(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path) as broker:
        commands = block("sh", "shoal admin ban")
        done = run(tmp_path, commands.replace("shoal admin", f"shoal admin --data-dir {broker.folder / 'data'}"))
        assert done.returncode == 0, done.stderr
        assert re.findall(r"^(?:address|user|client) +(\S+)", done.stdout, re.MULTILINE) == [
            "203.0.113.0/24", "pump-17", "ann"]
        assert done.stdout.endswith("The user ann is banned no more.\n")
