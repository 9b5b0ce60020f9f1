"""The files that settings name are read before anything rests on them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from broker.config.loader import Config


def check_files(config: Config) -> None:
    """Read what listeners, authenticators and authorizers need. Raises StartError: it cannot be used."""
    from broker.transport.listener import check_listeners

    check_listeners(config)
    if config.authenticator:
        from broker.auth.chain import check_authenticators

        check_authenticators(config)
    if config.authorizer:
        from broker.auth.authorizers import check_authorizers

        check_authorizers(config)
