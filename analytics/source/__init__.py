"""Spark's data source: the commit log and live messages as tables.

It imports no other room.
"""
