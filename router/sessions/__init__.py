"""What a session is owed: queues, packet identifiers, policies for what has no room.

It may import log, matching and core.
"""
