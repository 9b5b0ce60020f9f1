"""Who a client is and what it may do: the interfaces, and the built-in mechanisms.

It may import wire and config.
"""
