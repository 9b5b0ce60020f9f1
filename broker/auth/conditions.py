"""What a rule may ask for beside the user name and the topic."""

from __future__ import annotations

import ipaddress
import zoneinfo
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from broker.auth.principal import Principal
    from broker.auth.rule import Condition

DAYS: Final = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
Network = ipaddress.IPv4Network | ipaddress.IPv6Network


@lru_cache(maxsize=4096)
def _address_of(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """Return an address; None: it is none. An IPv4 address that came in IPv6 form is the IPv4 address."""
    try:
        found = ipaddress.ip_address(host.strip("[]").partition("%")[0])
    except ValueError:
        return None
    return getattr(found, "ipv4_mapped", None) or found


@dataclass(frozen=True, slots=True)
class FromNetworks:
    """The client comes from one of these networks; a client of a Unix socket, or in the process, from none."""

    networks: tuple[Network, ...]

    def holds(self, principal: Principal) -> bool:
        """Return whether it does."""
        address = None if principal.address is None else _address_of(principal.address)
        return address is not None and any(address in network for network in self.networks)


@dataclass(frozen=True, slots=True)
class ByListener:
    """The client came by one of these listeners.

    Attributes:
        listeners: their numbers, in the order of the settings from 0.
    """

    listeners: frozenset[int]

    def holds(self, principal: Principal) -> bool:
        """Return whether it did."""
        return principal.listener in self.listeners


@dataclass(frozen=True, slots=True)
class InGroups:
    """The client is in one of these groups, as its authenticator says."""

    groups: frozenset[str]

    def holds(self, principal: Principal) -> bool:
        """Return whether it is."""
        return any(group in self.groups for group in principal.groups)


@dataclass(frozen=True, slots=True)
class Named:
    """The client identifier is one of these."""

    identifiers: frozenset[bytes]

    def holds(self, principal: Principal) -> bool:
        """Return whether it is."""
        return principal.client_identifier in self.identifiers


@dataclass(frozen=True, slots=True)
class HasCertificate:
    """The client has a certificate with one of these values in a field.

    Attributes:
        field: of broker.transport.facts.Certificate.
        values: of which it has one.
    """

    field: str
    values: frozenset[str]

    def holds(self, principal: Principal) -> bool:
        """Return whether it has."""
        found = None if principal.certificate is None else getattr(principal.certificate, self.field)
        if isinstance(found, tuple):
            return any(one in self.values for one in found)
        return found is not None and found in self.values


@dataclass(frozen=True, slots=True)
class All:
    """All of these hold."""

    conditions: tuple[Condition, ...]

    def holds(self, principal: Principal) -> bool:
        """Return whether they do."""
        return all(condition.holds(principal) for condition in self.conditions)


class Times:
    """It is one of these hours, on one of these days, by the clock of the last look_at().

    Args:
        begin, end: minutes of the day; hours that begin after they end go on into the next day, and count as the day
            on which they have begun.
        days: 0 is Monday.
        zone: whose clock it is; None: this machine's.
    """

    __slots__ = ("_begin", "_days", "_end", "_zone", "is_open")

    def __init__(self, begin: int, end: int, days: frozenset[int], zone: zoneinfo.ZoneInfo | None) -> None:
        self._begin, self._end, self._days, self._zone = begin, end, days, zone
        self.is_open = False

    def holds(self, principal: Principal) -> bool:
        """Return whether it is."""
        return self.is_open

    def look_at(self, now_s: float) -> bool:
        """Be told the time, in Unix seconds; return whether that changes anything."""
        now = datetime.fromtimestamp(now_s, self._zone)
        minute, day = now.hour * 60 + now.minute, now.weekday()
        if self._begin < self._end:
            is_open = self._begin <= minute < self._end and day in self._days
        else:
            is_open = (minute >= self._begin and day in self._days) or (
                minute < self._end and (day - 1) % 7 in self._days
            )
        was_open, self.is_open = self.is_open, is_open
        return was_open != is_open
