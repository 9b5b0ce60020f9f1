"""PUBLISH and the acknowledgements, both ways.

A PUBLISH that goes out as it came in (same version, both with or both without a packet identifier, no alias, no
subscription identifier) is one copy of the received frame with the first byte, the identifier and the remaining expiry
mended; any other is put together from its parts, which costs four copies instead of one.
"""

from broker.wire.reasons import ClientError, Reason
from broker.wire.output_buffer cimport chunk_data, output_clear, output_room
from libc.string cimport memcpy
from router.core.message cimport NO_OFFSET
from router.core.varint cimport read_varint, varint_length, write_varint
from router.matching.topic_names cimport valid_topic_name, valid_utf8

cdef enum:
    PAYLOAD_FORMAT_INDICATOR = 0x01
    MESSAGE_EXPIRY_INTERVAL = 0x02
    CONTENT_TYPE = 0x03
    RESPONSE_TOPIC = 0x08
    CORRELATION_DATA = 0x09
    SUBSCRIPTION_IDENTIFIER = 0x0B
    REASON_STRING = 0x1F
    TOPIC_ALIAS = 0x23
    USER_PROPERTY = 0x26


cdef _malformed(clause, detail):
    return ClientError(Reason.MALFORMED_PACKET, clause, detail)


cdef int _string(const uint8_t* data, uint32_t length, uint32_t* offset, bint text) except -1:
    """Step over a two-byte length and that many bytes, UTF-8 if `text`. Returns their number."""
    cdef uint32_t size
    if length - offset[0] < 2:
        raise _malformed("MQTT-1.5.4-1", "a property ends inside a length")
    size = read_u16(data + offset[0])
    if length - offset[0] - 2 < size:
        raise _malformed("MQTT-1.5.4-1", "a property is longer than its packet")
    if text and not valid_utf8(data + offset[0] + 2, size):
        raise _malformed("MQTT-1.5.4-1", "a property is not well-formed UTF-8")
    offset[0] += 2 + size
    return size


cdef int _check_publish_properties(Message message, const uint8_t* data, uint32_t length, uint16_t* alias) except -1:
    """Validate the properties of a PUBLISH that a client sent (3.3.2.3)."""
    cdef uint32_t offset = 0
    cdef uint64_t seen = 0
    cdef uint32_t start
    cdef int size
    cdef uint8_t identifier
    while offset < length:
        identifier = data[offset]
        start = offset
        offset += 1
        if identifier < 0x26:
            if seen & (<uint64_t>1 << identifier) and identifier != SUBSCRIPTION_IDENTIFIER:
                raise ClientError(Reason.PROTOCOL_ERROR, "section 3.3.2.3", f"property 0x{identifier:02X} given twice")
            seen |= <uint64_t>1 << identifier
        if identifier == USER_PROPERTY:
            _string(data, length, &offset, True)
            _string(data, length, &offset, True)
        elif identifier == MESSAGE_EXPIRY_INTERVAL:
            if length - offset < 4:
                raise _malformed("section 3.3.2.3", "Message Expiry Interval is cut off")
            message.expiry_offset = offset
            message.expires_ms = message.received_ms + <int64_t>read_u32(data + offset) * 1000
            offset += 4
        elif identifier == TOPIC_ALIAS:
            if length - offset < 2:
                raise _malformed("section 3.3.2.3", "Topic Alias is cut off")
            message.alias_offset = start
            alias[0] = read_u16(data + offset)
            if alias[0] == 0:
                raise ClientError(Reason.TOPIC_ALIAS_INVALID, "MQTT-3.3.2-8", "Topic Alias 0")
            offset += 2
        elif identifier == PAYLOAD_FORMAT_INDICATOR:
            if length - offset < 1:
                raise _malformed("section 3.3.2.3", "Payload Format Indicator is cut off")
            if data[offset] > 1:
                raise _malformed("section 3.3.2.3", f"Payload Format Indicator {data[offset]}")
            offset += 1
        elif identifier == CONTENT_TYPE:
            _string(data, length, &offset, True)
        elif identifier == RESPONSE_TOPIC:
            size = _string(data, length, &offset, True)
            if not valid_topic_name(data + offset - size, size):
                raise ClientError(Reason.PROTOCOL_ERROR, "MQTT-3.3.2-14", "Response Topic is not a topic name")
        elif identifier == CORRELATION_DATA:
            _string(data, length, &offset, False)
        elif identifier == SUBSCRIPTION_IDENTIFIER:
            raise ClientError(Reason.PROTOCOL_ERROR, "MQTT-3.3.4-6", "Subscription Identifier from a client")
        else:
            raise _malformed("section 2.2.2.2", f"property 0x{identifier:02X} in PUBLISH")
    return 0


cdef int _parse_publish_properties(Message message, const uint8_t* data, uint32_t available, uint16_t* alias) except -1:
    """Parse the properties of a PUBLISH and their length; returns how many bytes both take."""
    cdef uint32_t length = 0
    cdef int size = read_varint(data, available, &length)
    if size <= 0 or length > available - size or <uint32_t>size != varint_length(length):
        raise _malformed("section 3.3.2.3", "PUBLISH ends inside its properties")
    if length:
        message.properties = data + size
        message.properties_length = length
        _check_publish_properties(message, data + size, length, alias)
    return size + length


cdef int parse_publish(Message message, const uint8_t* frame, uint32_t header_length, uint32_t body_length,
                       uint8_t version, int64_t now_ms, uint16_t* alias) except -1:
    cdef const uint8_t* body = frame + header_length
    cdef uint8_t first = frame[0]
    cdef uint8_t qos = (first >> 1) & 3
    cdef uint32_t offset, topic_length
    cdef uint16_t packet_identifier = 0
    if qos == 3:
        raise _malformed("MQTT-3.3.1-4", "PUBLISH with QoS 3")
    if qos == 0 and first & 0x08:
        raise _malformed("MQTT-3.3.1-2", "PUBLISH with DUP at QoS 0")
    if body_length < 2:
        raise _malformed("MQTT-3.3.2-1", "PUBLISH without a topic name")
    topic_length = read_u16(body)
    offset = 2 + topic_length
    if offset + (2 if qos else 0) > body_length:
        raise _malformed("MQTT-3.3.2-1", "PUBLISH ends inside its topic name or packet identifier")
    message.topic = body + 2
    message.topic_length = <uint16_t>topic_length
    message.identifier_offset = NO_OFFSET
    if qos:
        packet_identifier = read_u16(body + offset)
        if packet_identifier == 0:
            raise _malformed("MQTT-2.2.1-3", "packet identifier 0")
        message.identifier_offset = header_length + offset
        offset += 2
    message.expiry_offset = NO_OFFSET
    message.alias_offset = NO_OFFSET
    message.expires_ms = 0
    message.received_ms = now_ms
    message.properties = NULL
    message.properties_length = 0
    alias[0] = 0
    if version == 5:
        offset += _parse_publish_properties(message, body + offset, body_length - offset, alias)
    if topic_length == 0 and alias[0] == 0:
        raise ClientError(Reason.PROTOCOL_ERROR, "section 3.3.2.1", "PUBLISH without topic name and Topic Alias")
    message.payload = body + offset
    message.payload_length = body_length - offset
    message.frame = frame
    message.frame_length = header_length + body_length
    message.qos = qos
    message.retain = first & 1
    message.version = version
    message.owned = False
    if message.kept is not None:
        message.kept = None
    return packet_identifier


cdef uint32_t expiry_left(Message message, int64_t now_ms) noexcept:
    cdef int64_t left_ms = message.expires_ms - now_ms
    return <uint32_t>((left_ms + 999) // 1000) if left_ms > 0 else 0


cdef uint32_t write_publish(Output* output, Message message, uint8_t version, uint16_t packet_identifier, uint8_t qos,
                            bint retain, bint dup, const uint8_t* ids, uint32_t ids_length, uint16_t alias,
                            bint with_topic, uint32_t packet_bytes_max, int64_t now_ms) except? 0:
    cdef uint8_t first = <uint8_t>(0x30 | (dup << 3) | (qos << 1) | retain)
    cdef uint8_t* room
    cdef uint32_t remaining, properties = 0, size, head
    cdef uint16_t topic_length
    if alias == 0 and goes_as_it_came(message, version, qos, ids_length):
        if message.frame_length > packet_bytes_max:
            return 0
        return copy_publish(output, message, packet_identifier, qos, retain, dup, now_ms)
    topic_length = message.topic_length if with_topic else 0
    remaining = 2 + topic_length + (2 if qos else 0) + message.payload_length
    if version == 5:
        properties = message.properties_length + ids_length + (3 if alias else 0)
        if message.alias_offset != NO_OFFSET:
            properties -= 3
        remaining += varint_length(properties) + properties
    size = 1 + varint_length(remaining) + remaining
    if size > packet_bytes_max:
        return 0
    room = output_room(output, size)
    room[0] = first
    room = write_varint(room + 1, remaining)
    write_u16(room, topic_length)
    room += 2
    if topic_length:
        memcpy(room, message.topic, topic_length)
        room += topic_length
    if qos:
        write_u16(room, packet_identifier)
        room += 2
    if version == 5:
        room = write_varint(room, properties)
        if alias:
            room[0] = TOPIC_ALIAS
            write_u16(room + 1, alias)
            room += 3
        if ids_length:
            memcpy(room, ids, ids_length)
            room += ids_length
        if message.properties_length:
            if message.alias_offset == NO_OFFSET:
                memcpy(room, message.properties, message.properties_length)
                if message.expiry_offset != NO_OFFSET:
                    write_u32(room + message.expiry_offset, expiry_left(message, now_ms))
                room += message.properties_length
            else:                       # the publisher's alias means nothing to anybody else
                head = message.alias_offset
                memcpy(room, message.properties, head)
                memcpy(room + head, message.properties + head + 3, message.properties_length - head - 3)
                if message.expiry_offset != NO_OFFSET:
                    write_u32(room + message.expiry_offset - (3 if message.expiry_offset > head else 0),
                              expiry_left(message, now_ms))
                room += message.properties_length - 3
    if message.payload_length:
        memcpy(room, message.payload, message.payload_length)
    return size


cdef int parse_long_acknowledgement(const uint8_t* body, uint32_t length, uint8_t first_byte, uint8_t version,
                                    uint16_t* packet_identifier) except -1:
    cdef uint32_t properties = 0, offset
    cdef int size
    cdef uint8_t reason = 0
    cdef uint8_t packet_type = first_byte >> 4
    cdef const uint8_t* data
    cdef bint reason_string = False
    if first_byte & 0x0F != (2 if packet_type == 6 else 0) and not (version == 3 and first_byte == 0x6A):
        raise _malformed("MQTT-2.1.3-1" if packet_type != 6 else "MQTT-3.6.1-1", "reserved bits of the fixed header")
    if length < 2 or (version < 5 and length != 2):
        raise _malformed("section 3.4.2", f"acknowledgement of {length} bytes")
    packet_identifier[0] = read_u16(body)
    if packet_identifier[0] == 0:
        raise _malformed("MQTT-2.2.1-3", "packet identifier 0")
    if length > 2:
        reason = body[2]
        if packet_type >= 6:
            if reason != 0 and reason != 0x92:
                raise _malformed("MQTT-3.6.2-1" if packet_type == 6 else "MQTT-3.7.2-1", f"reason code 0x{reason:02X}")
        elif reason not in (0, 0x10, 0x80, 0x83, 0x87, 0x90, 0x91, 0x97, 0x99):
            raise _malformed("MQTT-3.4.2-1" if packet_type == 4 else "MQTT-3.5.2-1", f"reason code 0x{reason:02X}")
    if length > 3:
        size = read_varint(body + 3, length - 3, &properties)
        if size <= 0 or properties != length - 3 - size:
            raise _malformed("MQTT-2.2.2-1", "the properties of an acknowledgement do not fill it")
        data = body + 3 + size
        offset = 0
        while offset < properties:
            offset += 1
            if data[offset - 1] == USER_PROPERTY:
                _string(data, properties, &offset, True)
                _string(data, properties, &offset, True)
            elif data[offset - 1] == REASON_STRING:
                if reason_string:
                    raise ClientError(Reason.PROTOCOL_ERROR, "section 3.4.2.2.2", "Reason String given twice")
                reason_string = True
                _string(data, properties, &offset, True)
            else:
                raise _malformed("section 2.2.2.2", f"property 0x{data[offset - 1]:02X} in an acknowledgement")
    return reason


def encode_message(Message message not None, int version, int packet_identifier, int qos, bint retain, bint dup,
                   bytes ids=b"", int alias=0, bint with_topic=True, int64_t now_ms=0) -> bytes:
    """write_publish for tests and tools: returns the bytes."""
    cdef Output output
    output.head = output.tail = NULL
    output.pending = 0
    write_publish(&output, message, version, packet_identifier, qos, retain, dup, <const uint8_t*><char*>ids, len(ids),
                  alias, with_topic, 0xFFFFFFFF, now_ms)
    try:
        return (<const uint8_t*>chunk_data(output.head))[:output.pending]
    finally:
        output_clear(&output)


def decode_message(bytes frame not None, int version, int64_t now_ms=0):
    """parse_publish for tests and tools: returns (owned message, packet identifier, topic alias).

    Raises ClientError for what a client may not send. The frame has to be whole.
    """
    cdef uint32_t length = 0
    cdef uint16_t alias = 0
    cdef const uint8_t* data = <const uint8_t*><char*>frame
    cdef int size = read_varint(data + 1, max(len(frame) - 1, 0), &length)
    if size <= 0 or <Py_ssize_t>(1 + size + length) != len(frame):
        raise _malformed("section 2.1.4", "not one whole packet")
    cdef Message message = Message.__new__(Message)
    identifier = parse_publish(message, data, 1 + size, length, version, now_ms, &alias)
    return message.keep(), identifier, alias
