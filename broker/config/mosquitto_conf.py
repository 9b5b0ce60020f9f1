"""A configuration of mosquitto that is given to Shoal: it is not read, but recognised, and each line answered."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

# What mosquitto calls it, and the setting that is nearest to it here, with what is different if that matters.
NEAREST: Final[Mapping[str, str]] = {
    "listener": 'listen, as in listen = ["tcp://0.0.0.0:1883"]',
    "port": 'listen, as in listen = ["tcp://127.0.0.1:1883"]',
    "bind_address": 'listen, as in listen = ["tcp://127.0.0.1:1883"]',
    "allow_anonymous": "allow_anonymous",
    "password_file": '[[authenticator]]; a table with type = "password_file" and file; the file can stay as it is',
    "acl_file": '[[authorizer]]; a table with type = "acl_file" and file; the file can stay as it is',
    "persistence": "data_dir; what is to be kept is always kept",
    "persistence_location": "data_dir",
    "persistent_client_expiration": "mqtt.session_expiry_interval_max_s",
    "autosave_interval": "storage.durability; whatever is acknowledged is kept at once",
    "autosave_on_changes": "storage.durability; whatever is acknowledged is kept at once",
    "max_keepalive": "mqtt.keep_alive_max_s",
    "message_size_limit": "mqtt.payload_bytes_max",
    "max_packet_size": "mqtt.max_packet_size_bytes",
    "max_inflight_messages": "mqtt.inflight_max, and mqtt.receive_maximum for the other direction",
    "max_queued_messages": "mqtt.queue_messages_max",
    "max_queued_bytes": "mqtt.queue_bytes_max",
    "queue_qos0_messages": "mqtt.queue_qos0",
    "max_connections": "limits.connections_max",
    "global_max_connections": "limits.connections_max",
    "max_topic_alias": "mqtt.topic_alias_maximum",
    "max_topic_alias_broker": "mqtt.topic_alias_maximum_out",
    "max_qos": "mqtt.maximum_qos",
    "retain_available": "mqtt.retain_available",
    "auto_id_prefix": "mqtt.auto_id_prefix",
    "allow_zero_length_clientid": "mqtt.empty_client_identifier",
    "sys_interval": "mqtt.sys_interval_s",
    "memory_limit": "limits.memory_bytes_max",
    "log_dest": "log.file; without it, standard error",
    "log_type": "log.level",
    "connection_messages": "log.level",
    "log_timestamp": "log.format",
    "log_timestamp_format": "log.format",
}
# Those with nothing here that is near, as far as they tell mosquitto's from any other file.
NOTHING_NEAR: Final = frozenset({
    "address", "addresses", "bind_interface", "bridge_cafile", "cafile", "capath", "certfile", "connection",
    "crlfile", "http_dir", "include_dir", "keyfile", "log_facility", "mount_point", "notifications",
    "per_listener_settings", "persistence_file", "pid_file", "plugin", "plugin_opt_config_file", "protocol", "psk_file",
    "psk_hint", "remote_clientid", "remote_password", "remote_username", "require_certificate",
    "retain_expiry_interval", "set_tcp_nodelay",
    "socket_domain", "tls_version", "topic", "try_private", "upgrade_outgoing_qos", "use_identity_as_username",
    "use_subject_as_username", "use_username_as_clientid", "user", "websockets_log_level",
})  # fmt: skip


def recognised(file: Path) -> list[tuple[str, str, str, str]]:
    """Return what is to be said of a file that is no TOML if it is a configuration of mosquitto; nothing if it is not.

    Returns:
        (where in the file, setting, what was found, what is expected) of the file, and of each of its lines.
    """
    lines = [
        (number, line.split(maxsplit=1)[0])
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1)
        if line.strip() and not line.lstrip().startswith("#")
    ]
    known = sum(word in NEAREST or word in NOTHING_NEAR for _, word in lines)
    if not known or 2 * known < len(lines):
        return []
    own = "TOML; `shoal check-config --show /dev/null` lists Shoal's settings"
    answers = [("", "", "a configuration of mosquitto", own)]
    for number, word in lines:
        if word in NEAREST:
            answers.append((f", line {number}", word, "a setting of mosquitto", NEAREST[word]))
        else:
            found = "a setting of mosquitto" if word in NOTHING_NEAR else "an unknown setting"
            answers.append((f", line {number}", word, found, "nothing: leave it out"))
    return answers
