"""How a broker is closed that has to be before other machines may reach it: the commands, as they can be typed."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

TABLE: Final = '\\n[[authenticator]]\\ntype = "password_file"\\nfile = "{users}"\\n'


def closing_commands(file: Path | None, flags: Mapping[str, Any]) -> tuple[str, str, str]:
    """Return three commands for a shell: a user with a password, settings that ask for it, and the start.

    Args:
        file: with the settings, None: there is none yet.
        flags: of `shoal serve`, by the key of their setting, beside --config.
    """
    settings = Path("shoal.toml") if file is None else file
    users = settings.with_name("users")
    table = TABLE.format(users=str(users).replace("\\", "\\\\\\\\").replace('"', '\\\\"').replace("%", "%%"))
    start = ["shoal", "serve", "--config", str(settings)]
    for key, value in flags.items():
        option = "--" + key.replace(".", "-").replace("_", "-")
        for one in value if isinstance(value, (list, tuple)) else (value,):
            start += [option, str(one)]
    return (
        shlex.join(["shoal", "passwd", str(users), "ann"]),
        f"printf {shlex.quote(table)} >> {shlex.quote(str(settings))}",
        shlex.join(start),
    )
