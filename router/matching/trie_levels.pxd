"""Levels of topics in a tree: one hash table per tree finds every child, so a level needs no map of its own."""

from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t, uintptr_t
from libc.string cimport memcmp, memcpy

cdef extern from *:
    """
    #include <stdint.h>
    #ifndef SHOAL_FOLD
    #define SHOAL_FOLD
    static inline uint64_t shoal_fold(uint64_t a, uint64_t b) {
        __uint128_t product = (__uint128_t)a * b;
        return (uint64_t)product ^ (uint64_t)(product >> 64);
    }
    #endif
    """
    uint64_t fold "shoal_fold"(uint64_t a, uint64_t b) noexcept nogil    # both halves of the product, one over the other

cdef enum:
    HAS_PLUS = 0x01              # a child is +
    HAS_HASH = 0x02              # a child is #
    IS_WILDCARD = 0x04           # this level is + or #

cdef struct Level:
    # What a node of any tree begins with; the tree's own fields follow, and behind them the text of the level.
    Level* parent                # NULL: the root, which is not in the table
    uint32_t children            # levels whose parent this is
    uint16_t length              # bytes of text, 0..65535
    uint8_t flags
    uint8_t held                 # so many that are not done with it yet: it stays while there are any

cdef struct LevelTable:
    # Open addressing, linear probing, no tombstones. tags[slot] is 0 where levels[slot] is empty; at most 3/4 are full.
    Level** levels
    uint32_t* tags               # hash of (parent, text), never 0: compared before a level is touched
    uint32_t mask                # slots - 1
    uint32_t count               # levels in it
    uint32_t level_size          # bytes of the tree's node struct; the text lies there
    uint64_t seed                # clients choose the text, so they must not know what collides


cdef inline uint8_t* text_of(const LevelTable* table, const Level* level) noexcept nogil:
    """Return the text of a level."""
    return <uint8_t*>level + table.level_size


cdef inline uint64_t hash_level(uint64_t seed, const uint8_t* text, size_t length) noexcept nogil:
    """Return the hash of a level's text; one multiplication for eight bytes."""
    cdef uint64_t hash = seed ^ (length * <uint64_t>0x9E3779B97F4A7C15)
    cdef uint64_t word
    while length >= 8:
        memcpy(&word, text, 8)
        hash = fold(hash ^ word, <uint64_t>0xA0761D6478BD642F)
        text += 8
        length -= 8
    word = 0
    while length > 0:
        length -= 1
        word = (word << 8) | text[length]
    return fold(hash ^ word, <uint64_t>0xE7037ED1A0B428DB)


cdef inline uint32_t tag_of(uint64_t level_hash, const Level* parent) noexcept nogil:
    """Return the table's tag of a level under a parent, never 0."""
    cdef uint32_t tag = <uint32_t>(fold(level_hash ^ <uint64_t><uintptr_t>parent, <uint64_t>0x8EBC6AF09C88C6E3) >> 24)
    return tag if tag else 1


cdef inline Level* find_level(const LevelTable* table, const Level* parent, const uint8_t* text, size_t length,
                              uint64_t level_hash) noexcept nogil:
    """Return the child of parent with this text (level_hash is hash_level's of it), or NULL."""
    cdef uint32_t tag = tag_of(level_hash, parent)
    cdef uint32_t slot = tag & table.mask
    cdef Level* level
    while table.tags[slot]:
        if table.tags[slot] == tag:
            level = table.levels[slot]
            if level.parent == parent and level.length == length and memcmp(text_of(table, level), text, length) == 0:
                return level
        slot = (slot + 1) & table.mask
    return NULL


cdef int open_table(LevelTable* table, size_t level_size, uint64_t seed) except -1
cdef void close_table(LevelTable* table) noexcept       # frees the levels too, but nothing that they point to
# The child of parent with this text, added if it is missing: level_size bytes, zero behind the Level.
cdef Level* add_level(LevelTable* table, Level* parent, const uint8_t* text, size_t length) except NULL
cdef void remove_level(LevelTable* table, Level* level) noexcept     # has no children; freed
