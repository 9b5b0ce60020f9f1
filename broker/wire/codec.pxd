"""PUBLISH and the acknowledgements, both ways."""

from broker.wire.output_buffer cimport Output, output_room
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy
from router.core.message cimport Message, NO_OFFSET

cdef enum:
    CONNECT = 1
    CONNACK = 2
    PUBLISH = 3
    SUBSCRIBE = 8
    SUBACK = 9
    UNSUBSCRIBE = 10
    UNSUBACK = 11
    PINGREQ = 12
    PINGRESP = 13
    DISCONNECT = 14
    AUTH = 15

cdef inline uint16_t read_u16(const uint8_t* data) noexcept nogil:
    return <uint16_t>((data[0] << 8) | data[1])

cdef inline uint32_t read_u32(const uint8_t* data) noexcept nogil:
    return (<uint32_t>data[0] << 24) | (<uint32_t>data[1] << 16) | (<uint32_t>data[2] << 8) | data[3]

cdef inline void write_u16(uint8_t* data, uint16_t value) noexcept nogil:
    data[0] = <uint8_t>(value >> 8)
    data[1] = <uint8_t>value

cdef inline void write_u32(uint8_t* data, uint32_t value) noexcept nogil:
    data[0] = <uint8_t>(value >> 24)
    data[1] = <uint8_t>(value >> 16)
    data[2] = <uint8_t>(value >> 8)
    data[3] = <uint8_t>value

# The Message Expiry Interval as it goes out: what was received minus the waiting [MQTT-3.3.2-6].
cdef uint32_t expiry_left(Message message, int64_t now_ms) noexcept

# Parse a whole PUBLISH into a borrowed message; everything but the topic name's characters is checked. Returns the
# packet identifier (0 at QoS 0). alias is 0 if there is none; topic_length is 0 only with an alias.
cdef int parse_publish(Message message, const uint8_t* frame, uint32_t header_length, uint32_t body_length,
                       uint8_t version, int64_t now_ms, uint16_t* alias) except -1

cdef inline bint goes_as_it_came(Message message, uint8_t version, uint8_t qos, uint32_t ids_length) noexcept:
    """Whether a PUBLISH goes out as the received frame, mended; else it is put together from its parts."""
    return (message.frame != NULL and ids_length == 0 and message.alias_offset == NO_OFFSET
            and (message.version == version or (message.version < 5 and version < 5))
            and (message.qos != 0) == (qos != 0))

cdef inline uint32_t copy_publish(Output* output, Message message, uint16_t packet_identifier, uint8_t qos, bint retain,
                                  bint dup, int64_t now_ms) except 0:
    """Append a PUBLISH that goes_as_it_came() to an output; returns its size in bytes."""
    cdef uint8_t* room = output_room(output, message.frame_length)
    memcpy(room, message.frame, message.frame_length)
    room[0] = <uint8_t>(0x30 | (dup << 3) | (qos << 1) | retain)
    if qos:
        write_u16(room + message.identifier_offset, packet_identifier)
    if message.expiry_offset != NO_OFFSET:
        write_u32(room + (message.properties - message.frame) + message.expiry_offset, expiry_left(message, now_ms))
    return message.frame_length

# Append a PUBLISH to an output. Returns its size in bytes, 0 if it would be over packet_bytes_max (nothing is written).
cdef uint32_t write_publish(Output* output, Message message, uint8_t version, uint16_t packet_identifier, uint8_t qos,
                            bint retain, bint dup, const uint8_t* ids, uint32_t ids_length, uint16_t alias,
                            bint with_topic, uint32_t packet_bytes_max, int64_t now_ms) except? 0

cdef inline int write_acknowledgement(Output* output, uint8_t packet_type, uint16_t packet_identifier, uint8_t reason,
                                      uint8_t version) except -1:
    cdef bint long_form = version == 5 and reason != 0
    cdef uint8_t* room = output_room(output, 5 if long_form else 4)
    room[0] = <uint8_t>(packet_type << 4) | (0x02 if packet_type == 6 else 0)     # PUBREL has reserved bits 0010
    room[1] = 3 if long_form else 2
    write_u16(room + 2, packet_identifier)
    if long_form:
        room[4] = reason
    return 5 if long_form else 4

# Check the body of PUBACK, PUBREC, PUBREL or PUBCOMP; returns its reason code and sets the packet identifier.
cdef inline int parse_acknowledgement(const uint8_t* body, uint32_t length, uint8_t first_byte, uint8_t version,
                                      uint16_t* packet_identifier) except -1:
    # Success without properties is two bytes: what nearly all of them are.
    if length == 2 and (first_byte & 0x0F) == (2 if first_byte >> 4 == 6 else 0) and (body[0] | body[1]):
        packet_identifier[0] = read_u16(body)
        return 0
    return parse_long_acknowledgement(body, length, first_byte, version, packet_identifier)

cdef int parse_long_acknowledgement(const uint8_t* body, uint32_t length, uint8_t first_byte, uint8_t version,
                                    uint16_t* packet_identifier) except -1
cdef int _parse_publish_properties(Message message, const uint8_t* data, uint32_t available, uint16_t* alias) except -1
cdef int _check_publish_properties(Message message, const uint8_t* data, uint32_t length, uint16_t* alias) except -1
