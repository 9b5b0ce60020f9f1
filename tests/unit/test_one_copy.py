"""A message that waits for many is held once."""

from broker.auth.acl import AllowAll
from broker.auth.authenticator import Anonymous
from broker.config.loader import Config
from broker.control.controller import Controller
from broker.reactor.pump import Pump
from broker.reactor.turn import Hub
from broker.wire.packets import Connect, Publish, Subscribe, encode, subscription
from broker.wire.reasons import CloseReason
from broker.worker.terms import terms
from router.router import Router
from router.sessions.ledger import Ledger
from tests.tools.leaks.footprint import malloc_bytes

NOW_MS = 1_000_000
SESSIONS = 50
PAYLOAD = b"x" * 100_000


def test_all_sessions_for_which_a_message_waits_hold_one_copy_of_it() -> None:
    router = Router(Ledger())
    controller = Controller(Config(), router, Anonymous(), AllowAll())
    hub = Hub(router, controller, Pump(router), now_ms=NOW_MS, **terms(Config()))

    def connect(name: str, clean: bool, data: bytes = b"") -> object:
        connection = hub.connect()
        connection.feed_bytes(encode(Connect(4, name.encode(), clean), 4) + data)
        hub.run_turn(NOW_MS)
        return connection

    for number in range(SESSIONS):
        away = connect(f"away-{number}", False, encode(Subscribe(1, (subscription(b"a", 1),)), 4))
        away.close(CloseReason.CONNECTION_LOST)  # type: ignore[attr-defined]
    hub.run_turn(NOW_MS)
    before = malloc_bytes()
    connect(
        "publisher",
        True,
        encode(Publish(b"a", PAYLOAD, 1, False, False, 1), 4)
        + encode(Publish(b"a", b"y" * len(PAYLOAD), 1, False, False, 2), 4),
    )
    hub.run_turn(NOW_MS)  # the second one is more than its publisher's share of the first turn
    assert router.ledger.queued_messages == 2 * SESSIONS
    assert malloc_bytes() - before < 5 * len(PAYLOAD)
    # The two are not confused.
    reader = connect("away-7", False)
    output = reader.take_output()  # type: ignore[attr-defined]
    assert (output.count(PAYLOAD), output.count(b"y" * len(PAYLOAD))) == (1, 1)
