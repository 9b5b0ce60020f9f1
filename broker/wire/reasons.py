"""Reason codes of MQTT 5.0, return codes of 3.1.1, and the one named reason with which every connection ends."""

from __future__ import annotations

from enum import IntEnum, StrEnum


class Reason(IntEnum):
    """The reason codes of MQTT 5.0 (section 2.4), under their standard names; 0x80 and above are failures."""

    SUCCESS = 0x00
    NORMAL_DISCONNECTION = 0x00
    GRANTED_QOS_0 = 0x00
    GRANTED_QOS_1 = 0x01
    GRANTED_QOS_2 = 0x02
    DISCONNECT_WITH_WILL_MESSAGE = 0x04
    NO_MATCHING_SUBSCRIBERS = 0x10
    NO_SUBSCRIPTION_EXISTED = 0x11
    CONTINUE_AUTHENTICATION = 0x18
    RE_AUTHENTICATE = 0x19
    UNSPECIFIED_ERROR = 0x80
    MALFORMED_PACKET = 0x81
    PROTOCOL_ERROR = 0x82
    IMPLEMENTATION_SPECIFIC_ERROR = 0x83
    UNSUPPORTED_PROTOCOL_VERSION = 0x84
    CLIENT_IDENTIFIER_NOT_VALID = 0x85
    BAD_USER_NAME_OR_PASSWORD = 0x86
    NOT_AUTHORIZED = 0x87
    SERVER_UNAVAILABLE = 0x88
    SERVER_BUSY = 0x89
    BANNED = 0x8A
    SERVER_SHUTTING_DOWN = 0x8B
    BAD_AUTHENTICATION_METHOD = 0x8C
    KEEP_ALIVE_TIMEOUT = 0x8D
    SESSION_TAKEN_OVER = 0x8E
    TOPIC_FILTER_INVALID = 0x8F
    TOPIC_NAME_INVALID = 0x90
    PACKET_IDENTIFIER_IN_USE = 0x91
    PACKET_IDENTIFIER_NOT_FOUND = 0x92
    RECEIVE_MAXIMUM_EXCEEDED = 0x93
    TOPIC_ALIAS_INVALID = 0x94
    PACKET_TOO_LARGE = 0x95
    MESSAGE_RATE_TOO_HIGH = 0x96
    QUOTA_EXCEEDED = 0x97
    ADMINISTRATIVE_ACTION = 0x98
    PAYLOAD_FORMAT_INVALID = 0x99
    RETAIN_NOT_SUPPORTED = 0x9A
    QOS_NOT_SUPPORTED = 0x9B
    USE_ANOTHER_SERVER = 0x9C
    SERVER_MOVED = 0x9D
    SHARED_SUBSCRIPTIONS_NOT_SUPPORTED = 0x9E
    CONNECTION_RATE_EXCEEDED = 0x9F
    MAXIMUM_CONNECT_TIME = 0xA0
    SUBSCRIPTION_IDENTIFIERS_NOT_SUPPORTED = 0xA1
    WILDCARD_SUBSCRIPTIONS_NOT_SUPPORTED = 0xA2


class ConnectReturn(IntEnum):
    """The return codes of a CONNACK of MQTT 3.1 and 3.1.1 (3.1.1, table 3.1)."""

    ACCEPTED = 0
    UNACCEPTABLE_PROTOCOL_VERSION = 1
    IDENTIFIER_REJECTED = 2
    SERVER_UNAVAILABLE = 3
    BAD_USER_NAME_OR_PASSWORD = 4
    NOT_AUTHORIZED = 5


_CONNECT_RETURNS = {
    Reason.SUCCESS: ConnectReturn.ACCEPTED,
    Reason.UNSUPPORTED_PROTOCOL_VERSION: ConnectReturn.UNACCEPTABLE_PROTOCOL_VERSION,
    Reason.CLIENT_IDENTIFIER_NOT_VALID: ConnectReturn.IDENTIFIER_REJECTED,
    Reason.BAD_USER_NAME_OR_PASSWORD: ConnectReturn.BAD_USER_NAME_OR_PASSWORD,
    Reason.BAD_AUTHENTICATION_METHOD: ConnectReturn.BAD_USER_NAME_OR_PASSWORD,
    Reason.NOT_AUTHORIZED: ConnectReturn.NOT_AUTHORIZED,
    Reason.BANNED: ConnectReturn.NOT_AUTHORIZED,
}


def connect_return(reason: Reason) -> ConnectReturn:
    """Return the 3.1.1 return code nearest to a 5.0 reason code; what has no better word is SERVER_UNAVAILABLE."""
    return _CONNECT_RETURNS.get(reason, ConnectReturn.SERVER_UNAVAILABLE)


class CloseReason(StrEnum):
    """Why a connection ended: one word for each, the same in log, metric and admin output.

    Where the standard has a reason code for it, the word is the code's name.
    """

    # The client ended it.
    CLIENT_DISCONNECT = "client_disconnect"
    CLIENT_DISCONNECT_WITH_WILL = "client_disconnect_with_will"
    CLIENT_DISCONNECT_WITH_ERROR = "client_disconnect_with_error"  # DISCONNECT with a reason of 0x80 or above
    CONNECTION_LOST = "connection_lost"  # TCP closed without DISCONNECT
    SOCKET_ERROR = "socket_error"
    # The client was silent.
    KEEP_ALIVE_TIMEOUT = "keep_alive_timeout"
    CONNECT_TIMEOUT = "connect_timeout"  # no CONNECT in time, or no answer to a challenge
    PACKET_TIMEOUT = "packet_timeout"  # a packet was begun and not finished in time
    # The client broke the protocol or a limit.
    MALFORMED_PACKET = "malformed_packet"
    PROTOCOL_ERROR = "protocol_error"
    UNSUPPORTED_PROTOCOL_VERSION = "unsupported_protocol_version"
    TOPIC_FILTER_INVALID = "topic_filter_invalid"
    TOPIC_NAME_INVALID = "topic_name_invalid"
    TOPIC_ALIAS_INVALID = "topic_alias_invalid"
    PACKET_IDENTIFIER_IN_USE = "packet_identifier_in_use"
    PACKET_IDENTIFIER_NOT_FOUND = "packet_identifier_not_found"
    PACKET_TOO_LARGE = "packet_too_large"
    PAYLOAD_FORMAT_INVALID = "payload_format_invalid"
    RECEIVE_MAXIMUM_EXCEEDED = "receive_maximum_exceeded"
    MESSAGE_RATE_TOO_HIGH = "message_rate_too_high"
    CONNECTION_RATE_EXCEEDED = "connection_rate_exceeded"
    QUOTA_EXCEEDED = "quota_exceeded"
    RETAIN_NOT_SUPPORTED = "retain_not_supported"
    QOS_NOT_SUPPORTED = "qos_not_supported"
    SHARED_SUBSCRIPTIONS_NOT_SUPPORTED = "shared_subscriptions_not_supported"
    SUBSCRIPTION_IDENTIFIERS_NOT_SUPPORTED = "subscription_identifiers_not_supported"
    WILDCARD_SUBSCRIPTIONS_NOT_SUPPORTED = "wildcard_subscriptions_not_supported"
    TLS_ON_PLAIN_PORT = "tls_on_plain_port"
    HTTP_ON_PLAIN_PORT = "http_on_plain_port"
    WEBSOCKET_REFUSED = "websocket_refused"  # an HTTP request that opens no WebSocket here
    WEBSOCKET_PROTOCOL_ERROR = "websocket_protocol_error"  # a frame that RFC 6455 does not allow
    WEBSOCKET_TEXT_FRAME = "websocket_text_frame"  # MQTT comes in binary frames
    PROXY_HEADER_INVALID = "proxy_header_invalid"  # no header of the PROXY protocol, or a wrong one
    PROXY_NOT_TRUSTED = "proxy_not_trusted"  # the listener is for proxies, and it is none
    PLAIN_ON_TLS_PORT = "plain_on_tls_port"
    PENDING_HANDSHAKES_MAX = "pending_handshakes_max"  # it was silent in one, and others waited to begin
    # TLS could not be agreed on.
    TLS_NOTHING_IN_COMMON = "tls_nothing_in_common"  # no version, cipher suite or key exchange
    TLS_NO_CERTIFICATE = "tls_no_certificate"  # the client has to have one
    TLS_CERTIFICATE_REFUSED = "tls_certificate_refused"  # the client's: expired, revoked, of an unknown CA
    TLS_UNKNOWN_KEY = "tls_unknown_key"  # a pre-shared one
    TLS_REFUSED_BY_CLIENT = "tls_refused_by_client"  # it does not take our certificate, above all
    TLS_HANDSHAKE_FAILED = "tls_handshake_failed"
    TLS_RECORD_WRONG = "tls_record_wrong"  # after the handshake
    # The client was refused.
    CONNECTIONS_MAX = "connections_max"
    CONNECTIONS_PER_USER_MAX = "connections_per_user_max"
    SESSIONS_MAX = "sessions_max"
    CLIENT_IDENTIFIER_NOT_VALID = "client_identifier_not_valid"
    KEEP_ALIVE_TOO_LONG = "keep_alive_too_long"  # of a 3.x client, which cannot be told another
    BAD_USER_NAME_OR_PASSWORD = "bad_user_name_or_password"
    BAD_AUTHENTICATION = "bad_authentication"  # wrong method or broken exchange
    NOT_AUTHORIZED = "not_authorized"
    BANNED = "banned"
    # The server ended it.
    TAKEN_OVER = "taken_over"
    KICKED = "kicked"  # an administrator's action
    REDIRECTED = "redirected"  # use another server, or server moved
    AUTHENTICATION_EXPIRED = "authentication_expired"  # its token has ended, and was not renewed
    QUEUE_FULL = "queue_full"  # of its session, where the policy is disconnect
    MAXIMUM_CONNECT_TIME = "maximum_connect_time"
    AUTHENTICATION_TIMEOUT = "authentication_timeout"  # whoever decides on its CONNECT did not in time
    MEMORY_LIMIT = "memory_limit"  # the worker is at its limit of memory
    SERVER_BUSY = "server_busy"
    RIGHTS_UNAVAILABLE = "rights_unavailable"  # who decides on what it may publish was asked, and does not answer
    SERVER_UNAVAILABLE = "server_unavailable"
    HOME_UNAVAILABLE = "home_unavailable"  # the worker that the client lives on is away
    SERVER_SHUTDOWN = "server_shutdown"
    INTERNAL_ERROR = "internal_error"  # our fault; a traceback was logged
    RELAY_ENDED = "relay_ended"  # other end of a client whose home is elsewhere
    FILTER_FAILED = "filter_failed"  # of its transport; a traceback was logged


UNHEARD = frozenset(
    {
        CloseReason.CONNECTION_LOST,
        CloseReason.SOCKET_ERROR,
        CloseReason.TAKEN_OVER,
        CloseReason.KICKED,
        CloseReason.REDIRECTED,
        CloseReason.SERVER_SHUTDOWN,
        CloseReason.MAXIMUM_CONNECT_TIME,
        CloseReason.AUTHENTICATION_EXPIRED,
    }
)
"""Ends that follow from nothing the client sent: a DISCONNECT of its may be among what waits to be dealt with."""

LOST = frozenset({CloseReason.CONNECTION_LOST, CloseReason.SOCKET_ERROR})
"""Ends after which there is no peer any more that could be told anything."""

BY_CLIENT = frozenset(
    {
        CloseReason.CLIENT_DISCONNECT,
        CloseReason.CLIENT_DISCONNECT_WITH_WILL,
        CloseReason.CLIENT_DISCONNECT_WITH_ERROR,
        CloseReason.CONNECTION_LOST,
        CloseReason.SOCKET_ERROR,
    }
)
"""Ends that leave nothing to say to the client: its socket is closed at once."""

# Those whose close reason is not the name of the code in lower case.
_CLOSE_REASONS = {
    Reason.SUCCESS: CloseReason.CLIENT_DISCONNECT,
    Reason.DISCONNECT_WITH_WILL_MESSAGE: CloseReason.CLIENT_DISCONNECT_WITH_WILL,
    Reason.UNSPECIFIED_ERROR: CloseReason.INTERNAL_ERROR,
    Reason.IMPLEMENTATION_SPECIFIC_ERROR: CloseReason.INTERNAL_ERROR,
    Reason.SERVER_SHUTTING_DOWN: CloseReason.SERVER_SHUTDOWN,
    Reason.BAD_AUTHENTICATION_METHOD: CloseReason.BAD_AUTHENTICATION,
    Reason.SESSION_TAKEN_OVER: CloseReason.TAKEN_OVER,
    Reason.ADMINISTRATIVE_ACTION: CloseReason.KICKED,
    Reason.USE_ANOTHER_SERVER: CloseReason.REDIRECTED,
    Reason.SERVER_MOVED: CloseReason.REDIRECTED,
}
_CLOSE_REASONS.update(
    {reason: CloseReason(reason.name.lower()) for reason in Reason if reason >= 0x80 and reason not in _CLOSE_REASONS}
)


def reason_to_close(reason: Reason) -> CloseReason:
    """Return why a connection ended that *we* ended with this reason code (CONNACK or DISCONNECT).

    A code that ends no connection (0x01, 0x02, 0x10, 0x11, 0x18, 0x19) gives INTERNAL_ERROR.
    """
    return _CLOSE_REASONS.get(reason, CloseReason.INTERNAL_ERROR)


def disconnect_reason_to_close(reason: Reason) -> CloseReason:
    """Return why a connection ended that the *client* ended with a DISCONNECT of this reason code."""
    if reason == Reason.SUCCESS:
        return CloseReason.CLIENT_DISCONNECT
    if reason == Reason.DISCONNECT_WITH_WILL_MESSAGE:
        return CloseReason.CLIENT_DISCONNECT_WITH_WILL
    return CloseReason.CLIENT_DISCONNECT_WITH_ERROR


class ClientError(Exception):
    """The client's fault: this connection ends, nothing else does.

    Args:
        reason: the code to send to a 5.0 client.
        clause: the clause broken, such as "MQTT-3.1.0-2", or "section 2.2.2.2" where the standard gave it no number.
        detail: what was wrong, for the log and for the Reason String; no secrets, no client data beyond numbers.
        close: the close reason, where it is another than the reason code's own.
    """

    __slots__ = ("clause", "close", "detail", "reason")

    def __init__(self, reason: Reason, clause: str, detail: str, close: CloseReason | None = None) -> None:
        super().__init__(reason, clause, detail, close)
        self.reason = reason
        self.clause = clause
        self.detail = detail
        self.close = reason_to_close(reason) if close is None else close

    def __str__(self) -> str:
        return f"{self.detail} [{self.clause}]"
