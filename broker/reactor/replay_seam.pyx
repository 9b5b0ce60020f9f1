"""What a reactor, and the control packets, need of the replays of stored messages."""


cdef class ReplaySeam:
    """Abstract: broker.replay.engine.Replays is what there is. A worker without a log has none."""

    cdef bint waits(self) except -1:
        raise TypeError(f"{type(self).__name__} does not replay")

    cdef int run(self, bint busy) except -1:
        raise TypeError(f"{type(self).__name__} does not replay")

    cdef int take_up(self, Protocol connection) except -1:
        raise TypeError(f"{type(self).__name__} does not replay")

    def start(self, connection, subscription) -> None:
        """Begin with a ReplaySubscription of the connection's session, or begin anew if it has one of this name."""
        raise TypeError(f"{type(self).__name__} does not replay")

    def stop(self, session, topic_filter) -> None:
        """End a session's replay of this name, if it has one."""
        raise TypeError(f"{type(self).__name__} does not replay")

    def resume(self, connection) -> None:
        """A client is back: what its session replays goes on."""
        raise TypeError(f"{type(self).__name__} does not replay")

    def pause(self, session) -> None:
        """A client is gone: its session remembers how far it came."""
        raise TypeError(f"{type(self).__name__} does not replay")
