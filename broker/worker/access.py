"""Who says who a client is and what it may do, as the settings and the program around a worker have it."""

from __future__ import annotations

from _blake2 import blake2b  # hashlib would load OpenSSL
from typing import TYPE_CHECKING, Any

from broker.auth.acl import AllowAll
from broker.config.authenticator import JwtTable
from broker.config.start_error import StartError
from mesh.node_identity import NodeError, read_node

if TYPE_CHECKING:
    from pathlib import Path

    from broker.auth.acl import Acl
    from broker.auth.authenticator import Authenticator
    from broker.auth.authorizers import Authorizers
    from broker.auth.chain import Member
    from broker.auth.dynamic_security.authenticator import DynamicLogins
    from broker.auth.outcome import Pending
    from broker.config.loader import Config
    from broker.control.controller import Controller
    from broker.worker.placement import Place


def acl_of(config: Config, given: Acl | None, members: list[Member]) -> tuple[Acl, Authorizers | None]:
    """Return the ACL, and the authorizers of the settings if there are any. Raises StartError.

    Where clients have roles these are asked first, and about what they leave open the authorizers, and the rules that
    clients bring.
    """
    logins = logins_of(members)
    if logins is None and not config.authorizer and (given is not None or not config.authenticator):
        return given or AllowAll(), None
    # Here, so that a broker without one loads none of it.
    from broker.auth import authorizers
    from broker.auth.rule_chain import RuleChain

    if logins is None:
        return authorizers.acl_of(config, given)
    if given is not None:
        raise StartError("There is an ACL, and clients with roles (dynamic_security): expected one or the other.")
    asked = authorizers.authorizers_of(config) if config.authorizer else None
    if asked is not None:
        logins.rights.leave_open_to(asked.chain)
    elif authorizers.brings_rules(config):
        logins.rights.leave_open_to(RuleChain((), decides_by_qos=True))
    return logins.rights, asked


def authenticator_of(
    config: Config, given: Authenticator | None, folder: Path | None, place: Place | None = None
) -> tuple[Authenticator | None, list[Member]]:
    """Return what says who a client is, given or as the settings have it, and what that is put together of.

    Args:
        place: of the worker among several, which share what is remembered of logins; None: it is the only one.
    """
    if not config.authenticator:
        return given, []
    # Here, so that a broker without one loads none of it.
    from broker.auth.chain import Chain, members_of

    if given is not None:
        raise StartError("There is an authenticator, and [[authenticator]] tables: expected one or the other.")
    logins = None if place is None else place.verified_logins
    members = members_of(config, None if folder is None else _salts(folder), logins)
    return Chain(config, members), members


def wait_outside(members: list[Member], pending: Pending) -> None:
    """Have no more clients accepted for a while where many passwords wait to be hashed."""
    for member in members:
        hashing = getattr(member, "hashing", None)
        if hashing is not None:
            pending.is_behind = hashing.is_behind


def renew_tokens(config: Config, controller: Controller) -> None:
    """Have clients renew their tokens by publishing them, where an authenticator of their listener takes any."""
    tokens = {table.name for table in config.authenticator if isinstance(table, JwtTable)}
    taking = {
        number
        for number, listener in enumerate(config.listeners)
        if (tokens if listener.authenticators is None else tokens.intersection(listener.authenticators))
    }
    if taking:
        # Here, so that a broker without tokens loads none of it.
        from broker.control.token_renewal import TokenRenewal

        TokenRenewal(controller.handshake, controller.router).serve(controller.requests, taking.__contains__)


def _salts(folder: Path) -> bytes | None:
    """Return what makes salts for users who do not exist: the same in all workers, and after a restart."""
    try:
        node = read_node(folder)
    except NodeError:
        return None  # said at every start
    return None if node is None else blake2b(node.key, person=b"shoal salts").digest()


def logins_of(members: list[Member]) -> DynamicLogins | None:
    """Return the authenticator of dynamic security, None: the settings have none. Raises StartError for several."""
    found: list[Any] = [member for member in members if member.kind == "dynamic_security"]
    if len(found) > 1:
        raise StartError("There are two [[authenticator]] tables of dynamic_security: expected one.")
    return found[0] if found else None
