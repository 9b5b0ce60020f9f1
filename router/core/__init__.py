"""A message, and what may receive one.

It imports nothing of the router's.
"""
