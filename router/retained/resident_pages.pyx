"""What a mapped file takes of this process's memory, kept below a bound.

A page of a mapped file counts as resident from the first time it is read, and a system that maps the neighbours along
(up to what it holds together in one piece) makes that the whole file, soon. Giving a page back takes it out of this
process's page table only: it stays in the system's page cache, so reading it again costs a minor fault.
"""

from libc.errno cimport errno
from libc.stdio cimport snprintf, sscanf
from posix.fcntl cimport O_CLOEXEC, O_RDONLY, open as open_file
from posix.mman cimport MADV_DONTNEED, madvise
from posix.stat cimport stat, struct_stat
from posix.unistd cimport _SC_PAGESIZE, close as close_file, pread, readlink, sysconf

cdef enum:
    WINDOW = 1 << 18             # of pages in memory, given back before it is looked again: 64 of them, some 10 us
    SLACK_PART = 512             # of the bound: so much less there is after giving back; a turn waits for it
    TOUCHES = 4                  # pages that are read between two looks; the system maps 16 for each of them, or more
    STEP = 8                     # windows that are gone through for so many pages: a turn waits
    EVERYTHING = 0xFFFFFFFF      # windows
    TARGET_MAX = 4096            # bytes of a name that a place is known by


cdef class MappedPages:
    """The pages of a file that LMDB has mapped for reading only, shared: giving them back loses nothing.

    Args:
        path: of the file. Raises OSError if it is not there.
        bytes_max: of files in this process's memory (RssFile). Where others have that much without this file, it is so
            much on top of theirs.
    """

    def __cinit__(self):
        self.statm = -1

    def __init__(self, path: str, bytes_max: int):
        cdef struct_stat found
        self.path = path.encode("utf-8", "surrogateescape")
        self.bytes_max = self.allowed = bytes_max
        self.page_bytes = sysconf(_SC_PAGESIZE)
        if stat(self.path, &found) < 0:
            raise OSError(errno, "no such file", path)
        self.inode = found.st_ino
        self.statm = open_file(b"/proc/self/statm", O_RDONLY | O_CLOEXEC)
        self.target = b""

    def __dealloc__(self):
        self.close()

    cpdef close(self):
        """Look no more."""
        if self.statm >= 0:
            close_file(self.statm)
            self.statm = -1

    def touched(self, uint64_t pages) -> None:
        """Count pages that were read; every few of them, look() at a part of the file, which must stay mapped."""
        cdef uint64_t times
        self.touches += pages
        if self.touches >= TOUCHES:
            times = self.touches // TOUCHES
            self.touches = 0
            self.give_back(times * STEP)

    cdef uint64_t mapped(self) noexcept:
        """Return how much of files is in this process's memory, in bytes; 0 if the system does not say. 1 us."""
        cdef char text[128]
        cdef unsigned long pages
        cdef ssize_t length = pread(self.statm, text, sizeof(text) - 1, 0) if self.statm >= 0 else 0
        if length <= 0:
            return 0
        text[length] = 0
        return pages * self.page_bytes if sscanf(text, b"%*s %*s %lu", &pages) == 1 else 0

    def look(self) -> int:
        """Look whether files take more memory than they may, and give back pages if so; returns how many bytes went.

        Nobody may map or unmap the file meanwhile; reading it is safe.
        """
        return self.give_back(EVERYTHING)

    cdef uint64_t give_back(self, uint64_t windows) except? 0xFFFFFFFFFFFFFFFF:
        """look(), but go through so many windows of the file at most; the next time goes on behind them.

        A window is the larger the less of the file can be in memory, so a whole round has no more of them than the
        bound has. If that was not enough, the next time goes through all: what was read since the round began is left.

        Cost: 1 us, or with something to give back 5 us, 2 us for each window and 0.2 us for each page that goes; 0.2 ms
        where the file was not before.
        """
        cdef struct_stat found
        cdef uint64_t before = self.mapped()
        cdef uint64_t now = before
        cdef uint64_t enough = self.bytes_max - self.bytes_max // SLACK_PART
        cdef uint64_t first = 0, length = 0, passed = 0, begin, window
        if before <= self.allowed:
            return 0
        if not self.is_there():
            self.find()
        if self.length and stat(self.path, &found) == 0:
            # The map is longer than the file.
            first, length = self.first, min(self.length, <uint64_t>found.st_size)
        window = (1 + length // self.bytes_max) * WINDOW
        if self.passed >= length:
            windows = EVERYTHING
        while passed < length and now > enough and windows:
            begin = self.hand if self.hand < length else 0
            self.hand = min(begin + window, length)
            if madvise(<void*><uintptr_t>(first + begin), self.hand - begin, MADV_DONTNEED) < 0:
                break
            passed += self.hand - begin
            windows -= 1
            now = self.mapped()
        if now <= enough:
            self.passed = 0
            self.allowed = self.bytes_max
        elif passed >= length:
            # All of this file went in this call, so what is left is others'.
            self.passed = 0
            self.allowed = now + self.bytes_max
        else:
            self.passed += passed
            self.allowed = self.bytes_max        # the rest is given back the next time
        return before - now if now < before else 0

    cdef bytes target_of(self, uint64_t first, uint64_t length):
        """Return the name of the file that is mapped at exactly this place, as the system knows it; empty if none is."""
        cdef char link[64]
        cdef char target[TARGET_MAX]
        cdef ssize_t got
        snprintf(link, sizeof(link), b"/proc/self/map_files/%lx-%lx", <unsigned long>first, <unsigned long>(first + length))
        got = readlink(link, target, TARGET_MAX)
        return target[:got] if got > 0 else b""

    cdef bint is_there(self) except -1:
        """Return whether the file is still mapped where it was found. What lies there by now is asked for, not assumed."""
        return self.length != 0 and self.target != b"" and self.target_of(self.first, self.length) == self.target

    cdef int find(self) except -1:
        place = self.place()
        self.first, self.length = place if place is not None else (0, 0)
        self.target = self.target_of(self.first, self.length) if self.length else b""
        return 0

    def place(self):
        """Return where the file is mapped, shared and for reading only, and over which length; None if it is not.

        What was there may be somebody else's memory by now, and giving that back would lose it. Cost: 0.2 ms.
        """
        try:
            with open("/proc/self/maps", "rb") as maps:
                for line in maps:
                    # Its name tells which lines are worth a look (its folder may have moved), its inode that it is it.
                    if line.endswith(self.path[self.path.rindex(b"/"):] + b"\n"):
                        places, permissions, _, _, inode = line.split(None, 5)[:5]
                        if permissions == b"r--s" and int(inode) == self.inode:
                            first, end = (int(number, 16) for number in places.split(b"-"))
                            return first, end - first
        except OSError:
            pass
        return None
