"""Levels of topics in a tree: one hash table per tree finds every child, so a level needs no map of its own."""

from libc.stdlib cimport calloc, free

cdef enum:
    SLOTS_MIN = 64


cdef int open_table(LevelTable* table, size_t level_size, uint64_t seed) except -1:
    """Make an empty table."""
    table.levels = NULL
    table.tags = NULL
    table.count = 0
    table.level_size = <uint32_t>level_size
    table.seed = fold(seed ^ <uint64_t>0x2D358DCCAA6C78A5, <uint64_t>0x8BB84B93962EACC9)
    return resize(table, SLOTS_MIN)


cdef void close_table(LevelTable* table) noexcept:
    cdef uint32_t slot
    if table.tags == NULL:
        return
    for slot in range(table.mask + 1):
        if table.tags[slot]:
            free(table.levels[slot])
    free(table.levels)
    free(table.tags)
    table.levels = NULL
    table.tags = NULL
    table.count = 0


cdef int resize(LevelTable* table, uint32_t slots) except -1:
    """Move everything into a table of so many slots, a power of two. Touches no level: the tags say where."""
    cdef Level** levels = <Level**>calloc(slots, sizeof(Level*))
    cdef uint32_t* tags = <uint32_t*>calloc(slots, sizeof(uint32_t))
    cdef uint32_t old
    cdef uint32_t slot
    if levels == NULL or tags == NULL:
        free(levels)
        free(tags)
        raise MemoryError()
    if table.tags != NULL:
        for old in range(table.mask + 1):
            if table.tags[old]:
                slot = table.tags[old] & (slots - 1)
                while tags[slot]:
                    slot = (slot + 1) & (slots - 1)
                tags[slot] = table.tags[old]
                levels[slot] = table.levels[old]
        free(table.levels)
        free(table.tags)
    table.levels = levels
    table.tags = tags
    table.mask = slots - 1
    return 0


cdef Level* add_level(LevelTable* table, Level* parent, const uint8_t* text, size_t length) except NULL:
    cdef uint64_t level_hash = hash_level(table.seed, text, length)
    cdef Level* level = find_level(table, parent, text, length, level_hash)
    cdef uint32_t tag
    cdef uint32_t slot
    if level != NULL:
        return level
    if table.count + 1 > (table.mask + 1) // 4 * 3:
        resize(table, (table.mask + 1) * 2)
    level = <Level*>calloc(1, table.level_size + length)
    if level == NULL:
        raise MemoryError()
    level.parent = parent
    level.length = <uint16_t>length
    memcpy(text_of(table, level), text, length)
    if length == 1 and (text[0] == 0x2B or text[0] == 0x23):
        level.flags = IS_WILDCARD
        parent.flags |= HAS_PLUS if text[0] == 0x2B else HAS_HASH
    parent.children += 1
    tag = tag_of(level_hash, parent)
    slot = tag & table.mask
    while table.tags[slot]:
        slot = (slot + 1) & table.mask
    table.tags[slot] = tag
    table.levels[slot] = level
    table.count += 1
    return level


cdef void remove_level(LevelTable* table, Level* level) noexcept:
    cdef uint8_t* text = text_of(table, level)
    cdef uint32_t hole = tag_of(hash_level(table.seed, text, level.length), level.parent) & table.mask
    cdef uint32_t slot
    while table.levels[hole] != level:
        hole = (hole + 1) & table.mask
    level.parent.children -= 1
    if level.flags & IS_WILDCARD:
        level.parent.flags &= <uint8_t>~(HAS_PLUS if text[0] == 0x2B else HAS_HASH)
    free(level)
    table.count -= 1
    # Close the hole: what lies behind it and would not be found past an empty slot moves up.
    slot = hole
    while True:
        slot = (slot + 1) & table.mask
        if table.tags[slot] == 0:
            break
        if ((slot - (table.tags[slot] & table.mask)) & table.mask) >= ((slot - hole) & table.mask):
            table.tags[hole] = table.tags[slot]
            table.levels[hole] = table.levels[slot]
            hole = slot
    table.tags[hole] = 0
    table.levels[hole] = NULL
