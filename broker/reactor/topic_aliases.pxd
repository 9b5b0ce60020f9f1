"""Topic aliases (3.3.2.3.4): what a connection and its client have agreed on, each way."""

from libc.stdint cimport uint16_t, uint32_t
from router.core.message cimport Message
from router.sessions.sink cimport Sink


cdef class TopicAliases(Sink):
    cdef list aliases_in                  # topic name by alias; None until the first
    cdef dict aliases_out                 # alias by topic name; None until the first
    cdef uint32_t alias_bytes_in          # of the topic names in aliases_in
    cdef uint32_t alias_bytes_out
    cdef uint16_t alias_max_in            # what the CONNACK granted the client
    cdef uint16_t alias_max_out           # what we use of the client's Topic Alias Maximum

    # Set an alias of the client's, or put the topic name that it stands for into the message; ClientError: theirs.
    cdef int resolve_alias(self, Message message, uint16_t alias, uint32_t bytes_max, bint memory_full) except -1
    # The alias to send with a topic name, and whether that goes along; 0: there is none to be had.
    cdef uint16_t pick_alias(self, Message message, bint* with_topic, uint32_t bytes_max,
                             bint memory_full) except? 0
    # The client has been sent a topic name with an alias.
    cdef int keep_alias(self, Message message, uint16_t alias) except -1
