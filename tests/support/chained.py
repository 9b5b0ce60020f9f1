"""Authenticators and rules of files, under which conversations go as they go without."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from broker.auth.acl_lines import AclLines
from broker.auth.chain import Chain
from broker.auth.hashing import Hashing
from broker.auth.password_file import PasswordFile
from broker.auth.password_hash import new_hash
from broker.auth.rule_chain import RuleChain
from broker.auth.rule_set import RuleSet
from broker.auth.verified_logins import VerifiedLogins
from broker.config.loader import Config

LOGIN = USER, PASSWORD = "ann", b"the password"

# What conversations may do: everything but what lies below secret/. Of each topic filter with wildcards something may
# not be read, so that all of these are narrowed.
OF_EACH = """
topic readwrite #
topic readwrite $own/#
topic readwrite $SYS/#
topic readwrite $SYSTEM/#
topic deny secret/#
topic deny never
topic deny +/never
topic deny +/+/never
"""
RULES = OF_EACH + "".join(f"user {name}{OF_EACH}" for name in (USER, "toy", "fine", "u"))


@cache
def _password_file() -> PasswordFile:
    with TemporaryDirectory() as folder:
        file = Path(folder) / "users"
        hashed = new_hash(PASSWORD, "sha512-pbkdf2", 1)
        file.write_bytes(USER.encode() + b":" + hashed + b"\n")
        # No process hashes while virtual time stands still: the user has come before.
        verified = VerifiedLogins()
        verified.add(USER, hashed, PASSWORD)
        return PasswordFile(1, str(file), Hashing(1), verified)


def chain_of(config: Config, behind: Any) -> Chain:
    """Return a password file that lets USER in, and leaves all others to another authenticator."""
    return Chain(config, [_password_file(), behind])


def rule_chain() -> RuleChain:
    """Return the rules."""
    lines = AclLines(RULES.encode(), "acl.conf")
    return RuleChain([RuleSet(lines.rules, lines)])
