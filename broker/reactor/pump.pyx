"""The one place where effects become actions, in one order: tell, append, settle.

What rests on no record never comes here: it left during the turn. Without a log nothing rests on a record.
"""

cimport cython
from router.log.record_buffer cimport RecordBuffer


cdef extern from "<sched.h>" nogil:
    int sched_yield()


cdef enum:
    SETTLE_MAX = 16384               # effects that leave in a turn: some 3 ms


class Durability:
    """The condition that settling waits for: our own log is synced, and so are `required` of the followers.

    Args:
        log: has `durable`, the number of the newest record that survives a crash here.
        followers: each has `durable`, the number of the newest record that it has acknowledged.
        required: how many followers must have acknowledged; 0 to len(followers).
    """

    def __init__(self, log, followers=(), required: int = 0):
        assert 0 <= required <= len(followers), required
        self.log = log
        self.followers = list(followers)
        self.required = required

    def durable(self) -> int:
        """Return the number of the newest record that meets the condition."""
        if self.required == 0:
            return self.log.durable
        acknowledged = sorted((follower.durable for follower in self.followers), reverse=True)
        return min(self.log.durable, acknowledged[self.required - 1])


@cython.final
cdef class Pump:
    """Drives a router's effects. `log` and `mesh` are seams: what is None is left out, and costs nothing.

    Args:
        log: takes records (`append`), says which of them survive a crash (`durable`) and whether it takes more
            (`accepting`), and gives messages back (`fetch`): router.log.log_writer.Log; None: nothing is recorded.
        durability: when effects may leave; None: when the log is durable.
        mesh: is told all records, in order, before the log takes them: `tell(records)` copies what it is to keep.
    """

    def __init__(self, Router router not None, log=None, durability=None, mesh=None):
        self.router = router
        self.log = log
        self.mesh = mesh
        self.durability = durability if durability is not None or log is None else Durability(log)
        if log is not None:
            router.ledger.bodies = log
            router.record_into(RecordBuffer(log.appended))

    cdef bint run(self) except -1:
        if not self.router.recording:
            return False
        cdef RecordBuffer records = self.router.ledger.records
        if not self.router.indexing.empty():
            self.router.indexing.acknowledged(self.router.retaining.index.applied)
        if records.count == 0 and self.durable == records.last_number and self.router.accepting:
            if len(self.router.effects) == 0 and not self.router.ledger.starved:
                return False
        if records.count:
            self.append(records)
        self.router.accepting = self.log.accepting
        self.durable = self.durability.durable()
        if self.durable < records.last_number:
            with nogil:
                sched_yield()                # a turn under load never blocks, and the log's thread needs the GIL
        self.more = self.router.settle(self.durable, SETTLE_MAX) == SETTLE_MAX
        if records.count:
            self.append(records)             # what settling has decided rests on no turn to come
        return True

    cdef int append(self, RecordBuffer records) except -1:
        """Tell and append; the log takes the records out of the buffer, so followers are told first."""
        if self.mesh is not None:
            self.mesh.tell(records)
        self.log.append(records)
        return 0
