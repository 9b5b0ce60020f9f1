"""docs/configuration.md, made of the settings: `python -m broker.config.page` prints it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from broker.config.authenticator import AUTHENTICATOR_TYPES
from broker.config.authenticator_check import AUTHENTICATORS
from broker.config.authorizer import AUTHORIZER_TYPES
from broker.config.authorizer_check import AUTHORIZERS
from broker.config.limit import Limit
from broker.config.limit_check import LIMIT_SETTINGS
from broker.config.listener import Listener
from broker.config.listener_check import LISTENER_SETTINGS
from broker.config.live import HOW_IN_WORDS, how_it_changes
from broker.config.loader import SECTIONS, SETTINGS, shown_default

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from msgspec import Struct

    from broker.config.setting import Setting

INTRODUCTION = """# Settings

Made by `python -m broker.config.page`; do not change it by hand.
[../deploy/shoal.toml](../deploy/shoal.toml) has the same as a file to begin with.

## Where they come from

What comes later counts more:

1. the defaults below;
2. a TOML file: `shoal serve --config shoal.toml`;
3. the environment: `mqtt.receive_maximum` is `SHOAL_MQTT__RECEIVE_MAXIMUM`. A list is `a,b` or, as JSON, `["a", "b"]`;
4. options of `shoal serve`.

`shoal check-config FILE` says every mistake at once. `shoal admin config` shows what a running broker goes by, and
where each value came from; `--changed` leaves out the defaults.

## Changing them while the broker runs

`shoal admin reload` or SIGHUP reads the file again (the environment of a process cannot change) and says of each
setting that differs when it counts:

- *at once*;
- *for clients that connect from then on*: those that are connected keep what they were told;
- *after a restart of the workers*, or *after a start of the broker*: nothing happens until then.

Certificates, password files and rules are read again with them. It is all or nothing: on any mistake the answer says
what it is, the exit code is 1, and nothing has changed. The log has `settings_changed`, or `settings_as_before`.
"""


def page() -> str:
    """Return docs/configuration.md."""
    lines = [INTRODUCTION]
    for section in ("", *SECTIONS):
        doc = (SECTIONS[section].__doc__ or "").strip() if section else "Settings of the broker as a whole."
        lines += [f"## {f'[{section}]' if section else 'The broker'}", "", doc, ""]
        lines += _table(
            (setting.key.rpartition(".")[2], setting, HOW_IN_WORDS[how_it_changes(setting.key)])
            for setting in SETTINGS.values()
            if setting.key.rpartition(".")[0] == section
        )
    lines += _tables("listener", Listener, LISTENER_SETTINGS)
    for name, struct in AUTHENTICATOR_TYPES.items():
        lines += _tables("authenticator", struct, AUTHENTICATORS.settings[name], name)
    for name, authorizer in AUTHORIZER_TYPES.items():
        lines += _tables("authorizer", authorizer, AUTHORIZERS.settings[name], name)
    lines += _tables("limit", Limit, LIMIT_SETTINGS)
    return "\n".join(lines)


def _tables(table: str, struct: type[Struct], settings: Mapping[str, Setting], kind: str = "") -> list[str]:
    of_type = f', type = "{kind}"' if kind else ""
    return [
        f"## [[{table}]]{of_type}",
        "",
        f"{(struct.__doc__ or '').splitlines()[0]} Another table, or another value, counts "
        f"{HOW_IN_WORDS[how_it_changes(table)]}.",
        "",
        *_table((name, setting, "") for name, setting in settings.items()),
    ]


def _table(rows: Iterable[tuple[str, Setting, str]]) -> Iterator[str]:
    yield "| setting | expected | default | meaning |"
    yield "|---|---|---|---|"
    for name, setting, counts in rows:
        default = "required" if setting.default is msgspec.NODEFAULT else f"`{shown_default(setting)}`"
        unit = f" {setting.unit}" if setting.unit else ""
        text = f"{setting.text} *{counts[0].upper()}{counts[1:]}.*" if counts else setting.text
        yield f"| `{name}` | {_cell(setting.expected)}{unit} | {_cell(default)} | {_cell(text)} |"
    yield ""


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    print(page(), end="")
