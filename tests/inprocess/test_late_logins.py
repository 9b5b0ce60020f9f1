"""Logins that are not decided on in time."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from broker.auth.hashing import Hashing
from broker.config.loader import Limits
from broker.wire.reasons import CloseReason, ConnectReturn, Reason
from tests.inprocess.test_password_files import HASH, SECRET, answer, serving, settings, written


@pytest.mark.parametrize(("version", "expected"), [(5, Reason.SERVER_BUSY), (4, ConnectReturn.SERVER_UNAVAILABLE)])
async def test_a_client_whose_login_waits_too_long_is_told_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: int, expected: int
) -> None:
    async def fits(*_: object) -> bool:
        await trio.sleep_forever()
        raise AssertionError

    monkeypatch.setattr(Hashing, "fits", fits)
    limits = Limits(connect_timeout_s=0.25, pending_connects_max=1)
    async with serving(settings(written(tmp_path, ann=HASH), limits=limits)) as broker:
        for count in (1, 2):  # the second waits until there is room
            assert await answer(broker, "ann", SECRET, version) == expected
            assert broker.controller.ends[CloseReason.AUTHENTICATION_TIMEOUT] == count
        assert not broker.controller.handshake.pending.connections
