"""A listener in a worker: what its connections go through, and what is known of them before they say anything."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from broker.transport.facts import Certificate, Facts
from broker.transport.layer import Filter
from broker.transport.proxies import Proxies

if TYPE_CHECKING:
    from broker.config.listener import Listener
    from broker.config.loader import Config
    from broker.transport.layer import Layer
    from broker.transport.tls_context import TlsContext


class Entrance:
    """One listener of the settings, in one worker.

    Args:
        number: of the listener, in the order of the settings.
        settings: its own.
        opening_bytes_max: that a client may send before a handshake is over.
        transform: makes a filter of the embedding program for each connection, next to the protocol; None: none.

    Attributes:
        context: what TLS handshakes are made with; None without TLS.
        handshakes: how many there were, "full" and "resumed".
        is_bare: bytes go from the socket to the protocol as they are.

    Raises StartError: a file that it needs cannot be used.
    """

    def __init__(
        self, number: int, settings: Listener, opening_bytes_max: int, transform: Callable[[], Any] | None = None
    ) -> None:
        self.number = number
        self.settings = settings
        self._transform = transform
        address = settings.where
        self.is_bare = transform is None and not (address.is_tls or address.is_websocket or settings.proxy_protocol)
        self._bare_facts = Facts(listener=number)
        self._proxies = Proxies(settings.proxy_from, is_unix=address.scheme == "unix")
        self._opening_bytes_max = opening_bytes_max
        self.handshakes = {"full": 0, "resumed": 0}
        self.context: TlsContext | None = None
        if address.is_tls:
            # Here, so that a broker without TLS loads none of it.
            from broker.transport.tls import Tls
            from broker.transport.tls_context import write_keys_to

            self._tls = Tls
            self.context = self.context_anew()
            if settings.tls_keylog:
                write_keys_to(settings.tls_keylog)
        # What a listener does not need is not loaded.
        self._make_websocket = self._websockets() if address.is_websocket else None

    @property
    def files(self) -> list[str]:
        """The files, and the folder, that its TLS rests on."""
        settings = self.settings
        single = (settings.cafile, settings.capath, settings.crlfile, settings.psk_file)
        return [*settings.certfile, *settings.keyfile, *(path for path in single if path is not None)]

    def context_anew(self) -> TlsContext:
        """Read its files, and return what they say. From any thread. Raises StartError."""
        from broker.transport.tls_context import TlsContext

        context = TlsContext(self.settings)
        context.handshakes = self.handshakes
        return context

    @property
    def certificates(self) -> tuple[Certificate, ...]:
        """Those that it shows its clients, in the order of the settings; none without TLS."""
        return () if self.context is None else self.context.certificates

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
        if self.settings.proxy_protocol:
            from broker.transport.proxy_layer import ProxyLayer

            layers.append(ProxyLayer(self._proxies, peer))
        if self.context is not None:
            layers.append(self._tls(self.context, facts, self._opening_bytes_max))
        if self._make_websocket is not None:
            layers.append(self._make_websocket(facts, peer))
        if self._transform is not None:
            layers.append(Filter(self._transform()))
        return layers

    def _websockets(self) -> Callable[[Facts, str | None], Layer]:
        from broker.transport.upgrade import Upgrade, Upgrades
        from broker.transport.websocket import WebSocket

        settings = self.settings
        upgrades = Upgrades(
            settings.websocket_paths, settings.websocket_origins, settings.websocket_subprotocol_required, self._proxies
        )
        return lambda facts, peer: WebSocket(Upgrade(upgrades, facts, peer))


def check_listeners(config: Config) -> None:
    """Read what the listeners need, and let go of it: a file that cannot be used ends the start in one sentence.

    Raises StartError.
    """
    if config.workers > 1:
        for number, listener in enumerate(config.listeners):
            Entrance(number, listener, 0)
