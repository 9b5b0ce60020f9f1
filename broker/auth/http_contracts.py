"""What is asked of a server that decides on clients, and how its answers are read: pure.

Each contract is that of another broker, or of a plugin, so that a server which stands already can stay.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import urlencode

import msgspec

from broker.auth.http_client import HttpAnswer, HttpError
from broker.auth.token_rules import TokenRules, TokenRulesError

ALLOW: Final = "allow"
DENY: Final = "deny"
IGNORE: Final = "ignore"

_MAX_AGE: Final = re.compile(r"(?:^|,)\s*max-age\s*=\s*\"?([0-9]{1,9})\"?\s*(?=,|$)", re.IGNORECASE)
_STALE: Final = re.compile(r"(?:^|,)\s*stale-if-error\s*=\s*\"?([0-9]{1,9})\"?\s*(?=,|$)", re.IGNORECASE)
_NOT_KEPT: Final = re.compile(r"(?:^|,)\s*(?:no-store|no-cache)\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Login:
    """Of whom a server is asked.

    Attributes:
        password: None: the CONNECT has none.
        host, port: the client's, None if they are not known.
        common_name, subject: of its certificate, None without one.
    """

    client_identifier: str
    user_name: str | None
    password: str | None
    version: int
    clean_start: bool
    host: str | None
    port: int | None
    listener: int
    common_name: str | None
    subject: str | None


@dataclass(frozen=True, slots=True)
class Question:
    """A request. What it says does not show: a password may be in it."""

    headers: tuple[tuple[str, str], ...] = field(repr=False)
    body: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a server has decided.

    Attributes:
        result: ALLOW, DENY or IGNORE.
        user_name: of the client; None: that of its CONNECT.
        rules: what the client may do; None: it says nothing of that.
        expires_at_s: when that ends, Unix seconds; None: never.
    """

    result: str
    user_name: str | None = None
    groups: tuple[str, ...] = ()
    superuser: bool = False
    rules: TokenRules | None = None
    expires_at_s: float | None = None


class _Ours(msgspec.Struct):
    result: str
    user_name: str | None = None
    groups: tuple[str, ...] = ()
    superuser: bool = False
    expires_at: float | None = None
    acl: Any = msgspec.UNSET


class _Emqx(msgspec.Struct):
    result: str
    is_superuser: bool = False
    expire_at: float | None = None
    acl: Any = msgspec.UNSET


class _VerneMq(msgspec.Struct):
    result: Any


def json_question(**fields: Any) -> Question:
    """Return a question in JSON."""
    return Question((("Content-Type", "application/json"),), msgspec.json.encode(fields))


def _ask_ours(login: Login) -> Question:
    return json_question(
        client_identifier=login.client_identifier,
        user_name=login.user_name,
        password=login.password,
        version=login.version,
        address=login.host,
        listener=login.listener,
        certificate=None if login.subject is None else {"cn": login.common_name, "dn": login.subject},
    )


def _ask_emqx(login: Login) -> Question:
    return json_question(
        clientid=login.client_identifier,
        username=login.user_name,
        password=login.password,
        peerhost=login.host,
        cert_common_name=login.common_name,
        cert_subject=login.subject,
    )


def _ask_vernemq(login: Login) -> Question:
    five = login.version == 5
    asked = json_question(
        peer_addr=login.host,
        peer_port=login.port,
        username=login.user_name,
        password=login.password,
        mountpoint="",
        client_id=login.client_identifier,
        **{"clean_start" if five else "clean_session": login.clean_start},
    )
    hook = "auth_on_register_m5" if five else "auth_on_register"
    return Question((*asked.headers, ("vernemq-hook", hook)), asked.body)


def _ask_go_auth(login: Login) -> Question:
    return json_question(
        username=login.user_name or "", password=login.password or "", clientid=login.client_identifier
    )


def _ask_rabbitmq(login: Login) -> Question:
    return Question(
        (("Content-Type", "application/x-www-form-urlencoded"),),
        urlencode(
            {
                "username": login.user_name or "",
                "password": login.password or "",
                "vhost": "/",
                "client_id": login.client_identifier,
            }
        ).encode(),
    )


def _read_ours(answer: HttpAnswer) -> Verdict:
    said = decoded(expect(answer, 200), _Ours)
    result = one_of(said.result)
    return Verdict(result, said.user_name, said.groups, said.superuser, _rules_of(result, said.acl), said.expires_at)


def _read_emqx(answer: HttpAnswer) -> Verdict:
    if answer.status == 204:
        return Verdict(ALLOW)
    if answer.status != 200:
        return Verdict(IGNORE)  # as EMQX has it; what is down has not come here
    said = decoded(answer, _Emqx)
    result = one_of(said.result)
    return Verdict(result, superuser=said.is_superuser, rules=_rules_of(result, said.acl), expires_at_s=said.expire_at)


def _read_vernemq(answer: HttpAnswer) -> Verdict:
    result = decoded(expect(answer, 200), _VerneMq).result
    if isinstance(result, dict) and "error" in result:
        return Verdict(DENY)
    if result not in ("ok", "next"):
        raise HttpError("a result that is none of the contract's")
    return Verdict(ALLOW if result == "ok" else IGNORE)


def _read_go_auth(answer: HttpAnswer) -> Verdict:
    return Verdict(ALLOW if answer.status == 200 else DENY)


def _read_rabbitmq(answer: HttpAnswer) -> Verdict:
    words = expect(answer, 200, 201).body.decode("utf-8", "replace").split()
    if not words or words[0] not in ("allow", "deny", "refused"):
        raise HttpError("an answer that is neither allow nor deny")
    return Verdict(ALLOW, groups=tuple(words[1:])) if words[0] == "allow" else Verdict(DENY)


CONTRACTS: Final[Mapping[str, tuple[Callable[[Login], Question], Callable[[HttpAnswer], Verdict]]]] = {
    "shoal": (_ask_ours, _read_ours),
    "emqx": (_ask_emqx, _read_emqx),
    "vernemq": (_ask_vernemq, _read_vernemq),
    "mosquitto-go-auth": (_ask_go_auth, _read_go_auth),
    "rabbitmq": (_ask_rabbitmq, _read_rabbitmq),
}


def verdict_of(contract: str, answer: HttpAnswer) -> Verdict:
    """Return what a server has decided. Raises HttpError: it is out of order, or its answer is none."""
    if answer.status >= 500 or answer.status == 429:
        raise HttpError(f"answered {answer.status}")
    verdict = CONTRACTS[contract][1](answer)
    if verdict.user_name is not None and not (
        0 < len(verdict.user_name.encode("utf-8", "replace")) <= 65_535 and "\0" not in verdict.user_name
    ):
        raise HttpError("a user name that is none")
    if verdict.expires_at_s is not None and not 0 <= verdict.expires_at_s < 1 << 40:
        raise HttpError("an end that is no time")
    return verdict


def kept_for(headers: Mapping[str, str], default_s: float, default_stale_s: float) -> tuple[float, float]:
    """Return for how long an answer counts, and how much longer if no server answers; in seconds (RFC 9111, 5861)."""
    said = headers.get("cache-control", "")
    if _NOT_KEPT.search(said):
        return 0.0, 0.0
    age, stale = _MAX_AGE.search(said), _STALE.search(said)
    return (float(age[1]) if age else default_s), (float(stale[1]) if stale else default_stale_s)


def expect(answer: HttpAnswer, *statuses: int) -> HttpAnswer:
    """Return an answer with one of these statuses. Raises HttpError for any other."""
    if answer.status not in statuses:
        raise HttpError(f"answered {answer.status}, expected {statuses[0]}")
    return answer


def decoded(answer: HttpAnswer, kind: type[Any]) -> Any:
    """Return what a body of JSON says. Raises HttpError."""
    try:
        return msgspec.json.decode(answer.body, type=kind)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        raise HttpError("an answer that is not what the contract says") from None


def _rules_of(result: str, acl: Any) -> TokenRules | None:
    """Return what a client that is let in may do; None: nothing is said of it."""
    if result != ALLOW or acl is msgspec.UNSET:
        return None
    try:
        return TokenRules(acl)
    except TokenRulesError as error:
        raise HttpError(f"rules that cannot be read: {error}") from None


def one_of(result: str) -> str:
    """Return a result. Raises HttpError for what is none."""
    if result not in (ALLOW, DENY, IGNORE):
        raise HttpError("a result that is neither allow, deny nor ignore")
    return result
