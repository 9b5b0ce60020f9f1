"""Changes of retained messages that are written to LMDB together."""


class ChangeTable:
    """Changes that are written together, the newest per topic."""

    __slots__ = ("changes", "count", "incarnation", "keys", "last", "size", "written")

    def __init__(self) -> None:
        self.changes: dict[bytes, bytes] = {}  # key to value, which may be a tombstone
        self.keys: list[bytes] = []  # of changes, in the order in which they came first
        self.count = 0  # by how much they change the number of messages
        self.size = 0  # and their size in bytes
        self.last = 0  # number of the newest record that is in here, or was passed over; 0: none
        self.incarnation = 0  # of the process that gave it, or found it to be the last one
        self.written = 0  # so many of keys are in LMDB already

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing that LMDB is to learn."""
        return not self.keys and not self.last
