"""What a CONNECT asks for and what it is given: client identifier, keep alive, session expiry interval, will."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from broker.wire.packets import Connack, Connect, encode
from broker.wire.reasons import ClientError, CloseReason, Reason
from broker.wire.topic_limits import check_topic_size

if TYPE_CHECKING:
    from broker.config.loader import Config, Mqtt
    from broker.reactor.connection import Connection


def check_client_identifier(connect: Connect, mqtt: Mqtt) -> None:
    """Raise ClientError for a client identifier that is not taken; an empty one that is taken is to be assigned."""
    identifier = connect.client_identifier
    characters_max = mqtt.client_identifier_3_1_max
    if connect.version == 3 and len(identifier.decode()) > characters_max:
        raise ClientError(
            Reason.CLIENT_IDENTIFIER_NOT_VALID,
            "section 3.1 of 3.1",
            f"a client identifier of more than {characters_max} characters",
        )
    must_name_itself = connect.version == 3 or (connect.version == 4 and not connect.clean_start)
    if not identifier and (must_name_itself or not mqtt.empty_client_identifier):
        raise ClientError(Reason.CLIENT_IDENTIFIER_NOT_VALID, "MQTT3-3.1.3-8", "an empty client identifier")


def keep_alive_in_force_s(connect: Connect, mqtt: Mqtt) -> int:
    """Return the keep alive in force; 0 for none. Raises ClientError for a 3.x client's that is too long.

    A client without keep alive would be silent for longer than any that has one.
    """
    asked, maximum = connect.keep_alive_s, mqtt.keep_alive_max_s
    if not maximum or 0 < asked <= maximum:
        return asked
    if connect.version < 5:
        # Nothing tells it of another one, so it would be disconnected for a silence that it may keep.
        raise ClientError(
            Reason.CLIENT_IDENTIFIER_NOT_VALID,
            "section 3.1.2.10",
            f"a keep alive of {asked} s, {maximum} s are allowed",
            CloseReason.KEEP_ALIVE_TOO_LONG,
        )
    return maximum


def expiry_interval_in_force_s(connect: Connect, mqtt: Mqtt) -> int:
    """Return the session expiry interval in force; a 3.x session that is not clean has the longest."""
    maximum = mqtt.session_expiry_interval_max_s
    if connect.version == 5:
        asked: int = connect.properties.get("session_expiry_interval", 0)
        return min(asked, maximum)
    return 0 if connect.clean_start else maximum


def check_will(connection: Connection, connect: Connect, config: Config) -> None:
    """Raise ClientError for a will that could not be published (3.2.2.3.4, 3.2.2.3.5)."""
    will, mqtt, limits = connect.will, config.mqtt, config.limits
    if will is None:
        return
    if will.qos > connection.maximum_qos:
        raise ClientError(Reason.QOS_NOT_SUPPORTED, "MQTT-3.2.2-12", f"a will of QoS {will.qos}")
    if will.retain and not mqtt.retain_available:
        raise ClientError(Reason.RETAIN_NOT_SUPPORTED, "MQTT-3.2.2-13", "a will with RETAIN 1")
    check_topic_size(will.topic, limits.topic_levels_max, limits.topic_bytes_max)
    payload_max = mqtt.payload_bytes_max
    if payload_max and len(will.payload) > payload_max:
        raise ClientError(
            Reason.PACKET_TOO_LARGE, "section 4.13", f"a will of {len(will.payload)} bytes, {payload_max} are allowed"
        )


def check_connack_size(connection: Connection, properties: dict[str, Any]) -> None:
    """Raise ClientError if a client takes no CONNACK. All acknowledgements are smaller, so others can be answered."""
    size = len(encode(Connack(True, Reason.SUCCESS, properties), connection.version))
    if size > connection.packet_bytes_max:
        raise ClientError(
            Reason.PACKET_TOO_LARGE,
            "MQTT-3.1.2-24",
            f"a CONNACK of {size} bytes, the client takes {connection.packet_bytes_max}",
        )
