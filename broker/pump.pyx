"""The one place where effects become actions, in one order: append, tell, settle.

What rests on no record never comes here: it left during the turn. Without a log nothing rests on a record.
"""

cimport cython


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
    """Drives a router's effects. `log` and `mesh` are seams: what is None is left out, and costs nothing."""

    def __init__(self, Router router not None, log=None, durability=None, mesh=None):
        self.router = router
        self.log = log
        self.mesh = mesh
        self.durability = durability if durability is not None or log is None else Durability(log)
        router.recording = log is not None

    cdef int run(self) except -1:
        if not self.router.recording:
            return 0
        records = self.router.effects.records
        if records:
            self.router.effects.records = []
            self.log.append(records)
            if self.mesh is not None:
                self.mesh.tell(records)
        return self.router.effects.settle(self.durability.durable())
