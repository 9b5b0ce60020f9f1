"""A connection to a broker by any way there is: what MQTT sends goes in, what MQTT receives comes out. No threads."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Protocol

from broker.cli.common import WEBSOCKET_PATH
from broker.cli.mqtt_errors import ConnectionLostError, MqttError, WebSocketError
from broker.cli.mqtt_url import Way
from broker.transport.tls_words import TlsError

if TYPE_CHECKING:
    from broker.cli.websocket_client import WebSocketClient
    from broker.transport.tls_client import ClientContext, TlsClient

RECEIVE_BYTES = 1 << 16  # at most so much is read at once
TLS_ALERT = b"\x15"  # the first byte of what a port with TLS says to a client without
USUALLY_TLS = (8883, 8084)


class Layer(Protocol):
    """What changes bytes between the socket and MQTT. What its calls put out lies in take() then."""

    @property
    def opened(self) -> bool:
        """Whether MQTT's bytes can go through."""

    @property
    def ended(self) -> bool:
        """Whether nothing more comes."""

    def receive(self, data: bytes, /) -> bytes:
        """Take what comes from the socket's side; return what that is on MQTT's."""

    def send(self, data: bytes, /) -> None:
        """Take what goes to the socket's side."""

    def take(self) -> bytes:
        """Return what is to go there, and forget it."""

    def finish(self) -> None:
        """Say goodbye in the layer's own words."""


class Connection:
    """One connection; to be made anew when it is lost. Nothing waits here but the connecting itself.

    Args:
        way: where to, and what is spoken there.
        context: what TLS is made with; None without TLS.
        timeout_s: how long each of the host's addresses is tried.

    Raises ConnectionLostError: nobody answers.
    """

    def __init__(self, way: Way, context: ClientContext | None, timeout_s: float) -> None:
        assert way.is_tls == (context is not None), way
        self.way = way
        self._socket = _connected(way, timeout_s)
        self._layers: list[Layer] = []
        self._tls: TlsClient | None = None
        if context is not None:
            from broker.transport.tls_client import TlsClient

            self._tls = TlsClient(context, way.host)
            self._layers.append(self._tls)
        self._websocket: WebSocketClient | None = None
        if way.is_websocket:
            # What a way does not need is not loaded.
            from broker.cli.websocket_client import WebSocketClient

            self._websocket = WebSocketClient(str(way).encode("idna").decode("ascii"), way.path or WEBSOCKET_PATH)
            self._layers.append(self._websocket)
        self._pending = bytearray()  # what MQTT sent before all layers were open
        self._output = bytearray()  # for the socket
        self._begun = False  # something has come
        self._answered = False  # ... that was MQTT's
        self._move_out()

    def fileno(self) -> int:
        """Return the socket's descriptor, for select()."""
        return self._socket.fileno()

    @property
    def unsent(self) -> int:
        """Bytes that wait to be sent."""
        return len(self._pending) + len(self._output)

    @property
    def has_output(self) -> bool:
        """Whether it is worth waiting until the socket takes something."""
        return bool(self._output)

    @property
    def ended(self) -> bool:
        """Whether the broker has said, in a layer's words, that nothing more comes."""
        return any(layer.ended for layer in self._layers)

    @property
    def opening(self) -> str | None:
        """What is not over yet of what is before MQTT; None: MQTT speaks."""
        if self._tls is not None and not self._tls.opened:
            return "the TLS handshake"
        return "the request for a WebSocket" if not all(layer.opened for layer in self._layers) else None

    @property
    def tls(self) -> str | None:
        """Version of TLS and cipher suite; None without TLS."""
        return None if self._tls is None else str(self._tls.version)

    def send(self, data: bytes) -> None:
        """Send something of MQTT, as soon as that is possible."""
        if self._layers:
            self._pending += data
            self._move_out()
        else:
            self._output += data
            self.flush()

    def flush(self) -> None:
        """Give the socket what it takes."""
        if not self._output:
            return
        try:
            sent = self._socket.send(self._output)
        except BlockingIOError:
            return
        except OSError:
            # The broker may have said why before it closed: what can still be read comes first.
            self._output.clear()
            self._pending.clear()
            return
        del self._output[:sent]

    def receive(self) -> bytes:
        """Return what has come of MQTT, which may be nothing. Raises MqttError when there is no connection any more."""
        try:
            data = self._socket.recv(RECEIVE_BYTES)
        except BlockingIOError:
            return b""
        except OSError as error:
            raise self.lost((error.strerror or str(error)).lower()) from None
        if not data:
            raise self.lost()
        self._begun = True
        try:
            for layer in self._layers:
                data = layer.receive(data)
        except (TlsError, WebSocketError) as error:
            self._move_out(only_layers=True)  # the broker is told why, for its log
            raise self._failed(error) from None
        self._move_out()
        if data and not self._answered:
            self._answered = True
            self._check_beginning(data)
        return data

    def lost(self, why: str | None = None) -> MqttError:
        """Return the error for the end of the connection, in whose words the system's may come."""
        with_why = f" ({why})" if why is not None else ""
        opening = self.opening
        if opening is None:
            if self._answered:
                what = "the broker closed the connection" if why is None else "the connection was lost"
                return ConnectionLostError(what + with_why)
            hint = ""
            if not self.way.is_tls and self.way.port in USUALLY_TLS:
                hint = f"; port {self.way.port} is one of TLS mostly: mqtts:// or wss://"
            return ConnectionLostError(f"the broker closed the connection before it answered CONNECT{with_why}{hint}")
        if self._tls is not None and not self._tls.opened:
            how = (
                "closed the connection in the handshake"
                if self._begun
                else ("closed the connection at once, as one without TLS does")
            )
            return ConnectionLostError(f"TLS with {self.way} failed: what answers there {how}{with_why}")
        refusal = self._websocket.refusal if self._websocket is not None else None
        if refusal is not None:
            return self._failed(refusal)
        how = "" if self._begun and self._tls is None else ", as one without WebSocket does"
        return ConnectionLostError(
            f"there is no WebSocket at {self.way}: what answers there closed the connection{how}{with_why}"
        )

    def finish(self) -> None:
        """Say goodbye behind what is unsent."""
        for layer in reversed(self._layers):
            layer.finish()
            self._move_out(only_layers=True)

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()

    def _move_out(self, *, only_layers: bool = False) -> None:
        """Move what MQTT and the layers want to be sent through the layers to the socket; only with layers."""
        if self._pending and not only_layers and self.opening is None:
            data = bytes(self._pending)
            self._pending.clear()
            self._layers[-1].send(data)
        for index in range(len(self._layers) - 1, 0, -1):
            if self._layers[index - 1].opened:
                self._layers[index - 1].send(self._layers[index].take())
        if self._layers:
            self._output += self._layers[0].take()
        self.flush()

    def _check_beginning(self, data: bytes) -> None:
        """Say it if the first thing that comes is not MQTT, but another way of ours."""
        if data[:1] == TLS_ALERT and self._tls is None:
            raise MqttError(f"the broker at {self.way} speaks TLS there: mqtts://")
        if data.startswith(b"HTTP/") and self._websocket is None:
            status = data.partition(b"\r\n")[0].partition(b" ")[2].decode("ascii", "replace")
            shown = "".join(character for character in status if character.isprintable())
            scheme = "ws" if self._tls is None else "wss"
            raise MqttError(f"what answers at {self.way} speaks HTTP ({shown}): {scheme}://, if it is a broker")

    def _failed(self, error: TlsError | WebSocketError) -> MqttError:
        if isinstance(error, TlsError):
            return MqttError(f"TLS with {self.way} failed: {error}")
        if self.opening is None:
            return MqttError(f"the connection was lost: {error}")
        kind = ConnectionLostError if error.for_now else MqttError
        return kind(f"there is no WebSocket at {self.way}: {error}")


def _connected(way: Way, timeout_s: float) -> socket.socket:
    try:
        if way.transport == "unix":
            connected = socket.socket(socket.AF_UNIX)
            try:
                connected.settimeout(timeout_s)
                connected.connect(way.path)
            except BaseException:
                connected.close()
                raise
        else:
            connected = socket.create_connection((way.host, way.port), timeout_s)
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    except (OSError, UnicodeError) as error:
        # UnicodeError: the name has a label that no name of DNS can have.
        text = (
            "no such name"
            if isinstance(error, UnicodeError)
            else (error.strerror or str(error) or "no answer in time").lower()
        )
        raise ConnectionLostError(f"no broker answers at {way} ({text})") from None
    connected.setblocking(False)
    return connected
