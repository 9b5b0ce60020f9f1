"""What [[authenticator]] tables may say."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final
from urllib.parse import urlsplit

from broker.config.authenticator import (
    AUTHENTICATOR_TYPES,
    PUBLIC_ALGORITHMS,
    SECRET_ALGORITHMS,
    Authenticator,
    DynamicSecurityTable,
    HttpTable,
    JwtTable,
)
from broker.config.setting import Problem
from broker.config.typed_tables import TypedTables

# Lists without a default, of which their type could be seen.
AUTHENTICATORS: Final = TypedTables("authenticator", AUTHENTICATOR_TYPES, ("algorithms", "urls"))


def authenticator_problems(
    tables: Iterable[Authenticator], problem: Callable[[str, Any, str], Problem]
) -> Iterator[Problem]:
    """Yield what is wrong with authenticators whose values are each in their range.

    Args:
        problem: makes one of a key, what was found and what was expected.
    """
    tables = tuple(tables)
    yield from AUTHENTICATORS.repeated_names(tables, problem)
    with_roles: list[int] = []
    for number, table in enumerate(tables, 1):
        if isinstance(table, DynamicSecurityTable):
            with_roles.append(number)
            if len(with_roles) == 2:
                yield problem(f"authenticator {number}.type", table.__struct_config__.tag, "one such table, not two")
        if isinstance(table, JwtTable):
            for name, found, expected in _jwt_problems(table):
                yield problem(f"authenticator {number}.{name}", found, expected)
        elif isinstance(table, HttpTable):
            yield from url_problems(f"authenticator {number}.urls", table.urls, problem)


URL: Final = "http:// or https://, a host, and no user name or password"


def is_url(text: str) -> bool:
    """Return whether something can be asked over HTTP, and holds no secret."""
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        return False
    return (
        parts.scheme in ("http", "https")
        and bool(parts.hostname)
        and "@" not in parts.netloc
        and port != 0
        and not parts.fragment
        and text.isascii()
        and text.isprintable()
        and " " not in text
    )


def url_problems(key: str, urls: Iterable[str], problem: Callable[[str, Any, str], Problem]) -> Iterator[Problem]:
    """Yield what is wrong with URLs of servers."""
    for url in urls:
        if not is_url(url):
            yield problem(key, _shown_url(url), URL)


def _shown_url(text: str) -> str:
    """Return a URL without what stands before an @: it may be a password."""
    return re.sub(r"//.*@", "//...@", text)


def _jwt_problems(table: JwtTable) -> Iterator[tuple[str, Any, str]]:
    unknown = [name for name in table.algorithms if name not in PUBLIC_ALGORITHMS + SECRET_ALGORITHMS]
    secret = [name for name in table.algorithms if name in SECRET_ALGORITHMS]
    if unknown:
        yield "algorithms", unknown[0], "some of " + ", ".join(PUBLIC_ALGORITHMS + SECRET_ALGORITHMS)
    elif secret and len(secret) != len(table.algorithms):
        yield (
            "algorithms",
            list(table.algorithms),
            "either those with a secret, HS256, HS384, HS512, or those with a "
            "public key: who has the public one must not be able to sign. Two tables may stand side by side",
        )
    if table.secret_file is not None and not secret:
        yield "secret_file", table.secret_file, "algorithms with a secret: HS256, HS384, HS512"
    if not table.keys and table.secret_file is None and table.jwks_url is None:
        yield "keys", [], "secret_file, or keys" if secret else "files with public keys, or jwks_url"
    if table.jwks_url is not None and not is_url(table.jwks_url):
        yield "jwks_url", _shown_url(table.jwks_url), URL
    for name, text in table.claims.items():
        if re.search(r"\$\{(?!username\}|clientid\})", text):
            yield f"claims.{name}", text, "a text in which ${username} and ${clientid} stand for the client's"
        elif "${username}" in text and table.user_claim not in ("", name):
            yield (
                f"claims.{name}",
                text,
                f"no ${{username}}: the user name is the claim {table.user_claim}. With "
                'user_claim = "" it is the CONNECT\'s',
            )
    if not table.user_claim and "${username}" not in table.claims.values():
        yield (
            "user_claim",
            "",
            'a claim, or a claim in `claims` that is "${username}": nobody would vouch for the user name of a CONNECT',
        )
    if not table.user_claim and table.token_from == "user_name":
        yield "user_claim", "", "a claim: the CONNECT's user name is the token"
