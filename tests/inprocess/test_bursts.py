"""Many who come at once share turns: what a turn takes in, and whose hands it shakes, is bounded by work."""

from __future__ import annotations

import contextlib
import socket
import ssl
from collections.abc import Callable

from broker.config.listener import Listener
from broker.config.loader import Config, Limits
from broker.worker.worker import Worker
from tests.support.certificates import certificates

CLIENTS = 100
WORK = 30_000  # units of a turn: four handshakes, or some dozens who come


def worker_of(listener: Listener) -> Worker:
    """Return a worker that turns by hand, and does little in a turn."""
    worker = Worker(Config(listen=(), listener=(listener,), limits=Limits(pending_handshakes_max=10 * CLIENTS)))
    worker.listen()
    worker.reactor.bound_turns(work=WORK)
    worker.reactor.turn_once(False)
    return worker


def dialled(worker: Worker) -> list[socket.socket]:
    """Return clients that wait in the backlog."""
    port = worker.addresses[0].port
    return [socket.create_connection(("127.0.0.1", port)) for _ in range(CLIENTS)]


def in_turns(worker: Worker, counted: Callable[[], int], wanted: int) -> list[int]:
    """Turn until something has come to a count; returns by how much it grew in each turn."""
    grew, before = [], counted()
    while before < wanted:
        worker.reactor.turn_once(True)
        now = counted()
        grew.append(now - before)
        before = now
    return grew


def test_a_turn_takes_in_some_of_those_who_come_at_once() -> None:
    worker = worker_of(certificates().listener())
    clients = dialled(worker)
    grew = in_turns(worker, lambda: worker.reactor.connection_count, CLIENTS)
    assert 16 <= max(grew) <= 60, grew
    for client in clients:
        client.close()
    worker.close()


def test_a_turn_answers_some_of_those_who_shake_hands_at_once() -> None:
    worker = worker_of(certificates().listener())
    clients = dialled(worker)
    in_turns(worker, lambda: worker.reactor.connection_count, CLIENTS)
    for client in clients:
        to_client, from_client = ssl.MemoryBIO(), ssl.MemoryBIO()
        hands = certificates().client_context().wrap_bio(to_client, from_client, server_hostname="localhost")
        with contextlib.suppress(ssl.SSLWantReadError):
            hands.do_handshake()
        client.setblocking(False)
        client.sendall(from_client.read())

    def answered() -> int:
        count = 0
        for client in clients:
            with contextlib.suppress(BlockingIOError):
                count += len(client.recv(1, socket.MSG_PEEK))
        return count

    assert max(in_turns(worker, answered, CLIENTS)) <= WORK // 7000 + 1
    for client in clients:
        client.close()
    worker.close()
