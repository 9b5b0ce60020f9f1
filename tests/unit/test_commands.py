"""What all commands of `shoal` share: the folder that they are about, and what is said of a wrong option."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from broker.cli.main import main
from broker.config.mosquitto_conf import NEAREST, NOTHING_NEAR
from broker.config.schema import RENAMED
from tests.support.process import ROOT


def run(*arguments: str) -> Result:
    return CliRunner(env={"SHOAL_DATA_DIR": "/nowhere/environment"}).invoke(main, list(arguments))


@pytest.mark.parametrize("option", ["--data-dir", "--config"])
@pytest.mark.parametrize("command", [
    ["admin", "status"], ["admin", "clients"], ["admin", "log-level"], ["log", "inspect"], ["log", "verify"],
    ["top"], ["backup", "/nowhere/target"]])  # fmt: skip
def test_the_folder_may_stand_before_and_behind_the_names_of_a_command(
    command: list[str], option: str, tmp_path: Path
) -> None:
    given = str(tmp_path / "missing")
    said = []
    for place in range(len([word for word in command if not word.startswith("/")]) + 1):
        result = run(*command[:place], option, given, *command[place:])
        assert result.exit_code in (1, 2)
        said.append(result.stderr.splitlines()[-1])
        assert given in said[-1], (place, result.output)
    assert len(set(said)) == 1, said


def test_the_configuration_of_a_broker_may_stand_before_and_behind_serve(tmp_path: Path) -> None:
    given = str(tmp_path / "missing")
    before, behind = run("--config", given, "serve"), run("serve", "--config", given)
    assert (before.exit_code, before.stderr) == (behind.exit_code, behind.stderr)
    assert f"file {given}: found No such file or directory" in before.stderr


def test_what_stands_further_behind_counts(tmp_path: Path) -> None:
    near, far = str(tmp_path / "near"), str(tmp_path / "far")
    assert near in run("--data-dir", far, "admin", "status", "--data-dir", near).stderr
    assert near in run("admin", "--data-dir", far, "status", "--data-dir", near).stderr
    assert near in run("--data-dir", far, "log", "--data-dir", near, "inspect").stderr


@pytest.mark.parametrize("command", ["sub", "pub", "check-config"])
def test_a_command_without_a_folder_says_so(command: str) -> None:
    given = {"sub": ["-t", "a"], "pub": ["-t", "a", "-m", "x"], "check-config": ["/nowhere"]}[command]
    result = run("--data-dir", "/nowhere", command, *given)
    assert (result.exit_code, result.stderr.splitlines()[-1]) == (2, f"Error: {command} takes no --data-dir")


@pytest.mark.parametrize(("line", "meant"), [
    ("serve -p 1883", "--listen"), ("serve --port 1883", "--listen"), ("serve -c x", "--config"),
    ("serve -v", "--log-level"), ("serve --datadir x", "--data-dir"), ("sub --id x", "--client-identifier"),
    ("sub --pw x", "--password"), ("sub --username x", "--user"), ("sub --keepalive 3", "--keep-alive"),
    ("sub -c", "--no-clean-start"), ("sub --disable-clean-session", "--no-clean-start"),
    ("sub -x 3", "--session-expiry-interval"), ("sub --topics a", "--topic"), ("sub --property a", "--user-property"),
    ("sub --server h", "--host"), ("pub --msg x", "--message"), ("pub --retained", "--retain"),
    ("pub -D a", "--user-property"), ("admin status --jsn", "--json"), ("--datadir x serve", "--data-dir"),
])  # fmt: skip
def test_a_wrong_option_is_answered_with_the_one_that_is_meant(line: str, meant: str) -> None:
    result = run(*line.split())
    assert result.exit_code == 2
    assert result.stderr.splitlines()[-1].endswith(f"Did you mean '{meant}'?"), result.stderr


@pytest.mark.parametrize("line", ["sub --msg x", "serve --quiet", "sub -Z", "admin clients --since 3"])
def test_where_nothing_is_near_nothing_is_suggested(line: str) -> None:
    assert "Did you mean" not in run(*line.split()).stderr


def test_a_configuration_of_mosquitto_is_recognised_and_answered_line_by_line(tmp_path: Path) -> None:
    file = tmp_path / "mosquitto.conf"
    file.write_text("# ours\nlistener 1883 0.0.0.0\n\nmax_keepalive 60\nacl_file /etc/acl\nfoo bar\n", encoding="utf-8")
    result = run("check-config", str(file))
    assert result.exit_code == 1
    assert result.stderr.splitlines() == [
        f"file {file}: found a configuration of mosquitto, expected TOML; `shoal check-config --show /dev/null` lists "
        "Shoal's settings",
        f"file {file}, line 2: listener: found a setting of mosquitto, expected {NEAREST['listener']}",
        f"file {file}, line 4: max_keepalive: found a setting of mosquitto, expected mqtt.keep_alive_max_s",
        f"file {file}, line 5: acl_file: found a setting of mosquitto, expected {NEAREST['acl_file']}",
        f"file {file}, line 6: foo: found an unknown setting, expected nothing: leave it out",
    ]


def test_another_file_is_not_taken_for_one_of_mosquitto(tmp_path: Path) -> None:
    file = tmp_path / "shoal.toml"
    file.write_text('listen = ["tcp://127.0.0.1:1883"\n[mqtt]\nuser agent\nsome text\n', encoding="utf-8")
    assert "mosquitto" not in run("check-config", str(file)).stderr


def test_what_is_named_as_nearest_is_a_setting() -> None:
    from broker.config.loader import SETTINGS

    known = {*SETTINGS, "[[authenticator]]", "[[authorizer]]"}
    for nearest in NEAREST.values():
        assert nearest.partition(",")[0].partition(";")[0] in known, nearest
    assert not set(NEAREST) & NOTHING_NEAR
    assert not set(RENAMED) & set(SETTINGS)


@pytest.mark.parametrize("name", ["router", "mesh", "broker"])
@pytest.mark.parametrize("is_package", [True, False])
def test_a_module_of_a_program_that_stands_in_the_way_is_named(tmp_path: Path, name: str, is_package: bool) -> None:
    own = tmp_path / name / "__init__.py" if is_package else tmp_path / f"{name}.py"
    own.parent.mkdir(exist_ok=True)
    own.write_text("", encoding="utf-8")
    program = tmp_path / "program.py"
    program.write_text("import shoal\n", encoding="utf-8")
    ran = subprocess.run(
        [sys.executable, str(program)], env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False
    )
    said = ran.stderr.splitlines()[-1]
    assert said.startswith(f"ImportError: Shoal cannot be imported: {own} stands in the way of its package {name!r}")
    assert "Give yours another name" in said
