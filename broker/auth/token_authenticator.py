"""Who a client is, by a JSON Web Token: as its password, as its user name, or by enhanced authentication (4.12)."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from broker.auth.outcome import Accepted, Ignored, Outcome, Refused
from broker.auth.token_keys import Key, Keys, UnusableKeyError, keys_in, secret_in
from broker.auth.token_rules import TokenRules, TokenRulesError
from broker.auth.web_token import ClaimRules, NoTokenError, RefusedTokenError, UnknownKeyError, claims_of
from broker.config.start_error import StartError
from broker.logs import get
from broker.wire.reasons import Reason

if TYPE_CHECKING:
    from broker.auth.enhanced_auth import Exchange
    from broker.auth.key_source import KeySource
    from broker.config.authenticator import JwtTable
    from broker.wire.packets import Connect

log = get("tokens")

ANOTHER: Final = Refused(Reason.NOT_AUTHORIZED, "the token is another client's")
NOT_BELIEVED: Final = Refused(Reason.NOT_AUTHORIZED, "the token was signed with none of the keys that count here")


UNAVAILABLE: Final = Refused(Reason.SERVER_UNAVAILABLE, "the keys of the issuer cannot be had now")
JWKS_TIMEOUT_S: Final = 5.0


class TokenAuthenticator:
    """Accepts who has a token that one of its keys has signed, until the token ends.

    Who sends no token, or one of keys that are not here, is ignored: it may be a password, or another issuer's. What a
    believed token does not allow is refused.

    Args:
        number: of its [[authenticator]] table, from 1.
        table: its settings.
        now_s: Unix seconds.

    Raises StartError: a file of keys cannot be used.
    """

    kind = "jwt"

    def __init__(self, number: int, table: JwtTable, now_s: Callable[[], float] = time.time) -> None:
        self.number = number
        self._table = table
        self._now_s = now_s
        self._rules = ClaimRules(
            issuers=table.issuers,
            audience=table.audience,
            leeway_s=table.leeway_s,
            user_claim=table.user_claim or None,
            equal=table.claims,
            end_required=table.exp_required,
        )
        self._keys = Keys()
        self._own: list[Key] = []  # those of files
        self._source = None if table.jwks_url is None else self._source_of(table, table.jwks_url)
        self.use(self.read())

    # Files ------------------------------------------------------------------------------------------------------------

    @property
    def files(self) -> list[str]:
        """What it rests on: files, and folders with what is in them."""
        secret = [] if self._table.secret_file is None else [self._table.secret_file]
        named = [*self._table.keys, *secret]
        return named + [str(file) for name in self._table.keys for file in _files_in(Path(name))]

    def read(self) -> list[Key]:
        """Read the files, and return their keys. From any thread. Raises StartError."""
        allowed = self._table.algorithms
        found: list[Key] = []
        for name in self._table.keys:
            folder = _files_in(Path(name))
            for file in folder or [Path(name)]:
                found += self._read_one(file, lambda data: keys_in(data, allowed))
        if self._table.secret_file is not None:
            found += self._read_one(Path(self._table.secret_file), lambda data: [secret_in(data, allowed)])
        return found

    def _read_one(self, file: Path, keys_of: Callable[[bytes], list[Key]]) -> list[Key]:
        try:
            return keys_of(file.read_bytes())
        except OSError as error:
            raise StartError(
                f"authenticator {self.number}: The keys in {file} cannot be read: {error.strerror}."
            ) from error
        except UnusableKeyError as error:
            raise StartError(f"authenticator {self.number}: The file {file} cannot be used: found {error}.") from None

    def use(self, found: list[Key]) -> None:
        """From now on, believe tokens of these keys. Clients that are connected stay."""
        self._own = found
        self._use_all()
        if self._source is not None:
            self._source.look_soon()

    def _use_all(self) -> None:
        self._keys = Keys([*self._own, *(() if self._source is None else self._source.keys)])

    def _source_of(self, table: JwtTable, url: str) -> KeySource:
        # Here, so that who has no URL loads no HTTP.
        from broker.auth.http_client import HttpClient
        from broker.auth.key_source import KeySource

        try:
            client = HttpClient(url, timeout_s=JWKS_TIMEOUT_S, cafile=table.jwks_cafile)
        except OSError as error:
            raise StartError(
                f"authenticator {self.number}: The file {table.jwks_cafile} cannot be used: {error.strerror}."
            ) from error
        return KeySource(self.number, client, table.algorithms, table.jwks_refresh_s, self._use_all)

    async def run(self) -> None:
        """Look at the issuer's URL from time to time, if there is one."""
        if self._source is not None:
            try:
                await self._source.run()
            finally:
                await self._source.aclose()

    def describe(self) -> dict[str, Any]:
        """Return what an operator sees of it."""
        return {
            "authenticator": self.number,
            "type": self.kind,
            "keys": self._keys.count,
            "algorithms": list(self._table.algorithms),
            "trouble": None if self._source is None else self._source.error,
        }

    # Clients ----------------------------------------------------------------------------------------------------------

    def authenticate(self, connect: Connect, exchange: Exchange) -> Outcome | Ignored | Awaitable[Outcome | Ignored]:
        """Decide on a CONNECT, or on a token that takes the place of the one before."""
        method = exchange.method
        if method is not None and method not in self._table.methods:
            return Ignored()
        if method is not None or exchange.again:
            token = exchange.data or b""
        elif self._table.token_from == "password":
            token = connect.password or b""
        else:
            token = (connect.user_name or "").encode()
        try:
            claims = claims_of(token, self._keys)
        except (NoTokenError, UnknownKeyError) as error:
            log.debug("token_ignored", authenticator=self.number, address=exchange.peer, what=str(error))
            if isinstance(error, UnknownKeyError) and self._source is not None:
                if self._source.may_have_news():
                    return self._decide_later(token, self._source, connect, exchange)
                if self._source.error is not None:
                    return Ignored(refusal=UNAVAILABLE)
            # A password has no reason to look like a token.
            is_password = method is None and not exchange.again and isinstance(error, NoTokenError)
            return Ignored(refusal=None if is_password else NOT_BELIEVED)
        return self._decide(claims, connect, exchange)

    async def _decide_later(
        self, token: bytes, source: KeySource, connect: Connect, exchange: Exchange
    ) -> Outcome | Ignored:
        """Look for new keys first."""
        await source.look()
        try:
            claims = claims_of(token, self._keys)
        except UnknownKeyError:
            # It may be of a key that cannot be had now: that is no reason for a device to give up its token.
            return Ignored(refusal=NOT_BELIEVED if source.error is None else UNAVAILABLE)
        return self._decide(claims, connect, exchange)

    def _decide(self, claims: dict[str, Any], connect: Connect, exchange: Exchange) -> Outcome:
        """Return what follows from the claims of a token whose signature is right."""
        before = exchange.principal
        user_name = connect.user_name if before is None else before.user_name
        try:
            believed = self._rules.check(claims, self._now_s(), user_name, connect.client_identifier.decode())
            rules = self._brought(claims)
        except (RefusedTokenError, TokenRulesError) as error:
            log.info("token_refused", authenticator=self.number, address=exchange.peer, what=str(error))
            return Refused(Reason.NOT_AUTHORIZED, f"the token is refused: {error}")
        identity = user_name if believed.user_name is None else believed.user_name
        if before is not None and identity != before.user_name:
            # One client does not become another on an open connection: its subscriptions are the first one's.
            log.info("token_refused", authenticator=self.number, address=exchange.peer, what=ANOTHER.text)
            return ANOTHER
        return Accepted(identity, rules=rules, expires_at_s=believed.expires_at_s)

    def _brought(self, claims: dict[str, Any]) -> TokenRules | None:
        """Return what a token says that its bearer may do; None: nothing. Raises TokenRulesError."""
        claim = self._table.acl_claim
        return TokenRules(claims[claim]) if claim and claim in claims else None


def _files_in(folder: Path) -> list[Path]:
    """Return the files in a folder, in order; of anything else none. Kubernetes keeps what it links to behind a dot."""
    try:
        return sorted(file for file in folder.iterdir() if not file.name.startswith(".") and file.is_file())
    except OSError:
        return []
