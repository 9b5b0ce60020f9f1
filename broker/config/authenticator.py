"""What can be set for one authenticator: what it asks, and where it looks."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from msgspec import Meta, Struct

from broker.config.http_table import AuthorizationFile, CacheS, Cafile, ConnectionsMax, Contract, StaleS, TimeoutS, Urls

SECRET_ALGORITHMS: Final = ("HS256", "HS384", "HS512")
PUBLIC_ALGORITHMS: Final = (
    "RS256",
    "RS384",
    "RS512",
    "PS256",
    "PS384",
    "PS512",
    "ES256",
    "ES384",
    "ES512",
    "ES256K",
    "EdDSA",
)


class AuthenticatorTable(Struct, frozen=True, kw_only=True, tag_field="type"):
    """What all authenticators have."""

    name: Annotated[
        Annotated[str, Meta(min_length=1)] | None,
        Meta(description="What `authenticators` of a listener call it.", examples=["devices"]),
    ] = None


class PasswordFileTable(AuthenticatorTable, frozen=True, kw_only=True, tag="password_file"):
    """One authenticator that knows users by their passwords."""

    file: Annotated[
        str,
        Meta(
            min_length=1,
            description="Users and hashes of their passwords, as `shoal passwd` and mosquitto_passwd write them.",
            examples=["users"],
        ),
    ]


class JwtTable(AuthenticatorTable, frozen=True, kw_only=True, tag="jwt"):
    """One authenticator that believes signed tokens, JSON Web Tokens, until they end."""

    algorithms: Annotated[
        tuple[str, ...],
        Meta(
            min_length=1,
            description="Algorithms of signatures that count: "
            + " ".join(PUBLIC_ALGORITHMS)
            + ", or "
            + " ".join(SECRET_ALGORITHMS)
            + " by themselves.",
            examples=[["ES256"]],
        ),
    ]
    keys: Annotated[
        tuple[str, ...],
        Meta(
            description="Files with public keys, or folders of them: PEM, certificates too, JWK or JWK Set.",
            examples=[["issuer.pem"]],
        ),
    ] = ()
    jwks_url: Annotated[
        Annotated[str, Meta(min_length=1)] | None,
        Meta(
            description="URL of a JWK Set with the issuer's keys, looked at from time to time, and when a token names "
            "a key that is not known.",
            examples=["https://id.example.org/.well-known/jwks.json"],
        ),
    ] = None
    jwks_refresh_s: Annotated[float, Meta(ge=1, le=86_400, description="Time between two looks at jwks_url.")] = 300.0
    jwks_cafile: Annotated[
        Annotated[str, Meta(min_length=1)] | None,
        Meta(
            description="Certificates that sign that of jwks_url, PEM; unset: those of the system.",
            examples=["id-ca.crt"],
        ),
    ] = None
    secret_file: Annotated[
        Annotated[str, Meta(min_length=1)] | None,
        Meta(description="File whose bytes are the secret of HS256, HS384, HS512.", examples=["token.secret"]),
    ] = None
    issuers: Annotated[
        tuple[str, ...],
        Meta(
            description="One of them is the token's `iss`; none given: anybody.", examples=[["https://id.example.org"]]
        ),
    ] = ()
    audience: Annotated[
        tuple[str, ...],
        Meta(
            description="One of them is in the token's `aud`; none given: the token must be for no audience.",
            examples=[["mqtt"]],
        ),
    ] = ()
    user_claim: Annotated[
        str,
        Meta(
            max_length=200,
            description="Claim that is the client's user name, whatever its CONNECT says. Empty: the CONNECT's is, and "
            "`claims` has to vouch for it.",
        ),
    ] = "sub"
    claims: Annotated[
        dict[str, str],
        Meta(
            description="What claims must say, by name; ${username} and ${clientid} stand for the client's.",
            examples=[{"client": "${clientid}"}],
        ),
    ] = {}
    acl_claim: Annotated[
        str,
        Meta(
            max_length=200,
            description="Claim that says what the client may do, in the forms of EMQX, if a token has it. Empty: none "
            "is looked at.",
        ),
    ] = "acl"
    exp_required: Annotated[
        bool, Meta(description="Whether a token must have an end, `exp`; it ends the connection, unless it is renewed.")
    ] = True
    leeway_s: Annotated[
        float, Meta(ge=0, le=3600, description="By how much the clocks of issuer and broker may differ.")
    ] = 0.0
    token_from: Annotated[
        Literal["password", "user_name"], Meta(description="Where a CONNECT without authentication method has it.")
    ] = "password"
    methods: Annotated[
        tuple[str, ...],
        Meta(
            description="Authentication methods of MQTT 5.0 that bring a token, in the CONNECT and in each AUTH that "
            "renews it."
        ),
    ] = ("JWT", "CUSTOM-JWT", "OAUTH2-JWT", "K8S-SAT")


class HttpTable(AuthenticatorTable, frozen=True, kw_only=True, tag="http"):
    """One authenticator that asks servers over HTTP."""

    urls: Urls
    contract: Contract = "shoal"
    timeout_s: TimeoutS = 3.0
    connections_max: ConnectionsMax = 8
    cache_s: CacheS = 0.0
    stale_s: StaleS = 0.0
    authorization_file: AuthorizationFile = None
    cafile: Cafile = None


class DynamicSecurityTable(AuthenticatorTable, frozen=True, kw_only=True, tag="dynamic_security"):
    """Clients, groups and roles that `mosquitto_ctrl dynsec` changes; they say as well who may do what."""

    file: Annotated[
        str,
        Meta(
            description="What the broker begins with that has no clients yet: a dynamic-security.json of mosquitto's, "
            "or what `shoal dynsec init` has made. Later it is not read.",
            examples=["dynamic-security.json"],
        ),
    ] = ""


Authenticator = PasswordFileTable | JwtTable | HttpTable | DynamicSecurityTable
"""One [[authenticator]] table; `type` tells which."""

AUTHENTICATOR_TYPES: Final[dict[str, type[Authenticator]]] = {
    "password_file": PasswordFileTable,
    "jwt": JwtTable,
    "http": HttpTable,
    "dynamic_security": DynamicSecurityTable,
}
