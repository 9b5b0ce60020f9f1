"""docs/security.md: from open to closed, by the commands and settings that stand there."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from broker.auth.password_hash import PasswordHash
from broker.auth.password_lines import PasswordLines
from tests.support.front_ends import program
from tests.support.http_backend import Answer, Asked, Backend, running
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
    return subprocess.run(
        ["sh", "-ec", command.replace("8883", str(port))],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


def here(folder: Path, settings: str) -> str:
    """Return settings of the page as a test has them: nothing listens where others reach it, its files are here."""
    local = settings.replace("tls://0.0.0.0:8883", "tls://127.0.0.1:0")
    return re.sub(r'"((?:server|issuer|users)[\w.]*)"', lambda found: f'"{folder / found[1]}"', local)


def test_the_page_closes_a_broker(tmp_path: Path) -> None:
    publish = block("sh", "MQTT_PASSWORD='correct")
    for command in (block("sh", "| shoal passwd users ann"), block("sh", "-keyout server.key")):
        done = run(tmp_path, command)
        assert done.returncode == 0, done.stderr
    settings = block("toml", 'file = "users"')
    (tmp_path / "shoal.toml").write_text(here(tmp_path, settings))
    with BrokerProcess(tmp_path, "--config", str(tmp_path / "shoal.toml")) as broker:
        port = broker.ports["tls"]
        done = run(tmp_path, publish, port)
        assert done.returncode == 0, done.stderr
        refused = [
            (publish.replace("MQTT_PASSWORD='correct", "MQTT_PASSWORD='wrong"), "bad_user_name_or_password"),
            (publish.replace("--user ann", "--user zoe"), "bad_user_name_or_password"),
            (publish.replace("--user ann", "").replace("MQTT_PASSWORD=", "UNUSED="), "not_authorized"),
        ]
        for command, reason in refused:
            before = len(broker.events("connection_ended", reason=reason))
            assert run(tmp_path, command, port).returncode != 0
            wait_until(
                lambda reason=reason, before=before: (
                    len(  # type: ignore[misc]
                        broker.events("connection_ended", reason=reason)
                    )
                    > before
                ),
                reason,
            )
        found = next(iter(broker.events("connection_ended", reason="bad_user_name_or_password")))
        example = block("json", "connection_ended")
        assert set(json.loads(example)) == set(found) - {"timestamp", "level"}
        # fail2ban finds each of them, and puts an address where <ADDR> is.
        pattern = re.search(r'^`("address".*)`\. ', PAGE, re.MULTILINE)
        assert pattern is not None
        expression = re.compile(pattern[1].replace("<ADDR>", r"(?P<address>[0-9a-f.:]+)"))
        addresses = [
            found["address"] for line in broker.log.read_text().splitlines() if (found := expression.search(line))
        ]
        assert addresses == ["127.0.0.1"] * 3


def test_the_page_keeps_clients_out(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path) as broker:
        commands = block("sh", "shoal admin ban")
        done = run(tmp_path, commands.replace("shoal admin", f"shoal admin --data-dir {broker.folder / 'data'}"))
        assert done.returncode == 0, done.stderr
        assert re.findall(r"^(?:address|user|client) +(\S+)", done.stdout, re.MULTILINE) == [
            "203.0.113.0/24",
            "pump-17",
            "ann",
        ]
        assert done.stdout.endswith("The user ann is banned no more.\n")


def test_the_page_lets_in_who_has_a_token(tmp_path: Path) -> None:
    for command in (block("sh", "-keyout server.key"), block("sh", "openssl ecparam")):
        done = run(tmp_path, command)
        assert done.returncode == 0, done.stderr
    listener = block("toml", 'file = "users"').partition("[[authenticator]]")[0]
    (tmp_path / "shoal.toml").write_text(here(tmp_path, listener + block("toml", 'keys = ["issuer.pem"]')))
    signed = subprocess.run(
        [sys.executable, "-c", block("python", "jwt.encode")], cwd=tmp_path, capture_output=True, text=True, check=True
    ).stdout.strip()
    publish = f"TOKEN={signed}\n" + block("sh", "$TOKEN")
    with BrokerProcess(tmp_path, "--config", str(tmp_path / "shoal.toml")) as broker:
        port = broker.ports["tls"]
        done = run(tmp_path, publish, port)
        assert done.returncode == 0, done.stderr
        # As another client than the token says.
        assert run(tmp_path, publish.replace("-i meter-7", "-i meter-8"), port).returncode != 0
        (refused,) = wait_until(lambda: broker.events("token_refused"), "its line in the log")
        assert refused["what"] == "its claim client does not say what it has to"
        assert signed not in broker.log.read_text()
        # What it may do, it may say itself.
        rules = block("json", "${clientid}")
        said = block("python", "jwt.encode").replace('"client":', f'"acl": {rules}, "client":')
        signed = subprocess.run(
            [sys.executable, "-c", said], cwd=tmp_path, capture_output=True, text=True, check=True
        ).stdout.strip()
        publish = f"TOKEN={signed}\n" + block("sh", "$TOKEN").replace("-t hello", "-q 1 -t plant/pump")
        done = run(tmp_path, publish, port)
        assert done.returncode == 0, done.stderr
        assert run(tmp_path, publish.replace("plant/pump", "plant/main/pump"), port).returncode != 0
        assert run(tmp_path, publish.replace("plant/pump", "elsewhere"), port).returncode != 0


def signed_for(folder: Path, replaced: str, by: str) -> str:
    """Return what the page's issuer signs, with something else in it."""
    said = block("python", "jwt.encode").replace(replaced, by)
    return subprocess.run(
        [sys.executable, "-c", said], cwd=folder, capture_output=True, text=True, check=True
    ).stdout.strip()


@pytest.mark.parametrize("workers", ["1", "3"])
def test_the_page_renews_a_token(tmp_path: Path, workers: str) -> None:
    for command in (block("sh", "-keyout server.key"), block("sh", "openssl ecparam")):
        done = run(tmp_path, command)
        assert done.returncode == 0, done.stderr
    listener = block("toml", 'file = "users"').partition("[[authenticator]]")[0]
    (tmp_path / "shoal.toml").write_text(here(tmp_path, listener + block("toml", 'keys = ["issuer.pem"]')))
    first, longer, other = (
        signed_for(tmp_path, *change)
        for change in (("3600", "600"), ("3600", "7200"), ('"sub": "ann"', '"sub": "bob"'))
    )
    with BrokerProcess(tmp_path, "--config", str(tmp_path / "shoal.toml"), "--workers", workers) as broker:
        said = []
        for following in (longer, other):
            done = subprocess.run(
                [sys.executable, "-c", block("python", "$auth/renew").replace("8883", str(broker.ports["tls"]))],
                cwd=tmp_path,
                env={**os.environ, "TOKEN": first, "NEXT_TOKEN": following},
                capture_output=True,
                text=True,
                check=True,
            )
            topic, _, answer = done.stdout.strip().partition(" ")
            assert topic == "$auth/result"
            said.append(json.loads(answer))
        assert said[0]["ok"] is True
        assert said[0]["expires_at"] > time.time() + 3600
        assert said[1] == {"ok": False, "error": "the token is another client's"}
        for signed in (first, longer, other):
            for part in signed.split(".")[1:]:
                assert part not in broker.log.read_text()


def test_the_page_asks_a_server(tmp_path: Path) -> None:
    assert run(tmp_path, block("sh", "-keyout server.key")).returncode == 0
    question = json.loads(block("json", '"client_identifier"'))
    answer = {"result": "allow"}
    assert f"`{json.dumps(answer)}`" in PAGE

    def decide(asked: Asked) -> Answer:
        said = json.loads(asked.body)
        assert set(said) == set(question)
        return 200, {}, json.dumps(answer if said["user_name"] == "ann" else {"result": "deny"}).encode()

    with running(Backend(decide)) as backend:
        settings = block("toml", 'file = "users"').partition("[[authenticator]]")[0] + block("toml", "urls = ").replace(
            "127.0.0.1:8080", f"127.0.0.1:{backend.port}"
        )
        (tmp_path / "shoal.toml").write_text(here(tmp_path, settings))
        publish = block("sh", "MQTT_PASSWORD='correct")
        with BrokerProcess(tmp_path, "--config", str(tmp_path / "shoal.toml")) as broker:
            port = broker.ports["tls"]
            for _ in range(2):
                done = run(tmp_path, publish.replace("--user", "-i meter-7 --user"), port)
                assert done.returncode == 0, done.stderr
            assert len(backend.asked) == 1  # the second time it is remembered
            assert run(tmp_path, publish.replace("--user ann", "--user zoe"), port).returncode != 0
            assert "correct horse" not in broker.log.read_text()


def test_the_page_knows_clients_by_their_certificates_and_keys(tmp_path: Path) -> None:
    for word in ("-keyout server.key", "meter-7.csr"):
        done = run(tmp_path, block("sh", word))
        assert done.returncode == 0, done.stderr
    key = "00112233445566778899aabbccddeeff"
    (tmp_path / "devices.psk").write_text(f"meter-7:{key}\n")
    settings = here(tmp_path, block("toml", "cert.cn") + block("toml", "psk.identity"))
    settings = re.sub(r"tls://0.0.0.0:888[56]", "tls://127.0.0.1:0", settings)
    settings = re.sub(r'"(ca.crt|devices.psk)"', lambda found: f'"{tmp_path / found[1]}"', settings)
    (tmp_path / "shoal.toml").write_text(settings)
    publish = block("sh", "--cert meter-7.crt")
    with BrokerProcess(tmp_path, "--config", str(tmp_path / "shoal.toml")) as broker:
        (_, by_certificate), (_, by_key) = [one for one in broker.addresses if one[0] == "tls"]
        done = run(tmp_path, publish.replace("8885", str(by_certificate)))
        assert done.returncode == 0, done.stderr
        without = publish.replace("--cert meter-7.crt --key meter-7.key", "")
        assert run(tmp_path, without.replace("8885", str(by_certificate))).returncode != 0
        keyed = f"shoal pub --url tls://localhost:{by_key} --psk {key} --psk-identity meter-7 -t hello -m hi"
        done = run(tmp_path, keyed)
        assert done.returncode == 0, done.stderr
        assert run(tmp_path, keyed.replace(key, key[::-1])).returncode != 0
        wait_until(lambda: len(broker.events("client_connected", user="meter-7")) == 2, "both have come")


def test_the_page_makes_a_user_who_can_prove_its_password(tmp_path: Path) -> None:
    for word in ("| shoal passwd users ann", "-keyout server.key", "--hash scram-sha-256"):
        done = run(tmp_path, block("sh", word))
        assert done.returncode == 0, done.stderr
    hashes = PasswordLines((tmp_path / "users").read_bytes()).hashes
    assert [PasswordHash(stored).kind for stored in hashes.values()] == ["argon2id", "scram-sha-256"]
    (tmp_path / "shoal.toml").write_text(here(tmp_path, block("toml", 'file = "users"')))
    publish = block("sh", "MQTT_PASSWORD='correct").replace("ann", "meter-7").replace("correct horse ", "")
    with BrokerProcess(tmp_path, "--config", str(tmp_path / "shoal.toml")) as broker:
        done = run(tmp_path, publish, broker.ports["tls"])
        assert done.returncode == 0, done.stderr


def test_the_page_has_roles_that_mosquitto_ctrl_changes(tmp_path: Path) -> None:
    program("mosquitto_ctrl")
    done = run(tmp_path, block("sh", "shoal dynsec init"))
    assert done.returncode == 0, done.stderr
    settings = block("toml", "dynamic_security").replace('file = "', f'file = "{tmp_path}/')
    (tmp_path / "shoal.toml").write_text(settings)
    with BrokerProcess(tmp_path, "--config", str(tmp_path / "shoal.toml")) as broker:
        commands = block("sh", "mosquitto_ctrl")
        done = run(tmp_path, commands.replace("-p 1883", f"-h 127.0.0.1 -p {broker.port}"))
        assert done.returncode == 0, done.stderr
        publish = (
            f"MQTT_PASSWORD='a password of ann' shoal pub --url mqtt://127.0.0.1:{broker.port} --user ann -q 1 -m hi"
        )
        assert run(tmp_path, f"{publish} -i c1 -t plant/c1/a").returncode == 0
        done = run(tmp_path, f"{publish} -i c1 -t plant/c2/a")
        assert "not authorized" in done.stderr + done.stdout
