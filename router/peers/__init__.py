"""Other routers as receivers, and acknowledgements that wait for them.

It may import sessions and what is below them.
"""
