"""Values as people and JSON read them: times, topics, payloads, packets."""

from __future__ import annotations

import base64
import dataclasses
import re
from datetime import UTC, datetime
from enum import IntEnum
from typing import Any

from broker.wire.packet_types import Connect, Packet, Publish, Subscription, Will
from router.core.receiver import NARROWED_OPTION, decode_options

PAYLOAD_SHOWN_MAX = 256
NOT_SHOWN = "(not shown)"
# A JSON Web Token: header and claims in base64url, of which each begins with {" there.
TOKEN = re.compile(r"ey[A-Za-z0-9_-]+\.ey[A-Za-z0-9_-]*\.[A-Za-z0-9_-]*")


def timestamp(time_us: int) -> str:
    """Return a time, µs since 1970, as ISO 8601 in UTC."""
    return datetime.fromtimestamp(time_us / 1_000_000, UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def text_of(data: bytes) -> str:
    """Return UTF-8 bytes as text; what is none becomes U+FFFD."""
    return data.decode("utf-8", "replace")


def payload_fields(payload: bytes, shown_max: int = PAYLOAD_SHOWN_MAX) -> dict[str, Any]:
    """Return a payload as JSON has it: its length, and its beginning as text or, if it is none, as base64."""
    beginning = payload[:shown_max]
    fields: dict[str, Any] = {"payload_bytes": len(payload)}
    for cut in range(4 if len(payload) > shown_max else 1):
        try:
            text = beginning[: len(beginning) - cut].decode()
        except UnicodeDecodeError:
            continue
        if all(character.isprintable() or character in "\t\n\r" for character in text):
            return {**fields, "payload": text}
        break
    return {**fields, "payload_base64": base64.b64encode(beginning).decode()}


def json_value(value: Any) -> Any:
    """Return a value of a packet as JSON has it."""
    if isinstance(value, bytes):
        return text_of(value)
    if isinstance(value, IntEnum):
        return value.name.lower()
    if isinstance(value, Subscription):
        return {
            "topic_filter": text_of(value.topic_filter),
            "qos": value.qos,
            "no_local": value.no_local,
            "retain_as_published": value.retain_as_published,
            "retain_handling": value.retain_handling,
        }
    if isinstance(value, Will):
        return {
            "topic": text_of(value.topic),
            "qos": value.qos,
            "retain": value.retain,
            "delay_interval_s": value.delay_interval_s,
            **payload_fields(value.payload),
        }
    if isinstance(value, dict):
        return {str(key): json_value(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [json_value(item) for item in value]
    return value


def shown_name(user_name: str) -> str:
    """Return the user name of a CONNECT as others may see it: what is a token is a secret."""
    return NOT_SHOWN if TOKEN.fullmatch(user_name) else user_name


def packet_fields(packet: Packet) -> dict[str, Any]:
    """Return what a packet says as JSON has it. Of a password, and of a token, it says only that there is one."""
    fields: dict[str, Any] = {}
    for field in dataclasses.fields(packet):
        value = getattr(packet, field.name)
        if field.name == "type" or (field.name == "properties" and not value):
            continue
        if isinstance(packet, Connect) and value is not None:
            value = NOT_SHOWN if field.name == "password" else shown_name(value) if field.name == "user_name" else value
        if isinstance(packet, Publish) and field.name == "payload":
            fields.update(payload_fields(value))
        elif field.name == "properties" and "authentication_data" in value:
            fields["properties"] = json_value({**value, "authentication_data": NOT_SHOWN})
        elif value is not None:
            fields[field.name] = json_value(value)
    return fields


def options_fields(options: int, identifier: int) -> dict[str, Any]:
    """Return Subscription Options (3.8.3.1) and a Subscription Identifier by name; what is not set is left out."""
    qos, no_local, retain_as_published, retain_handling = decode_options(options)
    fields: dict[str, Any] = {"qos": qos}
    if no_local:
        fields["no_local"] = True
    if retain_as_published:
        fields["retain_as_published"] = True
    if retain_handling:
        fields["retain_handling"] = retain_handling
    if options & NARROWED_OPTION:
        fields["narrowed"] = True
    if identifier:
        fields["subscription_identifier"] = identifier
    return fields
