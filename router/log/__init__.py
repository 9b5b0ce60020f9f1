"""The commit log: records, segments, reading, writing, checking.

It may import matching and core.
"""
