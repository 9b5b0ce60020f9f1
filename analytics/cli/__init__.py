"""The commands `shoal lake`, `shoal analyze` and the demo.

It may import every other room.
"""
