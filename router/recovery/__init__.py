"""From a log's records back to the router's state, and to a snapshot of it.

It may import everything of the router's.
"""
