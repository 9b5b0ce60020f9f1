"""One worker put together: its parts, its place among the others, the handover of clients to their homes.

It may import every room but processes and cli.
"""
