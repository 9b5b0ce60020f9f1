"""The configuration file: any bytes are settings, or problems that are named.

An input is a TOML file.
"""

from __future__ import annotations

import random
import tempfile
from collections.abc import Hashable
from pathlib import Path

from broker.config.loader import SETTINGS, Config, ConfigError, load, parse_address, rendered
from tests.tools.fuzz.mutate import mutated
from tests.tools.fuzz.target import Target

VALUES = (
    "0",
    "1",
    "-1",
    "4",
    "1024",
    "65535",
    "65536",
    "4294967295",
    "18446744073709551616",
    "1e3",
    "1.5",
    "nan",
    "inf",
    "-inf",
    "0x10",
    "true",
    "false",
    '""',
    '"info"',
    '"a"',
    "''",
    "[]",
    "[1]",
    '["tcp://127.0.0.1:0"]',
    '["tcp://[::1]:1883", "tcp://localhost:1884"]',
    "{}",
    "{ a = 1 }",
    "1979-05-27",
    "1979-05-27T07:32:00Z",
    "07:32:00",
    '"\\u0000"',
    '"\\ud800"',
    "9" * 25,
    "9" * 5000,
    "[" * 20,
    "[" * 1200 + "]" * 1200,
)
TOKENS = (b"[mqtt]", b"[limits]", b"[[mqtt]]", b"[log.file]", b"\n", b"=", b".", b'"', b"'''", b"#", b"\xff", b"\0")


def make(draw: random.Random) -> bytes:
    """Return a file that gives some settings, with values that may or may not be theirs."""
    if draw.random() < 0.2:
        return mutated(draw, rendered(Config()).encode())
    lines = []
    section = ""
    for key in sorted(draw.sample(sorted(SETTINGS), draw.randint(1, 6)), key=lambda key: ("." in key, key)):
        if key.rpartition(".")[0] != section:
            section = key.rpartition(".")[0]
            lines.append(f"[{section}]")
        default = rendered_default(key)
        lines.append(f"{key.rpartition('.')[2]} = {default if draw.random() < 0.6 else draw.choice(VALUES)}")
    text = "\n".join(lines).encode()
    if draw.random() < 0.3:
        at = draw.randrange(len(text) + 1)
        text = text[:at] + draw.choice(TOKENS) + text[at:]
    return mutated(draw, text) if draw.random() < 0.3 else text


def rendered_default(key: str) -> str:
    """Return a setting's default as TOML has it, or a text for one that is unset."""
    default = SETTINGS[key].default
    if isinstance(default, bool):
        return str(default).lower()
    if isinstance(default, tuple):
        return str(list(default)).replace("'", '"')
    return f'"{default}"' if isinstance(default, str) else str(default if default is not None else '"x"')


def check(data: bytes) -> Hashable:
    """Load it; what is wrong is named, and what is right is the same when it is written and read again."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "shoal.toml"
        file.write_bytes(data)
        try:
            config = load(file, {}, {})
        except ConfigError as error:
            for problem in error.problems:
                assert problem.expected
                assert len(str(problem)) < 5000, problem
            return frozenset((problem.key, problem.expected[:20]) for problem in error.problems)
        file.write_text(rendered(config), encoding="utf-8")
        assert load(file, {}, {}) == config
    for address in config.listen:
        parse_address(address)
    # As the worker takes them.
    assert int(config.limits.connect_timeout_s * 1000) >= 250
    assert int(config.limits.packet_timeout_s * 1000) >= 1000
    assert config.shutdown.drain_s >= 0
    return data.count(b"\n")


TARGET = Target("configuration", 200, make, check)
