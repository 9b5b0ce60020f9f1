"""A broker that other machines would reach, and that asks nobody for a password: the error has the commands for it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from pathlib import Path

import pytest

from tests.processes.test_security_page import run


@pytest.mark.parametrize("with_file", [True, False])
def test_the_error_for_an_open_address_names_the_three_commands_that_close_it(tmp_path: Path, with_file: bool) -> None:
    # Proves nothing of the address itself: nothing here listens where others could reach it.
    folder = tmp_path / 'it\'s 100% "mine"'
    folder.mkdir()
    asked = "shoal serve --listen tcp://0.0.0.0:0 --workers 1 --data-dir data"
    settings = folder / "own folder" / "my.toml"
    if with_file:
        settings.parent.mkdir()
        settings.write_text("[limits]\nconnections_max = 50")  # without a line's end
        asked += f" --config 'own folder/{settings.name}'"
    refused = run(folder, asked)
    assert refused.returncode == 2
    assert "expected a loopback address, because there is no authentication" in refused.stderr
    add, settle, start = re.findall(r"^    (.*)$", refused.stderr, re.MULTILINE)
    assert add.startswith("shoal passwd ")

    assert run(folder, f"echo right | {add} --stdin").returncode == 0
    assert run(folder, settle).returncode == 0
    environment = {**os.environ, "PATH": f"{folder / 'bin'}:{os.environ['PATH']}"}
    local = "exec " + start.replace("0.0.0.0", "127.0.0.1")
    with subprocess.Popen(
        ["sh", "-ec", local], cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as broker:
        assert broker.stdout is not None
        try:
            found = None
            while found is None:
                line = broker.stdout.readline()
                assert line, "the broker has not started"
                found = re.search(r"tcp://127\.0\.0\.1:(\d+)", line)
            publish = f"shoal pub --url tcp://127.0.0.1:{found[1]} -t hello -m hi"
            assert run(folder, f"MQTT_PASSWORD=right {publish} --user ann").returncode == 0
            assert run(folder, f"MQTT_PASSWORD=wrong {publish} --user ann").returncode != 0
            assert run(folder, publish).returncode != 0
        finally:
            broker.send_signal(signal.SIGTERM)
            broker.stdout.read()
    assert broker.returncode == 0
