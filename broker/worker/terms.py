"""What a worker's router and its connections go by, as the settings have it."""

from __future__ import annotations

from random import SystemRandom
from typing import TYPE_CHECKING, Any

from broker.config.loader import parse_queue_rule
from router.sessions.ledger import Ledger
from router.sessions.queue_policy import OverflowRules

if TYPE_CHECKING:
    from broker.config.loader import Config


def overflow_rules(config: Config) -> OverflowRules:
    """Return what becomes of messages for which a queue has no room."""
    mqtt = config.mqtt
    return OverflowRules(
        mqtt.queue_overflow, [parse_queue_rule(text) for text in mqtt.queue_rules], SystemRandom().getrandbits(64)
    )


def ledger(config: Config) -> Ledger:
    """Return the limits and counters that a worker's router starts with."""
    mqtt, limits = config.mqtt, config.limits
    # fmt: off
    return Ledger(mqtt.queue_messages_max, mqtt.queue_bytes_max, mqtt.inflight_max, mqtt.queue_qos0,
                  limits.retained_messages_max, limits.retained_bytes_max, overflow=overflow_rules(config),
                  push_back_ms=round(mqtt.queue_push_back_s * 1000), peer_bytes_max=config.mesh.owed_bytes_max)
    # fmt: on


def terms(config: Config) -> dict[str, Any]:
    """Return the keyword arguments of a Hub, but the time: all of them come from settings."""
    mqtt, limits = config.mqtt, config.limits
    return {
        "packet_bytes_max": mqtt.max_packet_size_bytes,
        "payload_bytes_max": mqtt.payload_bytes_max or 0xFFFFFFFF,
        "control_bytes_max": limits.control_packet_bytes_max,
        "receive_maximum": mqtt.receive_maximum,
        "receive_maximum_waits": mqtt.receive_maximum_exceeded == "wait",
        "alias_max": mqtt.topic_alias_maximum,
        "alias_bytes_max": limits.alias_bytes_max,
        "output_bytes_max": limits.output_buffer_bytes_max,
        "pending_bytes_max": limits.pending_bytes_max,
        "connect_timeout_ms": int(limits.connect_timeout_s * 1000),
        "connect_bytes_max": limits.connect_bytes_max,
        "topic_levels_max": limits.topic_levels_max,
        "topic_bytes_max": limits.topic_bytes_max,
        "maximum_qos": mqtt.maximum_qos,
        "retain_available": mqtt.retain_available,
        "packet_timeout_ms": int(limits.packet_timeout_s * 1000),
        "messages_per_second_max": limits.messages_per_second_max,
        "bytes_per_second_max": limits.bytes_per_second_max,
    }
