"""The epoll loop: sockets, connections, one turn after the other, and trio as its guest.

It may import wire, auth and config.
"""
