"""What holds for the clients of one listener: who they are, and what they may do there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from broker.config.listener_check import anonymous_allowed
from broker.control.rate_limit import Rate
from broker.reactor.mount_point import MountPoint
from broker.wire.reasons import ClientError, Reason

if TYPE_CHECKING:
    from broker.config.listener import Listener
    from broker.config.loader import Config
    from broker.reactor.shared_counts import Places
    from broker.transport.facts import Facts

FORBIDDEN_IN_NAMES = frozenset("+#/\0")
NAME_BYTES_MAX = 65_535


class ListenerRules:
    """The rules of one listener.

    Args:
        config: the broker's settings.
        listener: its own.

    Attributes:
        anonymous: whether clients that prove nothing may come in.
        packet_bytes_max: largest packet that a client may send.
        maximum_qos: highest QoS.
        connections_max: at once, over all workers; 0: any number.
        open_connections: in this worker.
        rate: of CONNECTs; None: any.
        limits_more: it allows less than the broker does.
        connack: what a CONNACK says here otherwise than elsewhere.
        mount_point: under which its clients live; None: in the broker's whole tree.
        requests: topic names that its clients ask the broker itself by (broker.control.requests): whether the ACL says
            who may.
    """

    def __init__(self, config: Config, listener: Listener) -> None:
        self.anonymous = anonymous_allowed(config, listener) is not False
        self.packet_bytes_max = min(listener.max_packet_size_bytes or 2**32, config.mqtt.max_packet_size_bytes)
        self.maximum_qos = min(listener.maximum_qos, config.mqtt.maximum_qos)
        self.connections_max = listener.connections_max
        self.open_connections = 0
        per_second = listener.connects_per_second_max
        self.rate = Rate(per_second, 2 * per_second) if per_second else None
        self._places: Places | None = None
        self.limits_more = (self.packet_bytes_max, self.maximum_qos) != (
            config.mqtt.max_packet_size_bytes,
            config.mqtt.maximum_qos,
        )
        self.connack: dict[str, Any] = {}
        if self.limits_more:
            self.connack["maximum_packet_size"] = self.packet_bytes_max
            if self.maximum_qos < 2:
                self.connack["maximum_qos"] = self.maximum_qos
        self.mount_point = MountPoint(listener.mount_point.encode()) if listener.mount_point else None
        self.requests: dict[bytes, bool] = {}
        self._user_name_from = listener.username_from
        self._client_identifier_from = listener.client_id_from

    def share(self, places: Places) -> None:
        """Count from now on where the connections of all workers at this listener are counted."""
        self._places = places

    @property
    def is_full(self) -> bool:
        """Whether as many are connected as may be."""
        if not self.connections_max:
            return False
        taken = self.open_connections if self._places is None else self._places.total()
        return taken >= self.connections_max

    def take(self, beyond: bool) -> bool:
        """Count a connection, unless all places are taken and it may not go beyond. Returns whether it was counted."""
        if self.connections_max:
            if self._places is not None:
                if not self._places.take(2**63 if beyond else self.connections_max):
                    return False
            elif self.open_connections >= self.connections_max and not beyond:
                return False
        self.open_connections += 1
        return True

    def give(self) -> None:
        """A connection that was counted has ended."""
        self.open_connections -= 1
        if self.connections_max and self._places is not None:
            self._places.give()

    def client_identifier(self, facts: Facts | None) -> bytes | None:
        """Return the client identifier of a client's certificate; None: its CONNECT's counts. Raises ClientError."""
        return _named(self._client_identifier_from, facts) if self._client_identifier_from is not None else None

    def user_name(self, facts: Facts | None) -> str | None:
        """Return the user name of a client's certificate; None: its CONNECT's counts. Raises ClientError."""
        return _named(self._user_name_from, facts).decode() if self._user_name_from is not None else None


def proves_itself(facts: Facts | None) -> bool:
    """Return whether a client has shown by TLS who it is."""
    return facts is not None and (facts.certificate is not None or facts.psk_identity is not None)


def _named(field: str, facts: Facts | None) -> bytes:
    """Return a field of a client's certificate, or its pre-shared key's identity, as a name. Raises ClientError.

    Nothing else takes its place: who could choose would be somebody else.
    """
    name = field_of(field, facts)
    if not name:
        raise ClientError(Reason.NOT_AUTHORIZED, "section 5.4.1", f"the client has no {field}, which is its name here")
    encoded = name.encode("utf-8", "replace")
    if not FORBIDDEN_IN_NAMES.isdisjoint(name) or len(encoded) > NAME_BYTES_MAX:
        raise ClientError(
            Reason.NOT_AUTHORIZED,
            "section 5.4.1",
            f"the client's {field} cannot be a name, with + # / or NUL in it: {name!r:.200}",
        )
    return encoded


def field_of(field: str, facts: Facts | None) -> str | None:
    """Return what a client's connection says in a field such as cert.san.dns, the first of several; None: nothing."""
    if facts is None:
        return None
    if field == "psk.identity":
        return facts.psk_identity
    if facts.certificate is None:
        return None
    value: Any = getattr(facts.certificate, field.removeprefix("cert.").replace(".", "_"))
    if isinstance(value, tuple):
        return value[0] if value else None
    return value if isinstance(value, str) else None
