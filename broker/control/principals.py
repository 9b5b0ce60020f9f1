"""Principals of what the log has kept."""

from __future__ import annotations

from typing import Any

import msgspec

from broker.auth.principal import Principal
from broker.logs import get
from broker.transport.facts import Certificate
from broker.wire.rendering import text_of

log = get("acl")

_KEPT = msgspec.msgpack.Decoder(tuple[str | None, str | None, int, Certificate | None, tuple[str, ...], bool, Any])


def restored(client_identifier: bytes, kept: bytes) -> Principal | None:
    """Return the principal that Principal.encoded() was called of; None: nothing that this version knows."""
    try:
        user_name, address, listener, certificate, groups, superuser, rules = _KEPT.decode(kept)
    except msgspec.MsgspecError as error:
        log.warning("principal_unreadable", client=text_of(client_identifier), error=str(error))
        return None
    return Principal(user_name, client_identifier, address, listener, certificate, groups, superuser, rules)
