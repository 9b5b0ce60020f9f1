"""The file of the retained messages' index, page by page: whether LMDB can be let loose on it."""

from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t

cdef enum:
    LEVELS_MAX = 32                  # LMDB's own limit on the depth of a tree

cdef struct Tree:                    # as LMDB has it: MDB_db
    uint16_t flags
    uint16_t depth
    uint64_t entries
    uint64_t root

cdef class PageCheck:
    cdef int file                    # -1: not open
    cdef uint64_t file_bytes
    cdef uint64_t page_bytes
    cdef uint64_t page_count         # of pages that the meta page says there are
    cdef uint64_t transaction
    cdef uint8_t* used               # one byte for each page: 1 in a tree, 2 free
    cdef uint8_t* pages              # one page for each level of the tree that is walked
    cdef uint8_t* large              # what does not fit in a page: a value, or a list of free pages
    cdef uint64_t large_bytes
    cdef Tree trees[4]               # by DATABASES
    cdef bint found[4]
    cdef uint64_t entries            # of the tree that is walked, so far
    cdef uint64_t messages
    cdef uint64_t size_bytes
    cdef uint64_t due_wanted         # sum over all values that do not stay for ever, and over all that `due` has
    cdef uint64_t due_found
    cdef str foreign                 # what is in it that a newer version may have put there; None
    cdef readonly dict meta          # name to value, without its check sum

    cdef int read(self, uint64_t page, uint64_t count, uint8_t* to) except -1
    cdef int use(self, uint64_t page, uint64_t count, uint8_t how) except -1
    cdef int pick_meta(self, int64_t transaction) except -1
    cdef int walk_tree(self, int kind, Tree* tree, int level) except -1
    cdef int64_t read_header(self, uint64_t page, int depth, uint8_t* at) except -1
    cdef int walk(self, int kind, uint64_t page, int level, int depth, const uint8_t* low, size_t low_length,
                  const uint8_t* high, size_t high_length) except -1
    cdef int leaf(self, int kind, uint64_t page, int level, const uint8_t* key, size_t key_length, uint16_t flags,
                  const uint8_t* data, uint64_t length) except -1
    cdef int duplicates(self, uint64_t page, const uint8_t* key, size_t key_length, const uint8_t* data,
                        uint64_t length) except -1
    cdef int entry(self, int kind, uint64_t page, const uint8_t* key, size_t key_length, const uint8_t* data,
                   uint64_t length) except -1
    cdef int free_pages(self, uint64_t page, const uint8_t* data, uint64_t length) except -1
    cdef int room(self, uint64_t length) except -1
    cdef int note_meta(self, uint64_t page, bytes key, bytes data) except -1
    cdef int judge(self) except -1
