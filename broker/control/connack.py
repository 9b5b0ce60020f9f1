"""What a CONNACK says of what is in force, where that is not what the standard or the CONNECT says (3.2.2.3)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from broker.auth.outcome import STRING_BYTES_MAX
from broker.wire.packets import encode_connack
from broker.wire.reasons import Reason

if TYPE_CHECKING:
    from broker.config.loader import Config
    from broker.control.listener_rules import ListenerRules
    from broker.wire.packets import Connect


class ConnackProperties:
    """The properties of CONNACKs with success.

    Args:
        config: checked settings.
    """

    def __init__(self, config: Config) -> None:
        mqtt = config.mqtt
        self._response_information = mqtt.response_information
        self._all: dict[str, Any] = {}
        if mqtt.receive_maximum != 65_535:
            self._all["receive_maximum"] = mqtt.receive_maximum
        self._all["maximum_packet_size"] = mqtt.max_packet_size_bytes
        if mqtt.topic_alias_maximum:
            self._all["topic_alias_maximum"] = mqtt.topic_alias_maximum
        if mqtt.maximum_qos < 2:
            self._all["maximum_qos"] = mqtt.maximum_qos
        for name, available in (
            ("retain_available", mqtt.retain_available),
            ("wildcard_subscription_available", mqtt.wildcard_subscriptions_available),
            ("subscription_identifier_available", mqtt.subscription_identifiers_available),
            ("shared_subscription_available", mqtt.shared_subscriptions_available),
        ):
            if not available:
                self._all[name] = 0
        self._encoded = {
            (version, present): encode_connack(version, present, Reason.SUCCESS, self._all)
            for version in (3, 4, 5)
            for present in (False, True)
        }

    def of(
        self, connect: Connect, rules: ListenerRules, identifier: bytes, expiry_s: int, keep_alive_s: int
    ) -> dict[str, Any]:
        """Return those for one client.

        Args:
            rules: of its listener.
            identifier, expiry_s, keep_alive_s: client identifier, session expiry interval and keep alive in force.
        """
        properties = self._all
        if rules.connack:
            properties = {**properties, **rules.connack}
        if identifier != connect.client_identifier:
            properties = {**properties, "assigned_client_identifier": identifier.decode()}
        if connect.version < 5:
            return properties
        if expiry_s != connect.properties.get("session_expiry_interval", 0):
            properties = {**properties, "session_expiry_interval": expiry_s}
        if keep_alive_s != connect.keep_alive_s:
            properties = {**properties, "server_keep_alive": keep_alive_s}
        if self._response_information and connect.properties.get("request_response_information"):
            information = self._response_information.replace("{client_identifier}", identifier.decode())
            if len(information.encode()) <= STRING_BYTES_MAX:  # it grows by the client's own identifier
                properties = {**properties, "response_information": information}
        return properties

    def encoded(self, version: int, session_present: bool, properties: dict[str, Any]) -> bytes:
        """Return a CONNACK with success; most clients are told the same, which has been encoded before.

        Args:
            properties: as of() has returned them.
        """
        if version < 5 or properties is self._all:
            return self._encoded[version, session_present]
        return encode_connack(version, session_present, Reason.SUCCESS, properties)
