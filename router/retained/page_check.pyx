"""The file of the retained messages' index, page by page: whether LMDB can be let loose on it.

LMDB trusts its file: a page that is not what it should be ends the process, by an assertion or by a read outside of the
map. So before a file is opened, all that LMDB may come to is read here, with read() and with every bound looked at: the
pages of all trees, their keys in order, every value with its check sum, the pages that are said to be free, and whether
all of it fits together. What has only its check sum wrong is damage too.

The format is LMDB's data format 1 (lmdb.h and mdb.c of 0.9: MDB_meta, MDB_page, MDB_node, MDB_db), on a machine with
64 bits and the low byte first.
"""

cimport cython
from libc.errno cimport errno
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memcmp
from posix.unistd cimport pread
from router.log.record_cursor cimport get16, get32, get64
from router.log.crc32c cimport crc32c
from router.core.message cimport topic_hash
from router.retained.values cimport Sizes, is_whole

from router.log.disk import close_file, open_whole

cdef enum:
    MAGIC = 0xBEEFC0DE
    VERSION = 1
    PAGE_HEADER = 16
    META_BYTES = 136
    TREE_BYTES = 48
    NODE_HEADER = 8
    P_BRANCH = 0x01
    P_LEAF = 0x02
    P_OVERFLOW = 0x04
    P_META = 0x08
    P_SUBP = 0x40
    P_KINDS = 0x6F               # these and P_LEAF2, which we have none of; the rest means something in memory only
    F_BIGDATA = 0x01
    F_SUBDATA = 0x02
    F_DUPDATA = 0x04
    DUPSORT = 0x04
    INTEGERKEY = 0x08
    DUE_KEY = 9

cdef enum:                       # what is walked; from TOPICS on as in DATABASES
    TOPICS = 0
    TOMBSTONES = 1
    DUE = 2
    META = 3
    MAIN = 4
    FREE = 5
    DUPLICATES = 6               # the topics that are due at once, where they have a tree of their own

DATABASES = (b"topics", b"tombstones", b"due", b"meta")
CHECKED = {b"format": 4, b"totals": 24, b"node": 8, b"applied": 20}      # bytes of these values, without their check sum
APPLIED_2 = 16                 # ... until format 2

FORMAT_MAX = 3                 # of what is checked here; a newer one is left alone

cdef uint64_t MAP_MAX = <uint64_t>1 << 46
cdef uint64_t NO_PAGE = <uint64_t>-1


class PagesError(Exception):
    """What is wrong with the file, and on which page."""


class StateGoneError(PagesError):
    """No meta page is of the transaction that was asked for: two newer ones have been written since, or it is damaged."""


def meta_value(bytes key not None, bytes data not None) -> bytes:
    """Return what stands in `meta` under a key: the data with a check sum of both."""
    return data + meta_crc(key, data).to_bytes(4, "little")


cdef object meta_crc(bytes key, bytes data):
    return crc32c(crc32c(0, key, len(key)), data, len(data))


cdef inline uint64_t mixed(uint64_t due_us, uint64_t name) noexcept:
    """Return 64 bits of a topic's key and when it is due, to be added up in any order."""
    cdef uint64_t value = name ^ (due_us * <uint64_t>0x9E3779B97F4A7C15)
    value ^= value >> 29
    value *= <uint64_t>0xBF58476D1CE4E5B9
    return value ^ (value >> 32)


cdef Tree tree_in(const uint8_t* at) noexcept:
    """Return what LMDB says of a tree."""
    cdef Tree tree
    tree.flags, tree.depth = get16(at + 4), get16(at + 6)
    tree.entries, tree.root = get64(at + 32), get64(at + 40)
    return tree


cdef inline uint64_t due_of(const uint8_t* key) noexcept:
    """Return the time and the kind in a key of `due`, in one number."""
    cdef uint64_t due_us = 0
    cdef int index
    for index in range(1, DUE_KEY):
        due_us = due_us << 8 | key[index]
    return due_us * 2 + key[0]


cdef inline int order(const uint8_t* one, size_t one_length, const uint8_t* other, size_t other_length) noexcept:
    cdef int found = memcmp(one, other, min(one_length, other_length))
    return found if found else (one_length > other_length) - (one_length < other_length)


cdef inline int compare(int kind, const uint8_t* one, size_t one_length, const uint8_t* other,
                        size_t other_length) noexcept:
    if kind == FREE:
        return (get64(one) > get64(other)) - (get64(one) < get64(other))
    return order(one, one_length, other, other_length)


@cython.final
cdef class PageCheck:
    """Reads all of an index's file. Raises PagesError if LMDB is not to open it, OSError.

    Args:
        path: of data.mdb. Nobody writes to it, or the transaction below is open for as long as this takes.
        transaction: the state of this transaction; -1: the newest.

    Attributes:
        meta: what stands in the database `meta`: name to value, without check sums. Empty of a new environment. With a
            newer format than FORMAT_MAX nothing else was looked at.

    Cost: 0.3 to 0.5 s and one byte of memory a page for a million messages of 100 bytes, beside reading the file.
    """

    def __cinit__(self):
        self.file = -1

    def __init__(self, path: str, transaction: int = -1) -> None:
        cdef int kind
        cdef Tree trees[2]
        self.meta = {}
        self.file, self.file_bytes = open_whole(path)
        if self.file_bytes == 0:
            return                       # LMDB makes a new one of it
        self.pick_meta(transaction)
        trees[0] = tree_in(self.pages + PAGE_HEADER + 24)
        trees[1] = tree_in(self.pages + PAGE_HEADER + 24 + TREE_BYTES)
        if not trees[0].flags & INTEGERKEY or trees[1].flags:
            raise PagesError("the meta page: flags of a tree that are not ours")
        self.walk_tree(FREE, &trees[0], 0)
        self.walk_tree(MAIN, &trees[1], 0)
        if self.found[META]:
            self.walk_tree(META, &self.trees[META], 0)
        # A newer version may have changed what follows, and what else there is.
        if int.from_bytes(self.meta.get(b"format", b""), "little") > FORMAT_MAX:
            return
        if self.foreign is not None:
            raise PagesError(self.foreign)
        for kind in (TOPICS, TOMBSTONES, DUE):
            if self.found[kind]:
                self.walk_tree(kind, &self.trees[kind], 0)
        self.judge()

    def __dealloc__(self):
        if self.file >= 0:
            close_file(self.file)
        free(self.used)
        free(self.pages)
        free(self.large)

    cdef int read(self, uint64_t page, uint64_t count, uint8_t* to) except -1:
        """Read pages that lie one behind another."""
        cdef uint64_t done = 0
        cdef uint64_t wanted = count * self.page_bytes
        cdef ssize_t some
        while done < wanted:
            some = pread(self.file, to + done, wanted - done, page * self.page_bytes + done)
            if some < 0:
                raise OSError(errno, "the index of retained messages cannot be read")
            if some == 0:
                raise PagesError(f"page {page} is behind the end of the file")
            done += some
        return 0

    cdef int use(self, uint64_t page, uint64_t count, uint8_t how) except -1:
        """Note what pages are there for: each for one thing."""
        cdef uint64_t index
        if page < 2 or count > self.page_count or page > self.page_count - count:
            raise PagesError(f"page {page} is none of the file's {self.page_count}")
        for index in range(page, page + count):
            if self.used[index]:
                raise PagesError(f"page {index} is there for two things")
            self.used[index] = how
        return 0

    cdef int pick_meta(self, int64_t transaction) except -1:
        """Read the newest meta page, or that of a transaction, into `pages`."""
        cdef uint8_t[PAGE_HEADER + META_BYTES] start
        cdef uint8_t* meta
        cdef uint64_t map_bytes, number
        cdef int page
        cdef int64_t chosen = -1
        cdef uint64_t newest = 0
        if pread(self.file, start, sizeof(start), 0) != sizeof(start):
            raise PagesError("it ends within its first page")
        self.page_bytes = get32(start + PAGE_HEADER + 24)
        if self.page_bytes < 512 or self.page_bytes > 32768 or self.page_bytes & (self.page_bytes - 1):
            raise PagesError(f"meta page 0: pages of {self.page_bytes} bytes")
        self.pages = <uint8_t*>malloc(LEVELS_MAX * self.page_bytes)
        if self.pages == NULL:
            raise MemoryError
        for page in range(2):
            self.read(page, 1, self.pages)
            meta = self.pages + PAGE_HEADER
            number = get64(meta + 128)
            if (get16(self.pages + 10) != P_META or get64(self.pages) != <uint64_t>page or get32(meta) != MAGIC
                    or get32(meta + 4) != VERSION or get32(meta + 24) != self.page_bytes):
                raise PagesError(f"meta page {page} is none")
            map_bytes = get64(meta + 16)
            if map_bytes > MAP_MAX or get64(meta + 120) >= map_bytes // self.page_bytes or get64(meta + 120) < 1:
                raise PagesError(f"meta page {page}: {get64(meta + 120)} pages in {map_bytes} bytes")
            # Transaction n writes meta page n % 2; both are of number 0 at first.
            if number and (number & 1) != <uint64_t>page:
                raise PagesError(f"meta page {page} is of transaction {number}")
            if (number == <uint64_t>transaction) if transaction >= 0 else (chosen < 0 or number > newest):
                chosen, newest = page, number
        if chosen < 0:
            raise StateGoneError(f"no meta page is of transaction {transaction}")
        self.transaction = newest
        self.read(chosen, 1, self.pages)
        self.page_count = get64(self.pages + PAGE_HEADER + 120) + 1
        # Pages that were taken and given back within one transaction may never have been written.
        if self.page_count > self.file_bytes // self.page_bytes * 2 + 65536:
            raise PagesError(f"it has {self.file_bytes} bytes for {self.page_count} pages")
        self.used = <uint8_t*>calloc(self.page_count, 1)
        if self.used == NULL:
            raise MemoryError
        return 0

    cdef int walk_tree(self, int kind, Tree* tree, int level) except -1:
        """Walk all of a tree; pages above `level` are kept as they are."""
        cdef uint64_t before = self.entries
        if tree.root == NO_PAGE:
            if tree.entries or tree.depth:
                raise PagesError("a tree without pages has entries")
            return 0
        if tree.depth < 1 or level + tree.depth > LEVELS_MAX:
            raise PagesError(f"a tree of {tree.depth} levels")
        self.entries = 0
        self.walk(kind, tree.root, level, tree.depth, NULL, 0, NULL, 0)
        if self.entries != tree.entries:
            raise PagesError(f"a tree has {self.entries} entries and says {tree.entries}")
        self.entries += before
        return 0

    cdef int64_t read_header(self, uint64_t page, int depth, uint8_t* at) except -1:
        """Read a page of a tree. Returns how many entries it has."""
        cdef uint16_t lower, upper
        cdef int64_t count
        self.use(page, 1, 1)
        self.read(page, 1, at)
        lower, upper = get16(at + 12), get16(at + 14)
        if (get64(at) != page or get16(at + 10) & P_KINDS != (P_LEAF if depth == 1 else P_BRANCH)
                or lower < PAGE_HEADER or lower & 1 or lower > upper or upper > self.page_bytes):
            raise PagesError(f"page {page} is not what belongs there")
        count = (lower - PAGE_HEADER) // 2
        if count < (1 if depth == 1 else 2):
            raise PagesError(f"page {page} has {count} entries")
        return count

    cdef int walk(self, int kind, uint64_t page, int level, int depth, const uint8_t* low, size_t low_length,
                  const uint8_t* high, size_t high_length) except -1:
        """Walk what is below a page, whose keys are not below `low` and below `high` (NULL: any)."""
        cdef uint8_t* at = self.pages + level * self.page_bytes
        cdef uint16_t upper, flags, key_length
        cdef uint64_t count, index, node, length, total = 0
        cdef const uint8_t* key
        cdef const uint8_t* before = NULL
        cdef size_t before_length = 0
        cdef const uint8_t* following
        cdef size_t following_length
        count = self.read_header(page, depth, at)
        upper = get16(at + 14)
        for index in range(count):
            node = get16(at + PAGE_HEADER + 2 * index)
            if node < upper or node & 1 or node + NODE_HEADER > self.page_bytes:
                raise PagesError(f"page {page}: an entry is not within it")
            flags, key_length = get16(at + node + 4), get16(at + node + 6)
            length = get16(at + node) | <uint64_t>get16(at + node + 2) << 16
            key = at + node + NODE_HEADER
            if depth > 1:
                total += (NODE_HEADER + key_length + 1) & ~1
                if node + NODE_HEADER + key_length > self.page_bytes:
                    raise PagesError(f"page {page}: an entry is not within it")
            else:
                total += (NODE_HEADER + key_length + (8 if flags & F_BIGDATA else length) + 1) & ~<uint64_t>1
                if node + NODE_HEADER + key_length + (8 if flags & F_BIGDATA else length) > self.page_bytes:
                    raise PagesError(f"page {page}: an entry is not within it")
            if kind == FREE and (depth == 1 or index) and key_length != 8:
                raise PagesError(f"page {page}: a key of {key_length} bytes")
            # The first key of a branch says nothing.
            if depth == 1 or index:
                if before != NULL and compare(kind, before, before_length, key, key_length) >= 0:
                    raise PagesError(f"page {page}: keys are out of order")
                if low != NULL and compare(kind, key, key_length, low, low_length) < 0:
                    raise PagesError(f"page {page}: a key is too low for it")
                if high != NULL and compare(kind, key, key_length, high, high_length) >= 0:
                    raise PagesError(f"page {page}: a key is too high for it")
                before, before_length = key, key_length
        if total != self.page_bytes - upper:
            raise PagesError(f"page {page}: its entries do not fill it")
        for index in range(count):
            node = get16(at + PAGE_HEADER + 2 * index)
            flags, key_length = get16(at + node + 4), get16(at + node + 6)
            length = get16(at + node) | <uint64_t>get16(at + node + 2) << 16
            key = at + node + NODE_HEADER
            if depth == 1:
                self.leaf(kind, page, level, key, key_length, flags, key + key_length, length)
                continue
            following, following_length = high, high_length
            if index + 1 < count:
                node = get16(at + PAGE_HEADER + 2 * (index + 1))
                following, following_length = at + node + NODE_HEADER, get16(at + node + 6)
            if index == 0:
                key, key_length = low, low_length
            self.walk(kind, length | <uint64_t>flags << 32, level + 1, depth - 1, key, key_length, following,
                      following_length)
        return 0

    cdef int leaf(self, int kind, uint64_t page, int level, const uint8_t* key, size_t key_length, uint16_t flags,
                  const uint8_t* data, uint64_t length) except -1:
        """Look at one entry of a leaf, wherever its data is."""
        cdef uint64_t first, count
        cdef Tree below
        cdef int index
        if kind == MAIN:
            name = <bytes>key[:key_length]
            self.entries += 1
            if flags != F_SUBDATA or length != TREE_BYTES or name not in DATABASES:
                self.foreign = self.foreign or f"page {page} has a database that is not ours"
                return 0
            index = DATABASES.index(name)
            self.trees[index] = tree_in(data)
            self.found[index] = True
            if self.trees[index].flags != (DUPSORT if index == DUE else 0):
                raise PagesError(f"page {page}: a database has flags that are not ours")
            return 0
        if kind == DUE and flags == F_DUPDATA:
            return self.duplicates(page, key, key_length, data, length)
        if kind == DUE and flags == F_DUPDATA | F_SUBDATA and length == TREE_BYTES and key_length == DUE_KEY:
            below = tree_in(data)
            # What walk() is asked for is of the key that `large` has.
            self.room(DUE_KEY)
            for index in range(DUE_KEY):
                self.large[index] = key[index]
            return self.walk_tree(DUPLICATES, &below, level + 1)
        if flags == F_BIGDATA and kind != DUPLICATES:
            first = get64(data)
            count = (PAGE_HEADER + length + self.page_bytes - 1) // self.page_bytes
            self.use(first, count, 1)
            self.room(count * self.page_bytes)
            self.read(first, count, self.large)
            if (get64(self.large) != first or get16(self.large + 10) & P_KINDS != P_OVERFLOW
                    or get32(self.large + 12) != count):
                raise PagesError(f"page {first} is not what belongs there")
            return self.entry(kind, first, key, key_length, self.large + PAGE_HEADER, length)
        if flags:
            raise PagesError(f"page {page}: an entry of a kind that is not ours")
        return self.entry(kind, page, key, key_length, data, length)

    cdef int room(self, uint64_t length) except -1:
        """Have so many bytes in `large`."""
        cdef uint8_t* larger
        if length > self.large_bytes:
            larger = <uint8_t*>realloc(self.large, length)
            if larger == NULL:
                raise MemoryError
            self.large, self.large_bytes = larger, length
        return 0

    cdef int duplicates(self, uint64_t page, const uint8_t* key, size_t key_length, const uint8_t* data,
                        uint64_t length) except -1:
        """Look at several topics that are due at once, as far as they fit into one entry."""
        cdef uint64_t lower, upper, index, node, size
        cdef const uint8_t* before = NULL
        cdef size_t before_length = 0
        if length < PAGE_HEADER:
            raise PagesError(f"page {page}: a page within it is too short")
        lower, upper = get16(data + 12), get16(data + 14)
        if (get16(data + 10) & P_KINDS != P_LEAF | P_SUBP or lower < PAGE_HEADER or lower & 1 or lower > upper
                or upper > length):
            raise PagesError(f"page {page}: a page within it is none")
        for index in range((lower - PAGE_HEADER) // 2):
            node = get16(data + PAGE_HEADER + 2 * index)
            if node < upper or node + NODE_HEADER > length:
                raise PagesError(f"page {page}: an entry of a page within it is not within that")
            size = get16(data + node + 6)
            if node + NODE_HEADER + size > length or get32(data + node) or get16(data + node + 4):
                raise PagesError(f"page {page}: an entry of a page within it is not within that")
            if before != NULL and order(before, before_length, data + node + NODE_HEADER, size) >= 0:
                raise PagesError(f"page {page}: keys of a page within it are out of order")
            before, before_length = data + node + NODE_HEADER, size
            self.entry(DUE, page, key, key_length, before, size)
        return 0

    cdef int entry(self, int kind, uint64_t page, const uint8_t* key, size_t key_length, const uint8_t* data,
                   uint64_t length) except -1:
        """Look at what stands under a key."""
        cdef Sizes sizes
        self.entries += 1
        if kind == FREE:
            return self.free_pages(page, data, length)
        if kind == DUPLICATES:           # of the key that leaf() left there
            kind, data, length, key, key_length = DUE, key, key_length, self.large, DUE_KEY
        if kind == DUE:
            if key_length != DUE_KEY or key[0] > 1:
                raise PagesError(f"page {page}: a due time that is none")
            self.due_found += mixed(due_of(key), topic_hash(data, length))
        elif kind == META:
            self.note_meta(page, <bytes>key[:key_length], <bytes>data[:length])
        else:
            if not is_whole(key, key_length, data, length, &sizes) or sizes.messages != (kind == TOPICS):
                raise PagesError(f"page {page}: a value whose check sum is wrong")
            self.messages += sizes.messages
            self.size_bytes += sizes.bytes
            if sizes.due_us >= 0:
                self.due_wanted += mixed(<uint64_t>sizes.due_us * 2 + (kind != TOPICS), topic_hash(key, key_length))
        return 0

    cdef int note_meta(self, uint64_t page, bytes key, bytes data) except -1:
        """Take a value of `meta`: as it was in format 1, or with its check sum."""
        size = CHECKED.get(key[:7] if key.startswith(b"applied") and len(key) == 11 else key)
        if len(key) == 11 and len(data) in (APPLIED_2, APPLIED_2 + 4):
            size = APPLIED_2
        if size is None or len(data) not in (size, size + 4):
            self.foreign = self.foreign or f"page {page}: {key!r} is not ours"
            return 0
        if len(data) > size and int.from_bytes(data[size:], "little") != meta_crc(key, data[:size]):
            raise PagesError(f"page {page}: a value whose check sum is wrong")
        self.meta[key] = data[:size]
        return 0

    cdef int free_pages(self, uint64_t page, const uint8_t* data, uint64_t length) except -1:
        """Look at a list of pages that are free: how many, then their numbers, the highest first."""
        cdef uint64_t index
        if length < 8 or length & 7 or get64(data) != length // 8 - 1:
            raise PagesError(f"page {page}: a list of free pages that is none")
        for index in range(1, length // 8):
            self.use(get64(data + 8 * index), 1, 2)
        return 0

    cdef int judge(self) except -1:
        """Look whether the parts fit together."""
        cdef bytes totals = self.meta.get(b"totals", bytes(24))
        if (self.messages or self.trees[TOMBSTONES].entries) and (b"format" not in self.meta):
            raise PagesError("it does not say which format it has")
        if get64(totals) != self.messages or get64(<const uint8_t*>totals + 8) != self.size_bytes:
            raise PagesError(f"it has {self.messages} messages of {self.size_bytes} bytes, and says otherwise")
        if self.due_wanted != self.due_found:
            raise PagesError("what is due is not what its messages say")
        return 0
