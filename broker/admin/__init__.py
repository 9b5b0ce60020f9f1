"""The admin socket: HTTP, the answers of one worker, and how those of several become one.

It may import telemetry and what is below it.
"""
