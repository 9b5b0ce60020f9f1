"""What a topic's receivers are: read off the topic filters that match it, one match at a time."""

from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from router.core.receiver cimport Entry, Receiver
from router.core.rights cimport Rights
from router.matching.archive_filters cimport ArchiveFilters
from router.matching.filter_trie cimport FilterTree
from router.matching.route_cache cimport Route, Target

cdef enum:
    NOT_FOUND = 0xFFFFFFFF       # no such entry
    LEVEL_SLOTS = 1024

cdef struct Match:
    uint32_t target_count
    uint32_t group_count
    uint32_t ids_length          # of all encoded identifiers


# Where in receiver.entries its subscription to a node or group lies, or NOT_FOUND; reads the shorter side.
cdef uint32_t position(Receiver receiver, void* partner, Entry* others, uint32_t count) noexcept


cdef class RouteReader:
    # A route was read before both of its generations were counted on: then it is stale.
    cdef uint32_t generation_all
    cdef uint32_t[LEVEL_SLOTS] generation_level
    cdef FilterTree filters
    cdef ArchiveFilters archive  # None: nothing is archived
    cdef Rights rights           # None: nobody is asked, and NARROWED says nothing
    # Scratch of one match, grown and never shrunk.
    cdef uint32_t stamp
    cdef Target* found
    cdef uint32_t found_capacity

    cdef int fill(self, Route route, uint64_t hash, const uint8_t* topic, uint16_t topic_length) except -1
    cdef int target_for(self, const uint8_t* topic, uint16_t topic_length, Receiver receiver, bint skip_no_local,
                        Target* target) except -1    # 1 and fills target (caller frees ids), or 0: nothing matches

    cdef int find_targets(self, Match* match) except -1
    cdef int leave_out(self, Match* match, const uint8_t* topic, uint16_t topic_length) noexcept
    cdef int reserve_found(self, uint32_t count) except -1
    cdef int lay_out(self, Route route, const Match* match, const uint8_t* topic, uint16_t topic_length) except -1
    cdef int write_groups(self, Route route) noexcept
    cdef int write_identifiers(self, Route route, uint8_t* ids) noexcept
    cdef int note_generations(self, Route route) noexcept
