"""`python -m tests.support.no_broker PORT` accepts all connections, and does nothing for them but to say CONNACK.

An attack on it costs a machine all that an attack on a broker costs, but for what the broker does.
"""

from __future__ import annotations

import argparse
from functools import partial

import trio

CONNACK = b"\x20\2\0\0"


async def answer(client: trio.SocketStream) -> None:
    """Answer what comes first, take what follows, and hang up when the client does."""
    try:
        if await client.receive_some():
            await client.send_all(CONNACK)
        while await client.receive_some():
            pass
    except trio.BrokenResourceError:
        pass  # it did not wait for that


async def serve(port: int) -> None:
    """Accept until the process is ended; "ready" is printed when that begins."""
    async with trio.open_nursery() as nursery:
        await nursery.start(partial(trio.serve_tcp, answer, port, host="127.0.0.1"))
        print("ready", flush=True)


def main() -> None:
    """Read the argument and accept."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("port", type=int)
    trio.run(serve, parser.parse_args().port)


if __name__ == "__main__":
    main()
