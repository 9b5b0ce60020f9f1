"""What a mapped file takes of this process's memory, kept below a bound.

A page of a mapped file counts as resident from the first time it is read, and a system that maps the neighbours along
(up to what it holds together in one piece) makes that the whole file, soon. Giving a page back takes it out of this
process's page table only: it stays in the system's page cache, so reading it again costs a minor fault.
"""

from libc.errno cimport errno
from libc.stdio cimport sscanf
from posix.fcntl cimport O_CLOEXEC, O_RDONLY, open as open_file
from posix.mman cimport MADV_DONTNEED, madvise
from posix.stat cimport stat, struct_stat
from posix.unistd cimport _SC_PAGESIZE, close as close_file, pread, sysconf

cdef enum:
    WINDOW = 1 << 20             # given back at a time, before it is looked again: 256 pages, some 13 us
    SLACK_PART = 64              # of the bound: so much less there is after giving back; a turn waits for it
    TOUCHES = 32                 # pages that are read between two looks; the system maps 16 for each of them, or more


cdef class MappedPages:
    """The pages of a file that somebody has mapped for reading only, shared: giving them back loses nothing.

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

    def __dealloc__(self):
        self.close()

    cpdef close(self):
        """Look no more."""
        if self.statm >= 0:
            close_file(self.statm)
            self.statm = -1

    def touched(self, uint64_t pages) -> None:
        """Take notice that so many pages were read; look() now and then. What holds there for the caller holds here."""
        self.touches += pages
        if self.touches >= TOUCHES:
            self.touches = 0
            self.look()

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

        Nobody may map or unmap the file meanwhile; reading it is safe. Cost: 1 us, or with something to give back 0.1 ms
        and 50 ns for each page.
        """
        cdef struct_stat found
        cdef uint64_t before = self.mapped()
        cdef uint64_t now = before
        cdef uint64_t enough = self.bytes_max - self.bytes_max // SLACK_PART
        cdef uint64_t first = 0, length = 0, begin, passed = 0
        if before <= self.allowed:
            return 0
        place = self.place()
        if place is not None and stat(self.path, &found) == 0:
            first, length = place
            # The map is longer than the file.
            length = min(length, <uint64_t>found.st_size)
        while passed < length and now > enough:
            begin = self.hand if self.hand < length else 0
            self.hand = min(begin + WINDOW, length)
            if madvise(<void*><uintptr_t>(first + begin), self.hand - begin, MADV_DONTNEED) < 0:
                break
            passed += self.hand - begin
            now = self.mapped()
        # What is left when all of this file is gone is others'.
        self.allowed = self.bytes_max if now <= enough else now + self.bytes_max
        return before - now if now < before else 0

    def place(self):
        """Return where the file is mapped, shared and for reading only, and over which length; None if it is not.

        The system is asked each time: what was there may be somebody else's memory by now, and giving that back would
        lose it.
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
