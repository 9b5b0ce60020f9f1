"""The `shoal` command: serve, pub, sub, log, backup, admin, top, and the client that they speak MQTT with.

It may import every other room; none imports it.
"""
