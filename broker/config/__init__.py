"""Settings: what they are, where each value comes from, and what the machine has.

It imports no other room.
"""
