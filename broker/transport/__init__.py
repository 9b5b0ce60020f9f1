"""What stands between a client's socket and the protocol: layers that bytes go through, both ways.

It may import `broker.wire` and what is below it; it knows no connection, no turn and no session.
"""
