"""An application message, borrowed from the receive buffer or owned."""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.mem cimport PyMem_Free, PyMem_Malloc
from libc.string cimport memcpy


@cython.final
@cython.no_gc
@cython.freelist(256)
cdef class Message:
    """An application message: topic name, payload, and the opaque properties of MQTT 5.0.

    Python code sees copies through the properties below; compiled code reads the pointers.
    """

    def __dealloc__(self):
        if self.storage != NULL:
            PyMem_Free(self.storage)

    cdef Message keep(self):
        """Return this message owned: itself, or the one exactly sized copy, whose pointers point into one block."""
        if self.owned:
            return self
        if self.kept is None:
            self.kept = self.twin()
        return self.kept

    cdef Message twin(self):
        """Return a new owned copy, which no other receiver shares: what gets a record of its own."""
        cdef Message copy = Message.__new__(Message)
        cdef uint8_t* block
        cdef size_t size
        if self.frame != NULL and self.alias_offset == NO_OFFSET:
            block = <uint8_t*>PyMem_Malloc(self.frame_length)
            if block == NULL:
                raise MemoryError()
            memcpy(block, self.frame, self.frame_length)
            copy.frame = block
            copy.frame_length = self.frame_length
            copy.topic = block + (self.topic - self.frame)
            copy.payload = block + (self.payload - self.frame)
            copy.properties = block + (self.properties - self.frame) if self.properties != NULL else NULL
            copy.identifier_offset = self.identifier_offset
        else:
            size = <size_t>self.topic_length + self.properties_length + self.payload_length
            block = <uint8_t*>PyMem_Malloc(size)
            if block == NULL:
                raise MemoryError()
            memcpy(block, self.topic, self.topic_length)
            copy.topic = block
            copy.properties = block + self.topic_length
            if self.properties_length:
                memcpy(block + self.topic_length, self.properties, self.properties_length)
            copy.payload = block + self.topic_length + self.properties_length
            if self.payload_length:
                memcpy(<uint8_t*>copy.payload, self.payload, self.payload_length)
            copy.frame = NULL
            copy.frame_length = 0
            copy.identifier_offset = NO_OFFSET
        copy.storage = block
        copy.topic_length = self.topic_length
        copy.payload_length = self.payload_length
        copy.properties_length = self.properties_length
        copy.expiry_offset = self.expiry_offset
        copy.alias_offset = self.alias_offset
        copy.qos = self.qos
        copy.retain = self.retain
        copy.version = self.version
        copy.received_ms = self.received_ms
        copy.expires_ms = self.expires_ms
        copy.record = self.record
        copy.publisher_key = self.publisher_key
        copy.owned = True
        return copy

    @property
    def topic_name(self) -> bytes:
        """The topic name, UTF-8 bytes."""
        return PyBytes_FromStringAndSize(<const char*>self.topic, self.topic_length)

    @property
    def body(self) -> bytes:
        """The payload."""
        return PyBytes_FromStringAndSize(<const char*>self.payload, self.payload_length)

    @property
    def property_block(self) -> bytes:
        """The validated 5.0 properties without their length, as published."""
        return PyBytes_FromStringAndSize(<const char*>self.properties, self.properties_length)

    @property
    def quality_of_service(self) -> int:
        """QoS as published, 0 to 2."""
        return self.qos

    @property
    def retained(self) -> bool:
        """The RETAIN flag as published."""
        return self.retain

    @property
    def expires_at_ms(self) -> int:
        """Monotonic milliseconds after which it is not delivered; 0: never."""
        return self.expires_ms


cdef Message make_message(
    bytes topic, bytes payload, uint8_t qos, bint retain, bytes properties,
    uint32_t expiry_offset, int64_t now_ms, int64_t expires_ms):
    """Return an owned message that did not come as a PUBLISH packet: a will, $SYS, an in-process client.

    Args:
        topic: validated topic name, 1..65535 bytes.
        properties: validated 5.0 PUBLISH properties without their length, without Topic Alias.
        expiry_offset: where in properties the four bytes of Message Expiry Interval lie, or NO_OFFSET.
        expires_ms: monotonic ms, 0 for never.
    """
    assert 1 <= len(topic) <= 65535, topic
    cdef Message borrowed = Message.__new__(Message)
    borrowed.topic = <const uint8_t*>PyBytes_AS_STRING(topic)
    borrowed.topic_length = <uint16_t>len(topic)
    borrowed.payload = <const uint8_t*>PyBytes_AS_STRING(payload)
    borrowed.payload_length = <uint32_t>len(payload)
    borrowed.properties = <const uint8_t*>PyBytes_AS_STRING(properties)
    borrowed.properties_length = <uint32_t>len(properties)
    borrowed.expiry_offset = expiry_offset
    borrowed.alias_offset = NO_OFFSET
    borrowed.identifier_offset = NO_OFFSET
    borrowed.qos = qos
    borrowed.retain = retain
    borrowed.version = 5
    borrowed.received_ms = now_ms
    borrowed.expires_ms = expires_ms
    return borrowed.keep()


def message(
    topic: bytes, payload: bytes, qos: int = 0, retain: bool = False, properties: bytes = b"",
    expiry_offset: int = -1, now_ms: int = 0, expires_ms: int = 0) -> Message:
    """make_message for Python callers; expiry_offset -1 means there is no Message Expiry Interval."""
    return make_message(
        topic, payload, qos, retain, properties,
        NO_OFFSET if expiry_offset < 0 else <uint32_t>expiry_offset, now_ms, expires_ms)
