"""Which settings change while the broker runs, and what differs between two configurations."""

from __future__ import annotations

from typing import Any, Final, Literal, NamedTuple

import msgspec

from broker.config.loader import SETTINGS, Config
from broker.config.setting import TABLES, shown

How = Literal["now", "new", "restart", "start"]

HOW_IN_WORDS: Final[dict[How, str]] = {
    "now": "at once",
    "new": "for clients that connect from then on",
    "restart": "after a restart of the workers",
    "start": "after a start of the broker",
}

NOW: Final = frozenset(
    [
        "log.level", "log.connections", "mqtt.explain_to_clients", "mqtt.payload_bytes_max",
        "replay.allow_anonymous", "mqtt.queue_qos0", "mqtt.queue_messages_max", "mqtt.queue_bytes_max",
        "mqtt.queue_overflow", "mqtt.queue_rules", "mqtt.queue_push_back_s", "limits.connections_max",
        "limits.sessions_max", "limits.connects_per_second_max", "limits.connect_bytes_max",
        "limits.control_packet_bytes_max", "limits.packet_timeout_s", "limits.pending_bytes_max",
        "limits.output_buffer_bytes_max", "limits.subscriptions_per_client_max", "limits.topic_levels_max",
        "limits.wildcard_levels_max", "limits.topic_bytes_max", "limits.retained_messages_max",
        "limits.retained_bytes_max", "limits.alias_bytes_max", "mesh.owed_bytes_max", "shutdown.drain_s",
        "shutdown.wait_s", "shutdown.clients_per_second", "shutdown.server_reference",
        "processes.restarts_max", "processes.restarts_within_s"
    ]
)  # fmt: skip
NEW: Final = frozenset(
    [
        "mqtt.keep_alive_max_s", "mqtt.session_expiry_interval_max_s", "mqtt.client_identifier_3_1_max",
        "mqtt.empty_client_identifier", "mqtt.auto_id_prefix", "mqtt.response_information",
        "mqtt.server_reference", "mqtt.server_reference_use", "mqtt.topic_alias_maximum_out",
        "mqtt.inflight_max", "limits.tcp_keepalive_s", "limits.connect_timeout_s",
        "limits.messages_per_second_max", "limits.bytes_per_second_max"
    ]
)  # fmt: skip
# What the supervisor has and its workers are given: its sockets, its log, the folder, how many they are.
START: Final = frozenset(
    [
        "workers", "listen", "listener", "data_dir", "http.listen", "log.file", "log.format", "log.queue_max",
        "limits.memory_bytes_max", "authenticator", "processes.stall_s"
    ]
)  # fmt: skip


def how_it_changes(key: str) -> How:
    """Return when another value of a setting counts; a table is named as its kind: `listener`."""
    if key in NOW:
        return "now"
    if key in NEW:
        return "new"
    return "start" if key in START else "restart"


class Change(NamedTuple):
    """One setting that differs.

    Attributes:
        before, after: its values; None for tables, which may hold secrets.
    """

    key: str
    before: Any
    after: Any

    @property
    def how(self) -> How:
        """When the later value counts."""
        return how_it_changes(self.key)

    def __str__(self) -> str:
        if self.key in TABLES:
            return f"[[{self.key}]]"
        return f"{self.key}: {shown(self.before)} -> {shown(self.after)}"

    def described(self) -> dict[str, Any]:
        """Return it as JSON."""
        return {"key": self.key, "from": self.before, "to": self.after, "counts": HOW_IN_WORDS[self.how]}


def value_of(config: Config, key: str) -> Any:
    """Return a setting's value, by its dotted key."""
    section, _, name = key.rpartition(".")
    return getattr(getattr(config, section) if section else config, name)


def differences(before: Config, after: Config) -> list[Change]:
    """Return what another configuration changes, in the order of the settings, tables last."""
    changes = [
        Change(key, older, newer)
        for key in SETTINGS
        if (older := value_of(before, key)) != (newer := value_of(after, key))
    ]
    return changes + [Change(table, None, None) for table in TABLES if getattr(before, table) != getattr(after, table)]


def taken_over(config: Config, after: Config, hows: frozenset[How] = frozenset(("now", "new"))) -> Config:
    """Return a configuration with those settings of another one that change in one of these ways."""
    sections: dict[str, dict[str, Any]] = {}
    for change in differences(config, after):
        if change.how in hows:
            section, _, name = change.key.rpartition(".")
            sections.setdefault(section, {})[name] = value_of(after, change.key)
    top = sections.pop("", {})
    for section, values in sections.items():
        top[section] = msgspec.structs.replace(getattr(config, section), **values)
    return msgspec.structs.replace(config, **top)
