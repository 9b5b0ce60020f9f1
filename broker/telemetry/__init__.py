"""Counters, and what the broker says of itself under $SYS.

It may import control and what is below it.
"""
