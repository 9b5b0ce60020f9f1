"""What a client may do: the seam that is asked about topics."""

from typing import Protocol


class Acl(Protocol):
    """Answers at once, without I/O. Answers for publishing are remembered per connection and topic name."""

    def may_publish(self, identity: object, topic_name: bytes) -> bool:
        """Return whether a client may publish to a topic name."""

    def may_subscribe(self, identity: object, topic_filter: bytes) -> bool:
        """Return whether a client may subscribe to a topic filter; a shared subscription's comes without $share."""


class AllowAll:
    """Everybody may do everything. The default: anonymous on loopback."""

    def may_publish(self, identity: object, topic_name: bytes) -> bool:
        """Return True."""
        return True

    def may_subscribe(self, identity: object, topic_filter: bytes) -> bool:
        """Return True."""
        return True
