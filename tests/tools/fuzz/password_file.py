"""Password files: any bytes are users and hashes, or an error that names a line and quotes nothing; changes are exact.

An input is a password file.
"""

from __future__ import annotations

import random
from collections.abc import Hashable

from broker.auth.password_hash import PasswordHash
from broker.auth.password_lines import PasswordLineError, PasswordLines
from tests.tools.fuzz.mutate import mutated
from tests.tools.fuzz.target import Target

SALT, LONG = b"AQEBAQEBAQEBAQEB", b"AQEB" * 21 + b"AQ"
HASHES = (
    b"$6$" + SALT + b"$" + LONG + b"==",
    b"$7$101$" + SALT + b"$" + LONG + b"==",
    b"$7$1000$" + LONG + b"==$" + LONG + b"==",
    b"$argon2id$v=19$m=47104,t=1,p=1$" + LONG + b"$" + LONG,
    b"$argon2id$v=19$m=8,t=1,p=1$AQEBAQEBAQEBAQEBAQEBAQ$" + LONG,
)
NAMES = (b"ann", b"bob", b"zo\xc3\xab", b"a b", b"#c", b"\xff", b"", b"d" * 300)
LINES = (b"# a comment", b"", b"  ", b"no colon", b"#ann:$6$x", b"\t", b"plain:secretsecret")
TOKENS = (b":", b"$", b"\r", b"\n", b"\0", b"=", b"$7$", b"$6$", b"$argon2id$v=19$", b"m=", b",t=0", b"99999999999")
STORED = HASHES[0]


def make(draw: random.Random) -> bytes:
    """Return a file of a few users, comments and faults."""
    lines = []
    for _ in range(draw.randrange(6)):
        if draw.random() < 0.3:
            lines.append(draw.choice(LINES))
        else:
            blank = draw.choice((b"", b"", b" ", b"\t"))
            lines.append(draw.choice(NAMES) + blank + b":" + blank + draw.choice(HASHES))
    data = draw.choice((b"\n", b"\r\n")).join(lines) + draw.choice((b"", b"\n"))
    if draw.random() < 0.4:
        at = draw.randrange(len(data) + 1)
        data = data[:at] + draw.choice(TOKENS) + data[at:]
    return mutated(draw, data) if draw.random() < 0.4 else data


def check(data: bytes) -> Hashable:
    """Read it, change it, and read it again."""
    try:
        lines = PasswordLines(data)
    except PasswordLineError as error:
        assert 1 <= error.line <= data.count(b"\n") + 1
        assert str(error).isprintable()
        assert "secret" not in str(error)
        return str(error).partition(": ")[2][:40]
    kinds = []
    for name, stored in lines.hashes.items():
        assert name
        assert ":" not in name
        kinds.append(PasswordHash(stored).kind)
    changed = PasswordLines(lines.with_user("ann", STORED))
    assert changed.hashes == {**lines.hashes, "ann": STORED}
    assert changed.skipped == lines.skipped
    gone = PasswordLines(changed.without_user("ann")).hashes
    assert gone == {name: stored for name, stored in lines.hashes.items() if name != "ann"}
    return tuple(sorted(kinds)), len(lines.skipped)


TARGET = Target("password_file", 1500, make, check)
