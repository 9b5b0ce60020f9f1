"""Topic names and topic filters: validation and matching."""

from libc.stdint cimport uint8_t

cdef bint valid_topic_name(const uint8_t* data, size_t length) noexcept nogil      # 1..65535 bytes of UTF-8, no NUL + #
cdef bint valid_utf8(const uint8_t* data, size_t length) noexcept nogil            # well formed, no U+0000 [MQTT-1.5.4-1, -2]
