"""Control packets and what lasts longer than a turn: CONNECT, SUBSCRIBE, wills, retained backlog, in-process clients.

It may import reactor and what is below it.
"""
