"""WebSocket (RFC 6455) around MQTT: frames of a client are taken apart as they come, ours are put around what is sent.

MQTT takes no notice of where frames begin and end [MQTT-6.0.0-2], so nothing of a message is kept: what has come of its
payload is unmasked where it lies, closed up over the headers in between, and goes on. Frames of ours are never
fragmented, and no extension is ever agreed upon.
"""

cimport cython
from broker.wire.output_buffer cimport LARGE_CHUNK, output_room
from libc.stdint cimport uint32_t
from libc.string cimport memcpy
from broker.wire.reasons import ClientError, CloseReason, Reason

cdef enum:
    CONTINUATION = 0x0
    TEXT = 0x1
    BINARY = 0x2
    CLOSE = 0x8
    PING = 0x9
    PONG = 0xA
    FIN = 0x80
    RESERVED_BITS = 0x70
    CONTROL_BIT = 0x08           # of an opcode
    MASKED = 0x80
    CONTROL_MAX = 125            # bytes of a control frame's payload
    SHORT_MAX = 125              # the largest length that is in the second byte
    LENGTH_16 = 126              # the second byte says: two bytes of length follow
    LENGTH_64 = 127
    OWN_HEADER_MAX = 10
    PONGS_BYTES = 4096           # not sent: with more, only the last ping is answered, as 5.5.3 allows
    UNSENT_BYTES = 65536         # with more, not even that, until the peer reads
    NORMAL = 1000
    GOING_AWAY = 1001
    PROTOCOL_ERROR = 1002
    UNSUPPORTED_DATA = 1003
    INVALID_DATA = 1007
    POLICY_VIOLATION = 1008
    TOO_BIG = 1009
    INTERNAL_ERROR = 1011

# What a client is told in a Close frame, beside the word itself; any other end is its fault or the operator's wish.
CODES = {
    CloseReason.CLIENT_DISCONNECT: NORMAL,
    CloseReason.CLIENT_DISCONNECT_WITH_WILL: NORMAL,
    CloseReason.CLIENT_DISCONNECT_WITH_ERROR: NORMAL,
    CloseReason.SERVER_SHUTDOWN: GOING_AWAY,
    CloseReason.REDIRECTED: GOING_AWAY,
    CloseReason.WEBSOCKET_PROTOCOL_ERROR: PROTOCOL_ERROR,
    CloseReason.WEBSOCKET_TEXT_FRAME: UNSUPPORTED_DATA,
    CloseReason.PACKET_TOO_LARGE: TOO_BIG,
    CloseReason.INTERNAL_ERROR: INTERNAL_ERROR,
    CloseReason.FILTER_FAILED: INTERNAL_ERROR,
}

cdef uint8_t[LARGE_CHUNK + OWN_HEADER_MAX] framed     # a frame for a layer further out, which takes it in one piece


cdef inline void unmask(uint8_t* to, const uint8_t* data, size_t length, uint8_t* mask) noexcept nogil:
    """Unmask bytes, to where they are or before that, and turn the mask so that it fits what follows them."""
    cdef uint8_t[4] turned
    cdef uint32_t narrow
    cdef uint64_t wide, word
    cdef size_t index, rest = length & 7
    memcpy(&narrow, mask, 4)
    wide = (<uint64_t>narrow << 32) | narrow
    for index in range(length >> 3):
        memcpy(&word, data, 8)
        word ^= wide
        memcpy(to, &word, 8)
        data += 8
        to += 8
    for index in range(rest):
        to[index] = data[index] ^ mask[index & 3]
    if length & 3:
        for index in range(4):
            turned[index] = mask[(index + length) & 3]
        memcpy(mask, turned, 4)


cdef inline size_t header_size(uint8_t second) noexcept nogil:
    """How long the header of a client's frame is, from its second byte."""
    second &= 0x7F
    return 6 if second <= SHORT_MAX else 8 if second == LENGTH_16 else HEADER_MAX


@cython.final
cdef class WebSocket(Layer):
    """The server's end of a WebSocket.

    Args:
        upgrade: reads the HTTP request that opens it, and answers.
    """

    def __init__(self, upgrade):
        self.upgrade = upgrade

    cdef int receive(self, uint8_t* data, size_t length) except -1:
        cdef uint8_t* message = NULL
        cdef size_t message_length = 0, used
        if not self.opened:
            used = self.open(data, length)
            if not self.opened:
                return 0
            data += used
            length -= used
        fault = self.read_frames(data, length, &message, &message_length)
        if message_length:
            self.pass_in(message, message_length)
        if fault is not None:
            raise fault
        if self.pong is not None and self.stack.raw.pending <= UNSENT_BYTES:
            self.answer_ping(self.pong)
        return 0

    cdef Py_ssize_t open(self, uint8_t* data, size_t length) except -1:
        cdef bytes answer
        answered = self.upgrade.receive((<const uint8_t*>data)[:length])
        if answered is None:
            return length
        self.upgrade = None
        answer = answered.data
        self.pass_out(<const uint8_t*>answer, len(answer))
        if answered.error is not None:
            raise answered.error
        self.opened = True
        return length - <Py_ssize_t>answered.behind

    # Frames in ------------------------------------------------------------------------------------------------------

    cdef object read_frames(self, uint8_t* data, size_t length, uint8_t** message, size_t* message_length):
        """Take frames apart. Returns the ClientError that ends it, None: go on.

        Args:
            message: where in `data` the payload of its data frames lies then, in one piece.
        """
        cdef uint8_t* end = data + length
        cdef uint8_t* out = NULL             # where the next payload goes
        cdef size_t part
        while data < end and not self.ended:
            if self.left == 0 and self.control is None:
                if self.header_length == 0 and <size_t>(end - data) >= 2 and (
                        <size_t>(end - data) >= header_size(data[1])):
                    fault = self.check_beginning(data[0], data[1])
                    part = header_size(data[1])
                    if fault is None:
                        fault = self.begin_frame(data)
                    data += part
                else:
                    self.header[self.header_length] = data[0]
                    self.header_length += 1
                    data += 1
                    if self.header_length < 2:
                        continue
                    fault = self.check_beginning(self.header[0], self.header[1]) if self.header_length == 2 else None
                    if fault is None:
                        if self.header_length < header_size(self.header[1]):
                            continue
                        self.header_length = 0
                        fault = self.begin_frame(self.header)
                if fault is not None:
                    return fault
                if self.opcode & CONTROL_BIT:
                    self.control = b""
                    if self.left == 0:
                        fault = self.on_control(NULL, 0)
                        if fault is not None:
                            return fault
                continue
            part = min(self.left, <uint64_t>(end - data))
            if self.opcode & CONTROL_BIT:
                unmask(data, data, part, self.mask)
                self.left -= part
                if self.left:
                    self.control += (<const uint8_t*>data)[:part]
                else:
                    fault = self.on_control(data, part)
                    if fault is not None:
                        return fault
            else:
                if out == NULL:
                    message[0] = out = data
                unmask(out, data, part, self.mask)
                out += part
                message_length[0] += part
                self.left -= part
            data += part
        return None

    cdef object check_beginning(self, uint8_t first, uint8_t second):
        """What is wrong with the first two bytes of a frame."""
        cdef uint8_t opcode = first & 0x0F
        if first & RESERVED_BITS:
            return self.fault("5.2", "a frame with reserved bits set, and no extension was agreed upon")
        if not second & MASKED:
            return self.fault("5.1", "a frame that is not masked")
        if opcode & CONTROL_BIT:
            if opcode > PONG:
                return self.fault("5.2", f"a frame of opcode {opcode}")
            if not first & FIN:
                return self.fault("5.4", "a control frame that is fragmented")
            if second & 0x7F > CONTROL_MAX:
                return self.fault("5.5", f"a control frame of more than {<int>CONTROL_MAX} bytes")
        elif opcode > BINARY:
            return self.fault("5.2", f"a frame of opcode {opcode}")
        elif opcode == TEXT:
            return ClientError(Reason.PROTOCOL_ERROR, "MQTT-6.0.0-1", "a text frame, where MQTT comes in binary ones",
                               CloseReason.WEBSOCKET_TEXT_FRAME)
        elif opcode == CONTINUATION:
            if not self.fragmented:
                return self.fault("5.4", "a continuation of no message")
        elif self.fragmented:
            return self.fault("5.4", "another message within one that is fragmented")
        return None

    cdef object begin_frame(self, const uint8_t* header):
        """A whole header has come: take down what it says."""
        cdef uint8_t short_length = header[1] & 0x7F
        cdef uint64_t length = short_length
        cdef size_t at = 2, index
        if short_length > SHORT_MAX:
            length = 0
            at = 4 if short_length == LENGTH_16 else 10
            for index in range(2, at):
                length = (length << 8) | header[index]
            if length <= SHORT_MAX or (short_length == LENGTH_64 and length <= 0xFFFF):
                return self.fault("5.2", f"a length of {length} that is not written in as few bytes as possible")
            if length >> 63:
                return self.fault("5.2", "a length of 2**63 or more")
        memcpy(self.mask, header + at, 4)
        self.opcode = header[0] & 0x0F
        self.left = length
        if not self.opcode & CONTROL_BIT:
            self.fragmented = not header[0] & FIN
        return None

    cdef object on_control(self, const uint8_t* payload, size_t length):
        """A control frame is whole."""
        cdef bytes whole = self.control + payload[:length] if length else self.control
        self.control = None
        if self.opcode == PING:
            if self.stack.raw.pending <= PONGS_BYTES:
                self.answer_ping(whole)
            else:
                self.pong = whole
            return None
        return self.on_close(<const uint8_t*>whole, len(whole)) if self.opcode == CLOSE else None

    cdef object on_close(self, const uint8_t* payload, size_t length):
        """The client sends no more: its Close is answered with its code, and what was sent before counts."""
        cdef uint16_t code = 0
        if length == 1:
            return self.fault("5.5.1", "a Close frame of one byte")
        if length:
            code = <uint16_t>(payload[0] << 8 | payload[1])
            if not (NORMAL <= code <= UNSUPPORTED_DATA or INVALID_DATA <= code <= 1014 or 3000 <= code <= 4999):
                return self.fault("7.4", f"a Close frame with the code {code}")
            try:
                payload[2:length].decode()
            except UnicodeDecodeError:
                return self.fault("5.5.1", "a Close frame whose text is not UTF-8", INVALID_DATA)
        self.ended = True
        self.send_close(code, b"")
        return None

    cdef object fault(self, str clause, str detail, uint16_t code=PROTOCOL_ERROR):
        self.close_code = code
        return ClientError(Reason.PROTOCOL_ERROR, f"RFC 6455, {clause}", detail, CloseReason.WEBSOCKET_PROTOCOL_ERROR)

    # Frames out -----------------------------------------------------------------------------------------------------

    cdef int send(self, const uint8_t* data, size_t length) except -1:
        if self.said_close or length == 0:
            return 0
        if self.pong is not None:
            self.answer_ping(self.pong)
        return self.send_frame(BINARY, data, length)

    cdef int answer_ping(self, bytes payload) except -1:
        self.pong = None
        if not self.said_close:
            self.send_frame(PONG, <const uint8_t*>payload, len(payload))
        return 0

    cdef int finish(self) except -1:
        """Say why it ends, in a code and in the word that the log has; the client's own Close has been answered."""
        reason = self.stack.close_reason
        return self.send_close(
            self.close_code or <uint16_t>CODES.get(reason, POLICY_VIOLATION), b"" if reason is None else reason.encode())

    cdef int send_close(self, uint16_t code, bytes text) except -1:
        cdef bytes payload = code.to_bytes(2, "big") + text if code else b""
        if not self.said_close:
            self.said_close = True
            self.send_frame(CLOSE, <const uint8_t*>payload, len(payload))
        return 0

    cdef int send_frame(self, uint8_t opcode, const uint8_t* data, size_t length) except -1:
        cdef uint8_t[OWN_HEADER_MAX] header
        cdef uint8_t* room
        cdef size_t size = 2, index
        header[0] = FIN | opcode
        if length <= SHORT_MAX:
            header[1] = <uint8_t>length
        else:
            size = 4 if length <= 0xFFFF else 10
            header[1] = LENGTH_16 if size == 4 else LENGTH_64
            for index in range(2, size):
                header[index] = <uint8_t>(<uint64_t>length >> (8 * (size - 1 - index)))
        if length > LARGE_CHUNK - size:
            self.pass_out(header, size)          # a chunk for itself: what follows fills one
            return self.pass_out(data, length)
        room = &framed[0]
        if self.outward is None:
            room = output_room(&self.stack.raw, size + length)
        memcpy(room, header, size)
        if length:
            memcpy(room + size, data, length)
        return self.pass_out(room, size + length) if self.outward is not None else 0
