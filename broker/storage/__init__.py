"""The data folder and the commit log of a worker, as files: locking, opening, reading ahead, backup.

It may import control and what is below it.
"""
