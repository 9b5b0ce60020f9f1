"""Topic names and topic filters: validation, the subscription tree, routes and shared groups.

It may import core.
"""
