"""Clients that are not let in: by client identifier, user name or address, until an operator or a time ends it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol

import trio
from msgspec import Struct, convert, to_builtins

from broker.auth.addresses import address_of, network_of
from broker.auth.outcome import Refused
from broker.logs import get
from broker.wire.reasons import Reason

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from broker.wire.packets import Connect

log = get("bans")

Kind = Literal["client", "user", "address"]

KIND: Final = "bans"
BANNED: Final = Refused(Reason.BANNED, "banned")
TIDIED_FROM: Final = 1000
LOOKED_AT_PER_STEP: Final = 500  # connections between two checkpoints: some milliseconds
KEY_BYTES_MAX: Final = 10_000  # of a name in a ban: as part of a topic name each byte may take three


class State(Protocol):
    """Where all workers keep them: broker.control.shared_state.SharedState."""

    def follow(self, kind: str, apply: Callable[[str, dict[str, Any] | None], None]) -> None:
        """Have a function called with each value of a kind that there is, and that changes."""

    async def put(self, kind: str, key: str, value: dict[str, Any] | None, expires_in_s: float | None = None) -> None:
        """Set a value, or remove it; returns when that is durable here."""


class Holder(Protocol):
    """The connection that a session belongs to: broker.reactor.connection.Connection."""

    principal: Any
    is_closing: bool

    @property
    def peer(self) -> str | None:
        """HOST:PORT, None if it has none any more."""


class Ban(Struct, frozen=True, kw_only=True):
    """One ban.

    Attributes:
        kind: what it names.
        name: a client identifier, a user name, or an address or network as `192.0.2.0/24`.
        since_s: when it was set, Unix seconds.
        until_s: when it ends, Unix seconds; None: when an operator ends it.
        reason: the operator's words; "": none.
    """

    kind: Kind
    name: str
    since_s: float
    until_s: float | None = None
    reason: str = ""

    @property
    def key(self) -> str:
        """What it stands under among the bans of all workers."""
        return f"{self.kind}:{self.name}"

    def has_ended(self, now_s: float) -> bool:
        """Return whether its time is over."""
        return self.until_s is not None and self.until_s <= now_s


def ban_of(kind: Kind, name: str, reason: str, for_s: float | None) -> Ban:
    """Return a ban that begins now. Raises ValueError, which says what is wrong."""
    if not name or len(name.encode()) > KEY_BYTES_MAX:
        raise ValueError(f"a {kind} to ban has 1 to {KEY_BYTES_MAX:,} bytes")
    if kind == "address":
        name = str(network_of(name))
    now_s = time.time()
    return Ban(kind=kind, name=name, since_s=now_s, until_s=None if for_s is None else now_s + for_s, reason=reason)


class Bans:
    """The bans that are in force on a worker; an Admission."""

    def __init__(self) -> None:
        self._state: State | None = None  # since keep_in()
        self._bans: dict[str, Ban] = {}
        self._networks: dict[tuple[int, int], dict[int, str]] = {}  # by version and bits: keys, by network
        self._tidied_at = TIDIED_FROM  # so many, and those that have ended are forgotten
        self._set: list[Ban] = []  # whose clients have not been sent away yet
        self._is_set = trio.Event()

    def keep_in(self, state: State) -> None:
        """From now on all workers have these bans, and the log keeps them."""
        self._state = state
        state.follow(KIND, self._apply)

    def __iter__(self) -> Iterator[Ban]:
        """Go through those that have not ended, in the order of their kinds and names."""
        now_s = time.time()
        return iter([self._bans[key] for key in sorted(self._bans) if not self._bans[key].has_ended(now_s)])

    async def set(self, ban: Ban) -> None:
        """Ban on all workers; returns when that is durable here."""
        assert self._state is not None, "keep_in() comes first"
        value = to_builtins(ban)
        await self._state.put(KIND, ban.key, value, None if ban.until_s is None else ban.until_s - ban.since_s)

    async def end(self, kind: Kind, name: str) -> Ban | None:
        """End a ban on all workers; returns when that is durable here: which one it was, None if there was none."""
        key = f"{kind}:{network_of(name) if kind == 'address' else name}"
        assert self._state is not None, "keep_in() comes first"
        ban = self._bans.get(key)
        if ban is not None:
            await self._state.put(KIND, key, None)
        return ban

    def apply(self, ban: Ban | None, key: str) -> None:
        """From now on a ban is in force on this worker, or (None) is not."""
        self._apply(key, None if ban is None else to_builtins(ban))

    def _apply(self, key: str, value: dict[str, Any] | None) -> None:
        kind, _, name = key.partition(":")
        if kind == "address":
            network = network_of(name)
            at = network.version, network.prefixlen
            networks = self._networks.setdefault(at, {})
            networks.pop(int(network.network_address), None)
            if value is not None:
                networks[int(network.network_address)] = key
            elif not networks:
                del self._networks[at]
        if value is None:
            self._bans.pop(key, None)
            return
        ban = self._bans[key] = convert(value, Ban)
        self._set.append(ban)
        self._is_set.set()
        if len(self._bans) >= self._tidied_at:
            now_s = time.time()
            for ended in [other for other in self._bans.values() if other.has_ended(now_s)]:
                self._apply(ended.key, None)
            self._tidied_at = TIDIED_FROM + 2 * len(self._bans)

    async def send_away(
        self, holders: Callable[[], Iterable[tuple[Any, Holder]]], send_away: Callable[[Any], object]
    ) -> None:
        """Send clients away that are banned while they are connected. Runs until cancelled.

        Args:
            holders: returns each session that has a connection, and that connection.
            send_away: ends the connection of a session.
        """
        while True:
            await self._is_set.wait()
            self._is_set = trio.Event()
            self._set, new = [], self._set
            looks_at_all = any(ban.kind != "client" for ban in new)
            names = {ban.name.encode() for ban in new}
            for number, (session, connection) in enumerate(holders()):
                if number % LOOKED_AT_PER_STEP == 0:
                    await trio.lowlevel.checkpoint()
                if not looks_at_all and session.client_identifier not in names:
                    continue
                principal = connection.principal
                ban = self.find(
                    session.client_identifier.decode(),
                    principal.user_name if principal else None,
                    connection.peer if self._networks else None,
                )
                if ban is not None and not connection.is_closing:
                    log.warning(
                        "banned_client_sent_away", client=session.client_identifier, ban=ban.key, reason=ban.reason
                    )
                    send_away(session)

    def find(self, client_identifier: str, user_name: str | None, peer: str | None) -> Ban | None:
        """Return the ban that keeps a client out, None if none does; a microsecond.

        Args:
            peer: HOST:PORT, as of a connection.
        """
        if not self._bans:
            return None
        now_s = time.time()
        found = self._live(f"client:{client_identifier}", now_s)
        if found is None and user_name is not None:
            found = self._live(f"user:{user_name}", now_s)
        if found is not None or not self._networks:
            return found
        address = address_of(peer)
        if address is None:
            return None
        number, bits = int(address), address.max_prefixlen
        for (version, length), networks in self._networks.items():
            if version == address.version:
                key = networks.get(number >> (bits - length) << (bits - length))
                found = None if key is None else self._live(key, now_s)
                if found is not None:
                    return found
        return None

    def _live(self, key: str, now_s: float) -> Ban | None:
        ban = self._bans.get(key)
        return None if ban is None or ban.has_ended(now_s) else ban

    def refusal(self, client_identifier: bytes, user_name: str | None, peer: str | None) -> Refused | None:
        """Return how a client is refused that is banned; None for one that is not."""
        if not self._bans:
            return None
        ban = self.find(client_identifier.decode(), user_name, peer)
        if ban is None:
            return None
        log.debug("ban_in_force", client=client_identifier, address=peer, ban=ban.key, reason=ban.reason)
        return BANNED

    def admit(self, connect: Connect, peer: str | None) -> Refused | None:
        """Refuse a client that is banned."""
        return self.refusal(connect.client_identifier, connect.user_name, peer)
