"""MQTT on the wire: packets, properties, reason codes and what encodes and decodes them.

It may import config.
"""
