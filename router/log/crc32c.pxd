"""CRC-32C (Castagnoli): the check sum of records and segment headers."""

from libc.stdint cimport uint8_t, uint32_t

cdef uint32_t crc32c(uint32_t crc, const uint8_t* data, size_t length) noexcept nogil      # by the fastest way there is
cdef uint32_t record_crc32c(const uint8_t* record, size_t length) noexcept nogil     # of all but its own four bytes
