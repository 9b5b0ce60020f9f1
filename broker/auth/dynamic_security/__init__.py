"""Clients, groups and roles that are changed while the broker runs, as mosquitto's dynamic security plugin has them.

`commands` says what a command answers and changes, `decisions` what a client may do, `start_file` reads mosquitto's
dynamic-security.json: none of them waits, reads a clock or a socket, or knows who else there is.

It may import the rest of auth.
"""
