"""Retained messages: in memory, or in an LMDB index beside the log.

It may import peers, sessions and what is below them.
"""
