"""CRC-32C (Castagnoli): the check sum of records and segment headers.

Three ways to the same number: the CRC instructions of x86-64 (SSE 4.2), those of ARMv8, and a table (eight bytes a step).
Which one is used is found out when the module is loaded, so one build runs on every processor of its kind.
"""

from libc.stdint cimport uint8_t, uint32_t

cdef extern from *:
    """
    #include <stddef.h>
    #include <stdint.h>
    #include <string.h>

    typedef uint32_t (*shoal_crc_way)(uint32_t, const uint8_t *, size_t);
    typedef uint32_t (*shoal_crc_record_way)(const uint8_t *, size_t);

    static uint32_t shoal_crc_tables[8][256];

    static void shoal_crc_fill(void) {
        for (uint32_t byte = 0; byte < 256; byte++) {
            uint32_t crc = byte;
            for (int bit = 0; bit < 8; bit++)
                crc = (crc >> 1) ^ (0x82F63B78u & (0u - (crc & 1)));
            shoal_crc_tables[0][byte] = crc;
        }
        for (uint32_t byte = 0; byte < 256; byte++)
            for (int step = 1; step < 8; step++) {
                uint32_t before = shoal_crc_tables[step - 1][byte];
                shoal_crc_tables[step][byte] = (before >> 8) ^ shoal_crc_tables[0][before & 0xFF];
            }
    }

    /* Bytes are put together by shifts, so the order of bytes of the machine does not matter. */
    static uint32_t shoal_crc_table(uint32_t crc, const uint8_t *data, size_t length) {
        crc = ~crc;
        for (; length >= 8; data += 8, length -= 8) {
            uint32_t low = crc ^ ((uint32_t)data[0] | (uint32_t)data[1] << 8 | (uint32_t)data[2] << 16
                                  | (uint32_t)data[3] << 24);
            crc = shoal_crc_tables[7][low & 0xFF] ^ shoal_crc_tables[6][low >> 8 & 0xFF]
                ^ shoal_crc_tables[5][low >> 16 & 0xFF] ^ shoal_crc_tables[4][low >> 24]
                ^ shoal_crc_tables[3][data[4]] ^ shoal_crc_tables[2][data[5]]
                ^ shoal_crc_tables[1][data[6]] ^ shoal_crc_tables[0][data[7]];
        }
        for (; length; data++, length--)
            crc = (crc >> 8) ^ shoal_crc_tables[0][(crc ^ *data) & 0xFF];
        return ~crc;
    }

    /* A record's own check sum is its second word, and is not part of what it is made over. */
    static uint32_t shoal_crc_record_table(const uint8_t *record, size_t length) {
        return shoal_crc_table(shoal_crc_table(0, record, 4), record + 8, length - 8);
    }

    #if defined(__x86_64__)
    #include <nmmintrin.h>
    #define SHOAL_CRC_INSTRUCTION "sse4.2"
    __attribute__((target("sse4.2")))
    static inline uint32_t shoal_crc_steps(uint32_t from, const uint8_t *data, size_t length) {
        uint64_t state = from, word;
        uint32_t half;
        uint16_t pair;
        for (; length >= 8; data += 8, length -= 8) {
            memcpy(&word, data, 8);
            state = _mm_crc32_u64(state, word);
        }
        if (length & 4) {
            memcpy(&half, data, 4);
            state = _mm_crc32_u32((uint32_t)state, half);
            data += 4;
        }
        if (length & 2) {
            memcpy(&pair, data, 2);
            state = _mm_crc32_u16((uint32_t)state, pair);
            data += 2;
        }
        if (length & 1)
            state = _mm_crc32_u8((uint32_t)state, *data);
        return (uint32_t)state;
    }
    __attribute__((target("sse4.2")))
    static uint32_t shoal_crc_instruction(uint32_t crc, const uint8_t *data, size_t length) {
        return ~shoal_crc_steps(~crc, data, length);
    }
    __attribute__((target("sse4.2")))
    static uint32_t shoal_crc_record_instruction(const uint8_t *record, size_t length) {
        uint32_t first;
        memcpy(&first, record, 4);
        return ~shoal_crc_steps(_mm_crc32_u32(0xFFFFFFFFu, first), record + 8, length - 8);
    }
    static int shoal_crc_has_instruction(void) {
        __builtin_cpu_init();
        return __builtin_cpu_supports("sse4.2") != 0;
    }
    #elif defined(__aarch64__) && defined(__linux__) && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    #include <sys/auxv.h>
    #define SHOAL_CRC_INSTRUCTION "armv8"
    /* The instructions are named in assembly: the intrinsics are hidden from code built for processors without them. */
    static inline uint32_t shoal_crc_steps(uint32_t state, const uint8_t *data, size_t length) {
        uint32_t half;
        uint64_t word;
        uint16_t pair;
        for (; length >= 8; data += 8, length -= 8) {
            memcpy(&word, data, 8);
            __asm__(".arch_extension crc\\n\\tcrc32cx %w0, %w0, %x1" : "+r"(state) : "r"(word));
        }
        if (length & 4) {
            memcpy(&half, data, 4);
            __asm__(".arch_extension crc\\n\\tcrc32cw %w0, %w0, %w1" : "+r"(state) : "r"(half));
            data += 4;
        }
        if (length & 2) {
            memcpy(&pair, data, 2);
            __asm__(".arch_extension crc\\n\\tcrc32ch %w0, %w0, %w1" : "+r"(state) : "r"((uint32_t)pair));
            data += 2;
        }
        if (length & 1)
            __asm__(".arch_extension crc\\n\\tcrc32cb %w0, %w0, %w1" : "+r"(state) : "r"((uint32_t)*data));
        return state;
    }
    static uint32_t shoal_crc_instruction(uint32_t crc, const uint8_t *data, size_t length) {
        return ~shoal_crc_steps(~crc, data, length);
    }
    static uint32_t shoal_crc_record_instruction(const uint8_t *record, size_t length) {
        return ~shoal_crc_steps(shoal_crc_steps(0xFFFFFFFFu, record, 4), record + 8, length - 8);
    }
    static int shoal_crc_has_instruction(void) {
        return (getauxval(AT_HWCAP) & (1 << 7)) != 0;       /* HWCAP_CRC32 */
    }
    #else
    #define SHOAL_CRC_INSTRUCTION ""
    #define shoal_crc_instruction shoal_crc_table
    #define shoal_crc_record_instruction shoal_crc_record_table
    static int shoal_crc_has_instruction(void) { return 0; }
    #endif
    """
    ctypedef uint32_t (*shoal_crc_way)(uint32_t, const uint8_t*, size_t) noexcept nogil
    ctypedef uint32_t (*shoal_crc_record_way)(const uint8_t*, size_t) noexcept nogil
    const char* SHOAL_CRC_INSTRUCTION
    void shoal_crc_fill() noexcept nogil
    int shoal_crc_has_instruction() noexcept nogil
    uint32_t shoal_crc_table(uint32_t, const uint8_t*, size_t) noexcept nogil
    uint32_t shoal_crc_instruction(uint32_t, const uint8_t*, size_t) noexcept nogil
    uint32_t shoal_crc_record_table(const uint8_t*, size_t) noexcept nogil
    uint32_t shoal_crc_record_instruction(const uint8_t*, size_t) noexcept nogil

shoal_crc_fill()
cdef shoal_crc_way fastest = shoal_crc_instruction if shoal_crc_has_instruction() else shoal_crc_table
cdef shoal_crc_record_way fastest_of_record = (
    shoal_crc_record_instruction if shoal_crc_has_instruction() else shoal_crc_record_table)


cdef uint32_t crc32c(uint32_t crc, const uint8_t* data, size_t length) noexcept nogil:
    """Return the CRC-32C of bytes that follow others whose CRC-32C is `crc`; 0 at the beginning."""
    return fastest(crc, data, length)


cdef uint32_t record_crc32c(const uint8_t* record, size_t length) noexcept nogil:
    """Return the check sum of a record, of 8 bytes or more: over its first four bytes and those behind the eighth."""
    return fastest_of_record(record, length)


def ways() -> tuple[str, ...]:
    """Return the ways this processor has, the one in use first: `sse4.2`, `armv8`, `table`."""
    if shoal_crc_has_instruction():
        return (<bytes>SHOAL_CRC_INSTRUCTION).decode("ascii"), "table"
    return ("table",)


def record_checksum(const uint8_t[::1] record, way: str | None = None) -> int:
    """Return the check sum of a record, of 8 bytes or more, without the four that it stands in. `way` as for checksum()."""
    assert record.shape[0] >= 8 and (way is None or way in ways()), (record.shape[0], way)
    if way == "table":
        return shoal_crc_record_table(&record[0], record.shape[0])
    return fastest_of_record(&record[0], record.shape[0])


def checksum(const uint8_t[::1] data, crc: int = 0, way: str | None = None) -> int:
    """Return the CRC-32C of `data`, which follows bytes whose CRC-32C is `crc`.

    Args:
        way: one of ways(), for tests; None is the fastest.
    """
    cdef const uint8_t* start = &data[0] if data.shape[0] else NULL
    assert way is None or way in ways(), way
    if way == "table":
        return shoal_crc_table(crc, start, data.shape[0])
    return fastest(crc, start, data.shape[0])
