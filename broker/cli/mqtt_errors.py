"""Why there is no connection to a broker, or none any more, in words for a person."""


class MqttError(Exception):
    """What ended or spoiled the connection, as a sentence for a person, without its full stop."""


class ConnectionLostError(MqttError):
    """There is no connection, or there is none any more; to connect again may help."""


class WebSocketError(Exception):
    """Why there is no WebSocket, or no more, as part of a sentence for a person.

    Attributes:
        for_now: the same request may be answered otherwise later.
    """

    def __init__(self, what: str, *, for_now: bool = False) -> None:
        super().__init__(what)
        self.for_now = for_now
