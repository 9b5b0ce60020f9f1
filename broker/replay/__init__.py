"""Replays of stored messages to subscribers of $replay.

It may import storage, control and what is below them.
"""
