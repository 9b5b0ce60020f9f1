"""What is wanted here, summed up for peers, while sessions change and end."""

from __future__ import annotations

from mesh.interest import LINGER_MS, Interest, Wish
from router.router import Router
from router.sessions.ledger import Ledger


def test_a_session_that_is_to_end_with_its_connection_after_all_leaves_no_wish_behind() -> None:
    router = Router(Ledger())
    interest = router.interest = Interest()
    session, _ = router.open_session(b"c", False, 60)
    router.subscribe(session, b"t", 1)
    router.subscribe(session, b"$share/g/t", 2)
    assert interest.take(0) == [(b"t", Wish(1, True, 0)), (b"$share/g/t", Wish(2, True, 0))]
    # As its DISCONNECT says it, or an administrator.
    router.set_expiry_interval(session, 0)
    assert interest.take(0) == [(b"t", Wish(1, False, 0)), (b"$share/g/t", Wish(2, False, 0))]
    router.detach_session(session, False)
    assert interest.wish(b"t") is None
    # Who has no member of a group any more is not to be picked, or it would take what the members elsewhere could have.
    assert interest.take(1) == [(b"$share/g/t", None)]
    assert interest.take(1 + LINGER_MS) == [(b"t", None)]
