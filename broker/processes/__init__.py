"""The processes of a node: supervisor, workers, snapshots and resharding, and how they talk to one another.

It may import every room but cli.
"""
