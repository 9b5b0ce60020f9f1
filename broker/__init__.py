"""Processes, sockets and MQTT on the wire."""
