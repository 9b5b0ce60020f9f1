"""What can be set for one authorizer: what it asks, and where it looks."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from msgspec import Meta, Struct

from broker.config.http_table import AuthorizationFile, CacheS, Cafile, ConnectionsMax, Contract, StaleS, TimeoutS, Urls

Subscribe = Annotated[
    Literal["narrow", "strict"],
    Meta(
        description="A topic filter of which a client may read a part only: narrow: it is sent that part; strict: it "
        "is refused, if one of these tables says so."
    ),
]

Shadow = Annotated[
    Annotated[str, Meta(min_length=1)] | None,
    Meta(
        description="A file of the same kind that is asked beside this one, and decides about nothing: "
        "`shoal admin shadow` says what it would refuse.",
        examples=["new.conf"],
    ),
]


class AuthorizerTable(Struct, frozen=True, kw_only=True, tag_field="type"):
    """What all authorizers have."""

    name: Annotated[
        Annotated[str, Meta(min_length=1)] | None,
        Meta(description="What `authorizers` of a listener call it.", examples=["plant"]),
    ] = None


class AclFileTable(AuthorizerTable, frozen=True, kw_only=True, tag="acl_file"):
    """One authorizer that asks an ACL file of mosquitto's."""

    file: Annotated[
        str,
        Meta(
            min_length=1,
            description="Lines `user`, `topic` and `pattern`, as mosquitto has them.",
            examples=["acl.conf"],
        ),
    ]
    subscribe: Subscribe = "narrow"
    shadow: Shadow = None


class RulesFileTable(AuthorizerTable, frozen=True, kw_only=True, tag="rules_file"):
    """One authorizer that asks a file of rules about QoS, RETAIN, addresses, groups, certificates, hours."""

    file: Annotated[
        str,
        Meta(
            min_length=1, description="TOML, a table [[rule]] for each rule: docs/access.md.", examples=["rules.toml"]
        ),
    ]
    subscribe: Subscribe = "narrow"
    shadow: Shadow = None


class HttpRightsTable(AuthorizerTable, frozen=True, kw_only=True, tag="http"):
    """One authorizer that asks servers over HTTP."""

    urls: Urls
    contract: Contract = "shoal"
    timeout_s: TimeoutS = 3.0
    connections_max: ConnectionsMax = 8
    cache_s: CacheS = 60.0
    stale_s: StaleS = 0.0
    authorization_file: AuthorizationFile = None
    cafile: Cafile = None
    subscribe: Subscribe = "narrow"


Authorizer = AclFileTable | RulesFileTable | HttpRightsTable
"""One [[authorizer]] table; `type` tells which."""

AUTHORIZER_TYPES: Final[dict[str, type[Authorizer]]] = {
    "acl_file": AclFileTable,
    "rules_file": RulesFileTable,
    "http": HttpRightsTable,
}
