"""Who a client is, and what it may do, by the clients, groups and roles that administrators change meanwhile."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from broker.auth.acl import Action, Decision, Grant, inner_filter
from broker.auth.dynamic_security.decisions import Decisions, Verdict
from broker.auth.dynamic_security.logins import REFUSED, UNKNOWN, hash_wanted
from broker.auth.dynamic_security.start_file import StartFileError, state_of
from broker.auth.dynamic_security.state import State
from broker.auth.outcome import Accepted, Ignored, Outcome, Refused
from broker.config.start_error import StartError
from broker.wire.reasons import Reason

if TYPE_CHECKING:
    from broker.auth.enhanced_auth import Exchange
    from broker.auth.hashing import Hashing
    from broker.auth.principal import Principal
    from broker.auth.rule_chain import RuleChain
    from broker.auth.verified_logins import VerifiedLogins
    from broker.wire.packets import Connect

WRONG = Refused(Reason.BAD_USER_NAME_OR_PASSWORD)


class DynamicLogins:
    """Accepts clients that there are by their passwords, and refuses them otherwise; it ignores who is not there.

    Args:
        number: of its [[authenticator]] table, from 1.
        file: what it begins with when there is nothing yet; "": nothing.
        hashing: hashes passwords.
        verified: logins that need no hashing.

    Attributes:
        files: none that is read again: what holds is in the log.
        state: what there is; whoever has the log changes it.
        rights: what may be done by it.
        hashing: as given.
    """

    kind = "dynamic_security"

    def __init__(self, number: int, file: str, hashing: Hashing, verified: VerifiedLogins) -> None:
        self.number = number
        self.files: list[str] = []
        self.state = State()
        self._verified = verified
        self.hashing = hashing
        self.rights = DynamicRights(self.state)
        self._file = file
        self._key = secrets.token_bytes(64)
        self._stored: tuple[bytes, ...] | None = None  # one that may be hashed in vain for who is not there

    def read(self) -> None:
        """Do nothing: nothing is read again."""

    def use(self, _found: None) -> None:
        """Do nothing."""

    async def run(self) -> None:
        """Look after the processes that hash."""
        await self.hashing.run()

    def start(self) -> State:
        """Read what it begins with. Raises StartError."""
        where = f"authenticator {self.number}: "
        if not self._file:
            raise StartError(
                f"{where}There are no clients yet, and there is no file to begin with: expected `file`, "
                "which `shoal dynsec init FILE USER` makes."
            )
        try:
            return state_of(Path(self._file).read_bytes())
        except OSError as error:
            raise StartError(
                f"{where}The file {self._file} cannot be read: {error.strerror}. "
                f"`shoal dynsec init {self._file} USER` makes one."
            ) from error
        except StartFileError as error:
            raise StartError(f"{where}The file {self._file} cannot be used: {error}.") from None

    def changed(self) -> None:
        """The state is another one."""
        self._stored = None

    def describe(self) -> dict[str, Any]:
        """Return what an operator sees of it."""
        return {
            "authenticator": self.number,
            "type": self.kind,
            "users": len(self.state.clients),
            "verified": self._verified.added,
        }

    def authenticate(self, connect: Connect, exchange: Exchange) -> Outcome | Ignored | Awaitable[Outcome]:
        """Decide on a CONNECT: at once, where the login was verified before; else when its password has been hashed."""
        user, password = connect.user_name, connect.password
        if user is None or exchange.method is not None:
            return Ignored()
        client_identifier = connect.client_identifier.decode()
        wanted = hash_wanted(self.state, user, client_identifier)
        if wanted == UNKNOWN:
            return self._ignored(user, password)
        if password is None:
            return WRONG
        if isinstance(wanted, bytes) and self._verified.has(user, wanted, password):
            return self._accepted(user)
        return self._verify(user, client_identifier, wanted, password)

    async def _verify(self, user: str, client_identifier: str, wanted: bytes | str, password: bytes) -> Outcome:
        if not isinstance(wanted, bytes):
            assert wanted == REFUSED, wanted
            # As much work as for a wrong password: who is disabled cannot be told from who is not.
            in_vain = self._in_vain(user)
            if in_vain is not None:
                await self.hashing.fits(in_vain, password)
            return WRONG
        if not await self.hashing.fits(wanted, password) or hash_wanted(self.state, user, client_identifier) != wanted:
            return WRONG  # the second: it has another password now, or may not come any more
        self._verified.add(user, wanted, password)
        return self._accepted(user)

    def _accepted(self, user: str) -> Accepted:
        client = self.state.clients[user]
        return Accepted(user, groups=tuple(one.name for one in client.groups if self.state.group(one) is not None))

    def _ignored(self, user: str, password: bytes | None) -> Ignored:
        in_vain = self._in_vain(user)
        if password is None or in_vain is None:
            return Ignored()
        return Ignored(partial(self.hashing.fits, in_vain, password))

    def _in_vain(self, user: str) -> bytes | None:
        """Return a hash that another client has, always the same for one name; None: there is none."""
        if self._stored is None:
            self._stored = tuple(client.hashed.encode() for client in self.state.clients.values() if client.hashed)
        if not self._stored:
            return None
        chosen = hashlib.blake2b(user.encode(), key=self._key, digest_size=8).digest()
        return self._stored[int.from_bytes(chosen) % len(self._stored)]


class DynamicRights:
    """An Acl: what clients may do by their roles. What neither these nor a default allow is refused.

    Attributes:
        changed: called when the answers may be others.
    """

    def __init__(self, state: State) -> None:
        self._decisions = Decisions(state)
        self._otherwise: RuleChain | None = None
        self.changed: Callable[[], None] = lambda: None

    def leave_open_to(self, otherwise: RuleChain) -> None:
        """From now on, ask another one about what is left open here, as mosquitto asks other plugins."""
        self._otherwise = otherwise
        otherwise.changed = lambda: self.changed()  # whoever is called then

    @property
    def decides_by_qos(self) -> bool:
        """Whether what is left open depends on QoS or RETAIN of what is published."""
        return self._otherwise is not None and bool(self._otherwise.decides_by_qos)

    @property
    def waits(self) -> bool:
        """Whether what is left open may have to be asked elsewhere."""
        return self._otherwise is not None and bool(self._otherwise.waits)

    def missing(
        self, principal: Principal, action: Action, name: bytes, qos: int, retain: bool
    ) -> tuple[Any, bool] | None:
        """Return whom to ask first, if something is left open: see broker.auth.acl.Acl."""
        if self._otherwise is None or self._verdict(principal, action, name).allowed is not None:
            return None
        found: tuple[Any, bool] | None = self._otherwise.missing(principal, action, name, qos, retain)
        return found

    def may_leave_will(self, principal: Principal, topic_name: bytes, qos: int, retain: bool) -> bool:
        """Return whether a client's will may be published to a topic name."""
        allowed = self._decisions.may_publish(principal.user_name, principal.client_identifier, topic_name).allowed
        if allowed is None and self._otherwise is not None:
            return bool(self._otherwise.may_leave_will(principal, topic_name, qos, retain))
        return bool(allowed)

    def may_publish(self, principal: Principal, topic_name: bytes, qos: int, retain: bool) -> bool:
        """Return whether a client may publish to a topic name."""
        allowed = self._decisions.may_publish(principal.user_name, principal.client_identifier, topic_name).allowed
        if allowed is None and self._otherwise is not None:
            return bool(self._otherwise.may_publish(principal, topic_name, qos, retain))
        return bool(allowed)

    def may_subscribe(self, principal: Principal, topic_filter: bytes, qos: int) -> Grant:
        """Return whether a client may subscribe to a topic filter, and whether it may read all that this matches."""
        user, client_identifier = principal.user_name, principal.client_identifier
        allowed = self._decisions.may_subscribe(user, client_identifier, topic_filter).allowed
        if allowed is None and self._otherwise is not None:
            return Grant(self._otherwise.may_subscribe(principal, topic_filter, qos))
        if not allowed:
            return Grant.REFUSED
        whole = self._decisions.receives_all_of(user, client_identifier, topic_filter)
        return Grant.WHOLE if whole else Grant.NARROWED

    def may_use(self, principal: Principal, topic_filter: bytes) -> bool:
        """Return whether a client may use a shared subscription or a replay; roles have no rules about that."""
        user, client_identifier = principal.user_name, principal.client_identifier
        allowed = self._decisions.may_subscribe(user, client_identifier, inner_filter(topic_filter)).allowed
        return allowed is not None or self._otherwise is None or self._otherwise.may_use(principal, topic_filter)

    def may_unsubscribe(self, principal: Principal, topic_filter: bytes) -> bool:
        """Return whether a client may unsubscribe; others, if there are any, have no rules about that."""
        user, client_identifier = principal.user_name, principal.client_identifier
        allowed = self._decisions.may_unsubscribe(user, client_identifier, topic_filter).allowed
        return self._otherwise is not None if allowed is None else allowed

    def may_read(self, principal: Principal, topic_name: bytes) -> bool:
        """Return whether a client may be sent what is published to a topic name."""
        allowed = self._decisions.may_receive(principal.user_name, principal.client_identifier, topic_name).allowed
        if allowed is None and self._otherwise is not None:
            return bool(self._otherwise.may_read(principal, topic_name))
        return bool(allowed)

    def explain(self, principal: Principal, action: Action, name: bytes, qos: int, retain: bool) -> Decision:
        """Return what is decided, and by what."""
        verdict = self._verdict(principal, action, name)
        if verdict.allowed is None and self._otherwise is not None:
            found: Decision = self._otherwise.explain(principal, action, name, qos, retain)
            return found
        grant = Grant.WHOLE if verdict.allowed else Grant.REFUSED
        if action == "subscribe" and verdict.allowed:
            grant = self.may_subscribe(principal, name, qos)
        return Decision(grant, f"dynamic_security: {verdict.by}")

    def _verdict(self, principal: Principal, action: Action, name: bytes) -> Verdict:
        asked = {
            "publish": self._decisions.may_publish,
            "subscribe": self._decisions.may_subscribe,
            "read": self._decisions.may_receive,
        }[action]
        return asked(principal.user_name, principal.client_identifier, name)
