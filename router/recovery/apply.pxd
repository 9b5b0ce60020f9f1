"""Recovery: records of the commit log, fed to the router that they came from."""

from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from router.log.record_cursor cimport Cursor, MessageFields
from router.core.message cimport Message
from router.core.receiver cimport Receiver
from router.router cimport Router
from router.matching.route_cache cimport Route
from router.sessions.session cimport Session


cdef enum:
    RECENT = 1024                # sessions found without a name as a Python object

cdef struct Recent:
    void* session                # borrowed from the router


cdef class Recovery:
    cdef Router router
    cdef object make_will
    cdef int64_t now_us
    cdef int64_t now_ms
    cdef uint32_t worker
    cdef Message topic                   # borrows the topic of the record at hand
    cdef dict peers                      # number of its `peer` record -> Peer
    cdef list picks                      # (group name, client identifier) that stand before their accepted record
    cdef list copies                     # numbers of copies that stand there for picked peers, in the order of their picks
    cdef list skipped                    # sessions without room for it, likewise
    cdef list readers                    # client identifiers of those that may read it, though not all that matches
    cdef uint64_t decided_number         # of the newest record that those are of, or that was accepted after them
    cdef uint32_t decided_mark           # of its segment
    cdef Recent[RECENT] recent           # emptied when one ends
    cdef void* newest                    # of these, the one that was asked for last
    cdef Route route                     # of the topic that came last; None, or perhaps stale
    cdef readonly dict detached_us       # client identifier -> when its connection was gone, µs since 1970
    cdef readonly uint64_t last_number   # of the newest record that was fed
    cdef readonly uint64_t first_number  # of a snapshot: records before it are in there
    cdef readonly uint64_t fed
    cdef readonly list problems          # of records that mean nothing here; the first hundred
    cdef readonly uint64_t problem_count
    cdef readonly bint ended             # of a snapshot: it is whole
    cdef readonly bytes places           # of a snapshot: where its stored messages lie

    cdef int apply(self, Cursor cursor) except -1
    cdef int retain(self, Cursor cursor, MessageFields* fields) except -1
    cdef int on_accepted(self, Cursor cursor) except -1
    cdef int on_forwarded(self, Cursor cursor) except -1
    cdef int owe_peers(self, MessageFields* fields, uint64_t record, uint64_t size) except -1
    cdef int owe_copies(self, MessageFields* fields, uint64_t size) except -1
    cdef int keep_decisions(self, Cursor cursor) except -1
    cdef int forget_decisions(self) except -1
    cdef int owe_targets(self, MessageFields* fields, uint64_t record, uint64_t size) except -1
    cdef Session recent_session(self, const uint8_t* client_identifier, size_t length)
    cdef int on_acknowledged(self, const uint8_t* body, size_t length) except -1
    cdef int apply_rare(self, Cursor cursor) except -1
    cdef bint apply_to_router(self, Cursor cursor, str kind, dict fields) except -1
    cdef int begin_session(self, Session session, bytes client_identifier, uint32_t expiry_interval_s) except -1
    cdef bint apply_to_session(self, Cursor cursor, Session session, str kind, dict fields) except -1
    cdef bint apply_to_deliveries(self, Session session, str kind, dict fields) except -1
    cdef Session session_of(self, bytes client_identifier)
    cdef int forget(self, Session session) except -1
