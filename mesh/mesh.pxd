"""One router among others: its links, what it tells them and what they tell it."""

from libc.stdint cimport int64_t, uint8_t, uint64_t
from mesh.base_transport cimport Carrier, FrameHandler, Lane
from mesh.frames cimport FrameReader
from mesh.link cimport LinkOwner, PeerLink
from mesh.reactor_port cimport MeshSeam
from router.forwarding cimport Forwarding
from router.peers.peer cimport Peer
from router.router cimport Router


cdef class Neighbour:
    # A peer with all that belongs to it.
    cdef readonly bytes name             # node/worker
    cdef readonly Peer peer
    cdef readonly PeerLink link
    cdef int64_t there_ms                # when its link was up last
    cdef readonly Lane channel
    cdef readonly bytes identity         # name/incarnation of its newest process that was heard
    # What we want, as the peer knows it. Versions are mesh.interest.Interest's.
    cdef readonly uint64_t sent          # the version that frames which have left would bring it to; 0: it knows nothing
    cdef readonly uint64_t installed     # the version that it has confirmed
    cdef int64_t sent_ms                 # when the last of these frames left
    # What it wants, as far as we know it.
    cdef readonly uint64_t wants         # its version; 0: its first snapshot has not been heard
    cdef public set listed               # filters of the snapshot that is coming in; None while none is
    # What it says of itself.
    cdef readonly bytes counters         # what it counts, as its process that is there now said last; None: not said yet
    cdef readonly object reach           # how far its log can be read (router.log.segment_index.Reach); None: not said yet
    cdef readonly uint64_t answered      # up to which question of ours it has said that
    # What we say to it.
    cdef readonly bint follows           # it reads our log
    cdef readonly uint64_t asked         # its last question that was heard
    cdef object told                     # the reach that it was told last


cdef class Mesh(MeshSeam):
    cdef readonly Router router
    cdef readonly Forwarding forwarding
    cdef readonly Carrier transport
    cdef readonly bytes name             # ours, node/worker
    cdef readonly object interest        # mesh.interest.Interest
    cdef dict changed                    # its `changed`: looked at in every turn
    cdef readonly dict neighbours        # name -> Neighbour
    cdef dict processes                  # identity of the newest process of each that was heard -> Neighbour
    cdef list links                      # of these, PeerLink
    cdef bint has_more                   # what is wanted here has not been told whole
    cdef object wake                     # called when there is something for flush() to do outside of a turn
    cdef object log                      # info(event, **fields), warning(...)
    cdef public object log_reach         # returns how far our own log can be read; None: there is none
    cdef public object on_reach          # called with a Neighbour that said how far its log reaches, or fell silent
    cdef readonly bint following         # we read the peers' logs
    cdef readonly uint64_t question      # our last one
    cdef bint followed                   # some peer follows
    cdef bytes own_counters              # as they were gossiped last
    cdef int64_t gossiped_ms
    cdef uint64_t told_applied           # up to where our log was in the index, when a heartbeat said how far it was sent
    cdef int64_t told_ms                 # ... and when that was
    cdef object indexing                 # deque of (record, action): until the index of retained messages has it
    cdef object untold                   # deque of (offset, due ms, action): until our wishes up to there have been told
    cdef object waiting                  # deque of (version, due ms, action): until the peers have installed it
    cdef LinkOwner owner
    cdef FrameHandler inbox
    cdef FrameReader reader
    cdef int64_t interest_timeout_ms
    cdef int64_t absent_ms               # how long a peer may be away until it is forgotten
    cdef readonly uint64_t errors        # frames that were none
    cdef int heard(self, bytes identity, bint answer, const uint8_t* frame, size_t length) except -1
    cdef int tell_retained(self) except -1
    cdef Neighbour new_process(self, bytes identity)
    cdef int know(self, Neighbour neighbour, bytes identity) except -1
