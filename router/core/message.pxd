"""An application message, borrowed from the receive buffer or owned."""

from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcmp, memcpy

cdef enum:
    NO_OFFSET = 0xFFFFFFFF

cdef inline uint64_t topic_hash(const uint8_t* data, size_t length) noexcept nogil:
    """A 64-bit hash of topic bytes: eight bytes a step, folded at the end. Not for secrets."""
    cdef uint64_t hash = <uint64_t>0x9E3779B97F4A7C15 ^ length
    cdef uint64_t word
    cdef size_t index = 0
    while index + 8 <= length:
        memcpy(&word, data + index, 8)       # one load to the compiler, and no assumption about alignment
        hash = (hash ^ word) * <uint64_t>0x9FB21C651E98DF25
        hash ^= hash >> 32
        index += 8
    word = 0
    if length < 8:
        while index < length:
            word = (word << 8) | data[index]
            index += 1
    elif index < length:
        # The last bytes, the first of them highest: read with those before them, which are cut off again.
        data += length - 8
        word = (<uint64_t>data[0] << 56 | <uint64_t>data[1] << 48 | <uint64_t>data[2] << 40 | <uint64_t>data[3] << 32
                | <uint64_t>data[4] << 24 | <uint64_t>data[5] << 16 | <uint64_t>data[6] << 8 | data[7])
        word &= ((<uint64_t>1 << 8 * (length - index)) - 1)
    hash = (hash ^ word) * <uint64_t>0x9FB21C651E98DF25
    hash ^= hash >> 29
    hash *= <uint64_t>0xD6E8FEB86659FD93
    return hash ^ (hash >> 32)


cdef inline bint same_bytes(const uint8_t* one, const uint8_t* other, size_t length) noexcept nogil:
    """Return whether two names of one length are the same; of up to 64 bytes without a call, which would cost more."""
    cdef uint64_t of_one, of_other
    cdef uint32_t half, other_half
    cdef size_t index = 0
    if length > 64:
        return memcmp(one, other, length) == 0
    if length < 8:
        if length >= 4:
            memcpy(&half, one, 4)
            memcpy(&other_half, other, 4)
            if half != other_half:
                return False
            memcpy(&half, one + length - 4, 4)       # the last four, some of them once more
            memcpy(&other_half, other + length - 4, 4)
            return half == other_half
        while index < length:
            if one[index] != other[index]:
                return False
            index += 1
        return True
    while True:
        memcpy(&of_one, one + index, 8)
        memcpy(&of_other, other + index, 8)
        if of_one != of_other:
            return False
        index += 8
        if index + 8 >= length:
            break
    memcpy(&of_one, one + length - 8, 8)         # the last eight, some of them once more
    memcpy(&of_other, other + length - 8, 8)
    return of_one == of_other


cdef class Message:
    # A message *borrows* every pointer below from somebody's buffer until keep() makes an owned copy, exactly sized.
    # Whoever stores a message (queue, retained, batch) asserts `owned`.
    cdef const uint8_t* topic            # validated UTF-8 topic name, no wildcards; never NULL
    cdef const uint8_t* payload          # NULL only if payload_length is 0
    cdef const uint8_t* properties       # validated 5.0 PUBLISH properties without their length; opaque to the router
    cdef const uint8_t* frame            # the PUBLISH as it came, header byte first; NULL if it did not come as one
    cdef uint32_t payload_length         # bytes, 0..268,435,455
    cdef uint32_t properties_length      # bytes
    cdef uint32_t frame_length           # bytes, 0 if frame is NULL
    cdef uint32_t identifier_offset      # in frame, where the two bytes of the packet identifier lie; NO_OFFSET at QoS 0
    cdef uint32_t expiry_offset          # in properties, where the four bytes of Message Expiry Interval lie, or NO_OFFSET
    cdef uint32_t alias_offset           # in properties, where the three bytes of Topic Alias (with its id) lie, or NO_OFFSET
    cdef uint16_t topic_length           # bytes, 1..65535
    cdef uint8_t qos                     # 0..2, as published
    cdef bint retain                     # as published
    cdef uint8_t version                 # protocol level of the frame: 3, 4 or 5
    cdef bint owned
    cdef int64_t received_ms             # monotonic ms
    cdef uint64_t publisher_key          # Receiver.key of who published it, where there are peers; else 0
    cdef readonly uint64_t record        # number of its record in our log; 0: it has none
    cdef int64_t expires_ms              # monotonic ms after which it is not delivered; 0: never
    cdef void* storage                   # one block that all pointers point into, or NULL while borrowed
    cdef Message kept                    # while borrowed, the owned copy that all who keep it share; None before the first

    cdef Message keep(self)              # self if owned, else the owned copy
    cdef Message twin(self)              # an owned copy, always a new one


cdef inline uint64_t message_size(Message message) noexcept:
    """What a message counts for where bytes are limited."""
    return <uint64_t>message.topic_length + message.properties_length + message.payload_length


cdef Message make_message(
    bytes topic, bytes payload, uint8_t qos, bint retain, bytes properties,
    uint32_t expiry_offset, int64_t now_ms, int64_t expires_ms)
