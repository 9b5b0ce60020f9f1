"""Frames between routers, encoded and decoded where they lie. docs/mesh.md has every byte.

A frame is one ZeroMQ message: a header, a msgpack array of numbers, and behind it, in a DATA frame, one entry per
message of the sender's turn. Every length is checked before it is followed.
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdlib cimport free, realloc
from libc.string cimport memcpy
from router.log.record_cursor cimport get16, get32, get64, lend_message
from router.core.message cimport NO_OFFSET
from router.log.record_buffer cimport fields_of_message, put16, put32, put64, put_properties

import msgpack

cdef enum:
    BUFFER_MIN = 4096
    BUFFER_KEPT_MAX = 1048576    # an emptied buffer larger than this is given back to the allocator
    IDS_MAX = 255

cdef int64_t EXPIRES_US_MAX = <int64_t>1 << 62      # what is later is no time, and would overflow

KINDS = (
    "", "data", "ack", "gap", "heartbeat", "hello", "interest", "interest_installed", "gossip", "call", "answer",
)
assert len(KINDS) == FRAME_KIND_END, KINDS

VERSION = FRAME_VERSION


class FrameError(Exception):
    """Bytes of a peer that are no frame of ours; says what is wrong, and at which offset."""


cdef inline uint8_t* put_number(uint8_t* to, uint64_t value) noexcept nogil:
    """Write a number as msgpack does, in at most nine bytes."""
    cdef int shift
    if value < 0x80:
        to[0] = <uint8_t>value
        return to + 1
    if value < 0x100:
        to[0], to[1] = 0xCC, <uint8_t>value
        return to + 2
    if value < 0x10000:
        to[0], shift = 0xCD, 8
    elif value <= <uint64_t>0xFFFFFFFF:
        to[0], shift = 0xCE, 24
    else:
        to[0], shift = 0xCF, 56
    to += 1
    while shift >= 0:
        to[0] = <uint8_t>(value >> shift)
        to += 1
        shift -= 8
    return to


cdef int header(uint8_t* to, int kind, const uint64_t* numbers, int number_count) noexcept nogil:
    """Write a header of at most six numbers, which takes at most HEADER_ROOM bytes; returns its length."""
    cdef uint8_t* at = to
    cdef int index
    at[0] = <uint8_t>(0x90 | (2 + number_count))
    at[1] = FRAME_VERSION
    at[2] = <uint8_t>kind
    at += 3
    for index in range(number_count):
        at = put_number(at, numbers[index])
    return <int>(at - to)


@cython.final
cdef class FrameWriter:
    """The entries of one turn for one peer, in one growing buffer that is used again and again."""

    def __cinit__(self):
        self.end = HEADER_ROOM

    def __dealloc__(self):
        free(self.data)

    def __len__(self) -> int:
        return self.count

    cdef int reserve(self, size_t more) except -1:
        cdef size_t capacity = self.capacity if self.capacity else BUFFER_MIN
        cdef uint8_t* data
        while capacity - self.end < more:
            capacity *= 2
        data = <uint8_t*>realloc(self.data, capacity)
        if data == NULL:
            raise MemoryError()
        self.data = data
        self.capacity = capacity
        return 0

    cdef size_t add(self, Message message, uint64_t sequence, uint64_t n, bint retain, const uint8_t* ids,
                    uint32_t ids_length, uint64_t publisher_key, int64_t now_us, int64_t now_ms) except 0:
        cdef size_t length = ENTRY_HEADER + <size_t>ids_length + message.topic_length
        cdef uint8_t flags = message.qos | (ENTRY_RETAIN if retain else 0)
        cdef MessageFields fields
        cdef uint8_t* at
        assert ids_length <= IDS_MAX, ids_length
        length += message.payload_length
        if sequence:
            flags |= ENTRY_SEQUENCE
            length += 8
        if n:
            flags |= ENTRY_RECORD
            length += 8
        if publisher_key:
            flags |= ENTRY_KEY
            length += 8
        if message.properties_length or message.expires_ms:
            fields_of_message(&fields, message, now_us, now_ms)
            flags |= ENTRY_PROPERTIES
            length += 16 + <size_t>fields.properties_length
        assert length >> 32 == 0, length         # 0xFFFFFFFF would be compared as a Python number
        if self.capacity < self.end + length:
            self.reserve(length)
        at = self.data + self.end
        self.end += length
        self.count += 1
        put32(at, <uint32_t>length)
        put32(at + 4, message.payload_length)
        put16(at + 8, message.topic_length)
        at[10] = <uint8_t>ids_length
        at[11] = flags
        at += ENTRY_HEADER
        if sequence:
            put64(at, sequence)
            at += 8
        if n:
            put64(at, n)
            at += 8
        if publisher_key:
            put64(at, publisher_key)
            at += 8
        if flags & ENTRY_PROPERTIES:
            put64(at, <uint64_t>fields.expires_us)
            put32(at + 8, fields.properties_length)
            put32(at + 12, fields.expiry_offset)
            at += 16
        if ids_length:
            memcpy(at, ids, ids_length)
            at += ids_length
        memcpy(at, message.topic, message.topic_length)
        at += message.topic_length
        if flags & ENTRY_PROPERTIES and fields.properties_length:
            put_properties(at, message, &fields)
            at += fields.properties_length
        if message.payload_length:
            memcpy(at, message.payload, message.payload_length)
        return length

    cdef int seal(self, int kind, const uint64_t* numbers, int number_count) noexcept:
        """Put the header in front of the entries: `frame` and `frame_length` are what is to be sent."""
        cdef uint8_t[HEADER_ROOM] made
        cdef int length = header(made, kind, numbers, number_count)
        self.frame = self.data + HEADER_ROOM - length
        memcpy(self.frame, made, length)
        self.frame_length = self.end - HEADER_ROOM + length
        return 0

    cdef int clear(self) noexcept:
        """Forget the entries."""
        self.end = HEADER_ROOM
        self.count = 0
        self.frame = NULL
        self.frame_length = 0
        if self.capacity > BUFFER_KEPT_MAX:
            free(self.data)
            self.data = NULL
            self.capacity = 0
        return 0

    def append(self, Message message not None, *, sequence: int = 0, n: int = 0, retain: bool = False,
               bytes ids not None=b"", publisher_key: int = 0, now_us: int, now_ms: int) -> int:
        """add() for Python callers; returns the entry's length in bytes."""
        return self.add(message, sequence, n, retain, <const uint8_t*>PyBytes_AS_STRING(ids), <uint32_t>len(ids),
                        publisher_key, now_us, now_ms)

    def take(self, kind: int, *numbers: int) -> bytes:
        """Return the frame, and begin an empty one."""
        cdef uint64_t[NUMBERS_MAX] values
        cdef int index
        assert len(numbers) <= 6, numbers
        for index in range(<int>len(numbers)):
            values[index] = numbers[index]
        if self.data == NULL:
            self.reserve(0)
        self.seal(kind, values, <int>len(numbers))
        taken = PyBytes_FromStringAndSize(<const char*>self.frame, <Py_ssize_t>self.frame_length)
        self.clear()
        return taken


@cython.final
cdef class FrameReader:
    """Walks one frame at a time. Nothing outside the given bytes is ever read."""

    def __cinit__(self):
        self.message = Message.__new__(Message)

    cdef int open(self, const uint8_t* data, size_t size) except -1:
        """Begin with a frame: its version, its kind, and the numbers of its header.

        A version may add to the one before it, behind what there is: so a frame of the next version is read as one of
        ours, and what it has more is passed over.
        """
        cdef size_t at = 1
        cdef uint32_t left, read = 0
        cdef int index, bytes_of_number
        cdef uint64_t value
        self.data = data
        self.size = size
        self.kind = self.version = self.number_count = 0
        if size < 3:
            raise FrameError(f"a frame of {size} bytes, which have no header")
        if data[0] & 0xF0 == 0x90:
            left = data[0] & 0x0F
        elif data[0] == 0xDC:
            left = <uint32_t>data[1] << 8 | data[2]
            at = 3
        else:
            raise FrameError(f"a frame whose first byte is 0x{data[0]:02X}, at offset 0: no array")
        while left and at < size and (data[at] < 0x80 or 0xCC <= data[at] <= 0xCF):
            value = data[at]
            bytes_of_number = 0 if value < 0x80 else 1 << (data[at] - 0xCC)
            at += 1
            if bytes_of_number:
                if size - at < <size_t>bytes_of_number:
                    raise FrameError(f"a frame that ends within a number, at offset {at - 1}")
                value = 0
                for index in range(bytes_of_number):
                    value = value << 8 | data[at + index]
                at += bytes_of_number
            if read == 0:
                self.version = <int>min(value, <uint64_t>0x7FFFFFFF)
            elif read == 1:
                self.kind = <int>min(value, <uint64_t>0x7FFFFFFF)
            elif self.number_count < NUMBERS_MAX:
                self.numbers[self.number_count] = value
                self.number_count += 1
            left -= 1
            read += 1
        if read < 2 or self.version == 0:
            raise FrameError("a frame that does not begin with its version and its kind, at offset 1")
        if self.version > FRAME_VERSION + 1:
            raise FrameError(f"a frame of version {self.version}; this is version {FRAME_VERSION}")
        if self.kind == 0 or self.kind >= FRAME_KIND_END:
            raise FrameError(
                f"a frame of kind {self.kind} in version {self.version}, which version {FRAME_VERSION} does not know")
        self.offset = at
        if left and self.kind == FRAME_DATA:
            self.offset = self.past_header()
        return 0

    cdef size_t past_header(self) except 0:
        """Return where a header ends that has more than numbers: one of the next version."""
        unpacker = msgpack.Unpacker(max_buffer_size=0)
        unpacker.feed(PyBytes_FromStringAndSize(<const char*>self.data, <Py_ssize_t>self.size))
        try:
            unpacker.skip()
        except Exception as error:
            raise FrameError(f"a frame whose header is no msgpack, at offset {self.offset}") from error
        return unpacker.tell()

    cdef int expect(self, int count) except -1:
        """Raise FrameError unless the header has at least so many numbers."""
        if self.number_count < count:
            raise FrameError(f"a frame of kind {KINDS[self.kind]} with {self.number_count} numbers instead of {count}")
        return 0

    cdef int next(self, int64_t now_us, int64_t now_ms) except -1:
        """Go to the next entry. Returns 0 behind the last one; raises FrameError."""
        cdef const uint8_t* at = self.data + self.offset
        cdef size_t left = self.size - self.offset
        cdef size_t length, needed
        cdef MessageFields fields
        cdef uint8_t flags
        if left == 0:
            return 0
        if left < ENTRY_HEADER:
            raise FrameError(f"an entry of {left} bytes, at offset {self.offset}")
        length = get32(at)
        if length < ENTRY_HEADER or length > left:
            raise FrameError(f"an entry that says it has {length} bytes of {left}, at offset {self.offset}")
        fields.payload_length = get32(at + 4)
        fields.topic_length = get16(at + 8)
        self.ids_length = at[10]
        flags = at[11]
        if flags & ~ENTRY_FLAGS or flags & ENTRY_QOS == 3:
            raise FrameError(f"an entry with the flags 0x{flags:02X}, at offset {self.offset}")
        needed = ENTRY_HEADER + <size_t>self.ids_length + fields.topic_length
        needed += fields.payload_length
        needed += 8 * (((flags & ENTRY_SEQUENCE) != 0) + ((flags & ENTRY_RECORD) != 0) + ((flags & ENTRY_KEY) != 0))
        if flags & ENTRY_PROPERTIES:
            needed += 16
        if needed > length:
            raise FrameError(f"an entry of {length} bytes with texts for {needed}, at offset {self.offset}")
        if fields.topic_length == 0:
            raise FrameError(f"an entry without a topic name, at offset {self.offset}")
        at += ENTRY_HEADER
        self.sequence = self.n = self.publisher_key = 0
        if flags & ENTRY_SEQUENCE:
            self.sequence = get64(at)
            at += 8
        if flags & ENTRY_RECORD:
            self.n = get64(at)
            at += 8
        if flags & ENTRY_KEY:
            self.publisher_key = get64(at)
            at += 8
        fields.expires_us = 0
        fields.properties_length = 0
        fields.expiry_offset = NO_OFFSET
        if flags & ENTRY_PROPERTIES:
            self.take_properties(at, length, needed, &fields)
            at += 16
        fields.qos = flags & ENTRY_QOS
        fields.retain = (flags & ENTRY_RETAIN) != 0
        self.ids = at
        fields.topic = at + self.ids_length
        fields.properties = fields.topic + fields.topic_length
        fields.payload = fields.properties + fields.properties_length
        lend_message(self.message, &fields, now_us, now_ms)
        self.offset += length                # what the next version has behind the payload is passed over
        return 1

    cdef int take_properties(self, const uint8_t* at, size_t length, size_t needed, MessageFields* fields) except -1:
        """Find the properties and the expiry of an entry that needs so many of its bytes without them."""
        fields.expires_us = <int64_t>get64(at)
        fields.properties_length = get32(at + 8)
        fields.expiry_offset = get32(at + 12)
        if length - needed < fields.properties_length:
            raise FrameError(f"an entry of {length} bytes with texts for {needed + fields.properties_length}, "
                             f"at offset {self.offset}")
        if fields.expiry_offset != NO_OFFSET and <uint64_t>fields.expiry_offset + 4 > fields.properties_length:
            raise FrameError(f"an entry whose expiry is outside of its properties, at offset {self.offset}")
        if fields.expires_us < 0 or fields.expires_us > EXPIRES_US_MAX:
            raise FrameError(f"an entry that expires at {fields.expires_us} us, at offset {self.offset}")
        return 0

    def read(self, bytes frame not None, now_us: int, now_ms: int) -> list[dict]:
        """Return all entries of a frame by name, their messages owned. Raises FrameError."""
        entries = []
        self.open(<const uint8_t*>PyBytes_AS_STRING(frame), len(frame))
        if self.kind == FRAME_DATA:
            while self.next(now_us, now_ms):
                entries.append(self.entry())
        return entries

    def entry(self) -> dict:
        """Return the entry that it came to by name; the message is owned."""
        return {"sequence": self.sequence, "n": self.n, "publisher_key": self.publisher_key,
                "message": self.message.keep(),
                "ids": PyBytes_FromStringAndSize(<const char*>self.ids, self.ids_length)}

    @property
    def header(self) -> tuple[int, ...]:
        """The numbers of the header behind version and kind."""
        return tuple([self.numbers[index] for index in range(self.number_count)])
