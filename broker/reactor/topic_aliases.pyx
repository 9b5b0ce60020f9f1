"""Topic aliases (3.3.2.3.4): what a connection and its client have agreed on, each way.

The names behind them are kept up to a bound of bytes, each way, and up to a few while there is no memory.
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport uint8_t
from router.matching.topic_names cimport valid_topic_name

from broker.wire.reasons import ClientError, Reason

cdef enum:
    ALIAS_BYTES_FULL = 4096      # of topic names behind one client's aliases, while there is no memory


@cython.no_gc
cdef class TopicAliases(Sink):
    """The aliases of one connection."""

    cdef int resolve_alias(self, Message message, uint16_t alias, uint32_t bytes_max, bint memory_full) except -1:
        cdef bytes topic
        cdef uint32_t held
        if alias > self.alias_max_in:
            raise ClientError(Reason.TOPIC_ALIAS_INVALID, "MQTT-3.3.2-9",
                              f"Topic Alias {alias}, {self.alias_max_in} are allowed")
        if self.aliases_in is None:
            self.aliases_in = [None] * (self.alias_max_in + 1)
        if message.topic_length:
            if not valid_topic_name(message.topic, message.topic_length):
                raise ClientError(Reason.TOPIC_NAME_INVALID, "MQTT-3.3.2-2", "not a topic name")
            older = self.aliases_in[alias]
            held = self.alias_bytes_in + message.topic_length - (len(<bytes>older) if older is not None else 0)
            if held > bytes_max or (held > ALIAS_BYTES_FULL and memory_full):
                raise ClientError(
                    Reason.QUOTA_EXCEEDED, "section 4.13", f"{held} bytes of topic names behind topic aliases")
            topic = PyBytes_FromStringAndSize(<const char*>message.topic, message.topic_length)
            self.aliases_in[alias] = topic
            self.alias_bytes_in = held
        else:
            topic = self.aliases_in[alias]
            if topic is None:
                raise ClientError(Reason.PROTOCOL_ERROR, "section 3.3.2.3.4", f"Topic Alias {alias} was never set")
            message.topic = <const uint8_t*>PyBytes_AS_STRING(topic)     # held by the list
            message.topic_length = <uint16_t>len(topic)
        return 0

    cdef uint16_t pick_alias(self, Message message, bint* with_topic, uint32_t bytes_max,
                             bint memory_full) except? 0:
        """Return the alias of a topic name: the known one, the next free one (the topic goes along), or 0."""
        if self.aliases_out is None:
            self.aliases_out = {}
        known = self.aliases_out.get(PyBytes_FromStringAndSize(<const char*>message.topic, message.topic_length))
        if known is not None:
            with_topic[0] = False
            return known
        if len(self.aliases_out) < self.alias_max_out and not memory_full and (
                self.alias_bytes_out + message.topic_length <= bytes_max):
            return <uint16_t>(len(self.aliases_out) + 1)
        return 0

    cdef int keep_alias(self, Message message, uint16_t alias) except -1:
        self.aliases_out[PyBytes_FromStringAndSize(<const char*>message.topic, message.topic_length)] = alias
        self.alias_bytes_out += message.topic_length
        return 0
