"""Spark on the commit log: its messages as a table and a stream, the lake, questions about the fleet."""
