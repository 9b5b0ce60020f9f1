"""Questions asked of the log or a lake, and the page of answers.

It may import source and lake.
"""
