"""Counters, and what the broker says of itself under $SYS.

It may import admin, storage and what is below them.
"""
