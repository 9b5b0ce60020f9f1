"""How much each client may have: by its user name or its groups, by its listener, or as all others."""

from __future__ import annotations

from _blake2 import blake2b  # hashlib would load OpenSSL
from typing import TYPE_CHECKING, NamedTuple

from broker.reactor.rates import Rates
from router.sessions.ledger import SessionLimits

if TYPE_CHECKING:
    from broker.auth.principal import Principal
    from broker.config.limit import ClientLimit, Limit
    from broker.config.loader import Config
    from broker.reactor.connection import Connection
    from broker.reactor.shared_counts import UserPlaces


class ClientLimits(NamedTuple):
    """The limits of a client.

    Attributes:
        rates: of what it sends; None: any rate.
        session: what its session may have.
        connections_per_user_max: of its user name, of all workers together; 0: any number.
    """

    rates: Rates | None
    session: SessionLimits
    connections_per_user_max: int


class LimitRules:
    """Which limits a client has.

    Args:
        config: checked settings.

    Attributes:
        usual: those of a client of which nothing else is said.
        are_all_usual: all clients have these.
    """

    def __init__(self, config: Config) -> None:
        self._tables = config.limit
        self._listeners = config.listeners
        self._defaults = _defaults_of(config)
        self._known: dict[tuple[int, int], ClientLimits] = {}  # by listener and table
        self.usual = self._made(())
        self.are_all_usual = not self._tables and not any(
            getattr(listener, name) for listener in self._listeners for name in self._defaults
        )
        self.counts_users = any(table.connections_per_user_max for table in self._tables)

    def of(self, principal: Principal | None) -> ClientLimits:
        """Return the limits of a client; None: nothing is known of it."""
        if self.are_all_usual or principal is None:
            return self.usual
        number = next((number for number, table in enumerate(self._tables) if _fits(table, principal)), -1)
        # One of a log may be of a listener that there is no more.
        listener = principal.listener if 0 <= principal.listener < len(self._listeners) else -1
        found = self._known.get((listener, number))
        if found is None:
            found = self._known[listener, number] = self._made(self._layers(listener, number))
        return found

    def change(self, config: Config) -> None:
        """Go by other defaults from now on, sessions that there are as well. Tables and listeners are as before."""
        self._defaults = _defaults_of(config)
        self.usual = _changed(self.usual, self._made(()))
        for (listener, number), limits in self._known.items():
            self._known[listener, number] = _changed(limits, self._made(self._layers(listener, number)))

    def _layers(self, listener: int, number: int) -> list[ClientLimit]:
        layers: list[ClientLimit] = [] if number < 0 else [self._tables[number]]
        if listener >= 0:
            layers.append(self._listeners[listener])
        return layers

    def _made(self, layers: tuple[ClientLimit, ...] | list[ClientLimit]) -> ClientLimits:
        """Return what some tables say, the first that says something of each limit."""
        values = {
            name: next((value for layer in layers if (value := getattr(layer, name))), default)
            for name, default in self._defaults.items()
        }
        messages, received = values["messages_per_second_max"], values["bytes_per_second_max"]
        return ClientLimits(
            Rates(messages, received) if messages or received else None,
            SessionLimits(
                values["queue_messages_max"], values["queue_bytes_max"], values["subscriptions_per_client_max"]
            ),
            next((getattr(layer, "connections_per_user_max", 0) for layer in layers), 0),
        )


def _defaults_of(config: Config) -> dict[str, int]:
    limits, mqtt = config.limits, config.mqtt
    return {
        "messages_per_second_max": limits.messages_per_second_max,
        "bytes_per_second_max": limits.bytes_per_second_max,
        "subscriptions_per_client_max": limits.subscriptions_per_client_max,
        "queue_messages_max": mqtt.queue_messages_max,
        "queue_bytes_max": mqtt.queue_bytes_max,
    }


def _changed(older: ClientLimits, newer: ClientLimits) -> ClientLimits:
    """Return the newer limits, with the object that sessions have, which says what is new."""
    session = older.session
    session.queue_messages_max = newer.session.queue_messages_max
    session.queue_bytes_max = newer.session.queue_bytes_max
    session.subscriptions_max = newer.session.subscriptions_max
    return newer._replace(session=session)


def _fits(table: Limit, principal: Principal) -> bool:
    if principal.user_name is None:
        return table.anonymous or not (table.users or table.groups)
    if principal.user_name in table.users or any(group in table.groups for group in principal.groups):
        return True
    return not (table.users or table.groups or table.anonymous)


class UserConnections:
    """How many connections each user has, on this worker or on all of a broker together.

    With others, each counts where all see it, as connections are. A user for whom that memory has no place, because it
    has seen more of them than it has places, is counted by each worker alone.
    """

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}
        self._held: dict[Connection, tuple[str, int]] = {}  # whom it counts for, and the place; -1: none
        self._places: UserPlaces | None = None
        self._secret = b""

    def share(self, places: UserPlaces, secret: bytes) -> None:
        """Count from now on where the connections of all workers are counted.

        Args:
            secret: that all workers know and no client does: so nobody picks user names that fill the same places.
        """
        self._places, self._secret = places, secret

    def take(self, connection: Connection, user_name: str | None, maximum: int, older: Connection | None) -> bool:
        """Count a connection, unless its user has as many as may be. Returns whether there was room.

        Args:
            maximum: 0: any number, and it is not counted.
            older: which it takes over, and whose place it may have.
        """
        if not maximum or user_name is None:
            return True
        beyond = older is not None and self._held.get(older, ("", -1))[0] == user_name
        place = -1
        if self._places is not None:
            digest = blake2b(user_name.encode(), key=self._secret, digest_size=8, person=b"shoal users").digest()
            place = self._places.take(int.from_bytes(digest), 2**32 - 1 if beyond else maximum)
            if place == -1:
                return False
        count = self._counts.get(user_name, 0)
        if place < 0 and count >= maximum and not beyond:
            return False
        self._counts[user_name] = count + 1
        self._held[connection] = user_name, place
        return True

    def give(self, connection: Connection) -> None:
        """A connection has ended."""
        held = self._held.pop(connection, None)
        if held is None:
            return
        user_name, place = held
        if place >= 0 and self._places is not None:
            self._places.give(place)
        left = self._counts[user_name] - 1
        if left:
            self._counts[user_name] = left
        else:
            del self._counts[user_name]
