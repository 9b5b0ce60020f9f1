"""A listener in a worker: what its connections go through, and what is known of them before they say anything."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from broker.transport.facts import Facts
from broker.transport.layer import Filter

if TYPE_CHECKING:
    from broker.config.listener import Listener
    from broker.transport.layer import Layer


class Entrance:
    """One listener of the settings, in one worker.

    Args:
        number: of the listener, in the order of the settings.
        settings: its own.
        transform: makes a filter of the embedding program for each connection, next to the protocol; None: none.

    Attributes:
        is_bare: bytes go from the socket to the protocol as they are.

    Raises StartError: a file that it needs cannot be used.
    """

    def __init__(self, number: int, settings: Listener, transform: Callable[[], Any] | None = None) -> None:
        self.number = number
        self.settings = settings
        self._transform = transform
        address = settings.where
        self.is_bare = transform is None and not (address.is_tls or address.is_websocket or settings.proxy_protocol)
        self._bare_facts = Facts(listener=number)

    def facts(self) -> Facts:
        """Return what is known of a connection that has just come; one that says nothing more shares it with others."""
        return self._bare_facts if self.is_bare else Facts(listener=self.number)

    def layers(self, facts: Facts, peer: str | None) -> list[Layer]:
        """Return new layers for a connection, the one at the socket first.

        Args:
            facts: where they put what they find out.
            peer: HOST:PORT at the other end of its socket; None: it has none, or is gone.
        """
        layers: list[Layer] = []
        if self._transform is not None:
            layers.append(Filter(self._transform()))
        return layers
