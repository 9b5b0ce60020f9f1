"""What may come before a client is let in, and what comes in its place from those who want another protocol."""

from broker.wire.codec cimport AUTH, CONNECT, DISCONNECT

from broker.wire.reasons import ClientError, CloseReason, Reason

HTTP_BEGINNINGS = frozenset((b"GET ", b"HEAD", b"POST", b"PUT ", b"DELE", b"OPTI", b"PATC", b"CONN", b"TRAC", b"PRI "))


cdef int check_first_bytes(const uint8_t* data, size_t length) except -1:
    if data[0] == CONNECT_FIRST:
        return 0
    if data[0] == 0x16 and data[1] == 0x03:
        raise ClientError(Reason.PROTOCOL_ERROR, "MQTT-3.1.0-1", "a TLS ClientHello on a port without TLS",
                          CloseReason.TLS_ON_PLAIN_PORT)
    if data[0] >> 4 == CONNECT:
        return 0                    # with reserved flags: malformed
    if 0x41 <= data[0] <= 0x5A and 0x41 <= data[1] <= 0x5A:
        if length < 4:
            return 1
        if data[:4] in HTTP_BEGINNINGS:
            raise ClientError(Reason.PROTOCOL_ERROR, "MQTT-3.1.0-1", "an HTTP request on an MQTT port",
                              CloseReason.HTTP_ON_PLAIN_PORT)
    raise ClientError(Reason.PROTOCOL_ERROR, "MQTT-3.1.0-1", f"packet type {data[0] >> 4} before CONNECT")


cdef int check_before_open(bint is_connecting, uint8_t packet_type, uint32_t packet_length, uint32_t bytes_max) except -1:
    if is_connecting and packet_type != AUTH and packet_type != DISCONNECT:
        raise ClientError(Reason.PROTOCOL_ERROR, "MQTT-3.1.2-30", "another packet during authentication")
    if packet_length > bytes_max:
        raise ClientError(Reason.PACKET_TOO_LARGE, "section 4.13",
                          f"{packet_length} bytes before authentication, {bytes_max} are allowed")
    return 0
