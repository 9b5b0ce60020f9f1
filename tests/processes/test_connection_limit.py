"""`limits.connections_max` with several workers."""

from __future__ import annotations

from pathlib import Path

from broker.packets import Disconnect
from broker.reasons import Reason
from tests.support.raw_client import RawClient, wait_until
from tests.support.workers import Workers


def test_all_workers_together_have_no_more_connections_than_the_limit(tmp_path: Path) -> None:
    with Workers(tmp_path, SHOAL_LIMITS__CONNECTIONS_MAX="8") as broker:
        kept: list[RawClient] = []
        for home, share in enumerate((3, 3, 2)):
            names = broker.names(home, 5)
            for number, name in enumerate(names):
                client = RawClient(broker.port)
                reason = client.connect(name).reason
                assert reason == (Reason.SUCCESS if number < share else Reason.QUOTA_EXCEEDED), (home, number)
                if reason:
                    client.socket.close()
                else:
                    kept.append(client)
            # Who takes over his own connection takes its place.
            again = RawClient(broker.port)
            assert again.connect(names[0]).reason == Reason.SUCCESS
            assert kept[-share].read() == Disconnect(Reason.SESSION_TAKEN_OVER)
            kept[-share].socket.close()
            kept[-share] = again
        assert len(kept) == 8
        kept[0].socket.close()

        def is_let_in() -> bool:
            with RawClient(broker.port) as client:
                return client.connect(broker.names(0, 5)[-1]).reason == Reason.SUCCESS

        wait_until(is_let_in, "a place that is free is not given to anybody")
        for client in kept[1:]:
            client.socket.close()
