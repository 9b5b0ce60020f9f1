"""Every conversation in tests/conversations, under everything that may lie between a client and the router."""

from pathlib import Path

import pytest

from tests.support.conversation import VERSIONS, Script, load, run_in_memory, run_over_sockets

SCRIPTS = [load(path) for path in sorted(Path(__file__).with_name("conversations").glob("*.txt"))]
CASES = [pytest.param(script, VERSIONS[version], id=f"{script.path.stem}-{version}")
         for script in SCRIPTS for version in script.versions]
SOCKET_CASES = [case for case in CASES if not case.values[0].needs_time]

IN_MEMORY = {
    "whole": {},
    "cut_at_every_byte": {"piecewise": True},
    "slow_authenticator": {"slow": True},
    "log": {"logged": True},
    "follower": {"followed": True},
    "index": {"indexed": True},
    "all": {"piecewise": True, "slow": True, "followed": True, "indexed": True},
}
OVER_SOCKETS = {
    "plain": {},
    "filter": {"filtered": True},
    "cut_slow_and_logged": {"piecewise": True, "slow": True, "logged": True},
}


@pytest.mark.parametrize("conditions", IN_MEMORY.values(), ids=IN_MEMORY.keys())
@pytest.mark.parametrize(("script", "version"), CASES)
async def test_a_conversation_goes_as_written(script: Script, version: int, conditions: dict[str, bool]) -> None:
    await run_in_memory(script, version, **conditions)


@pytest.mark.parametrize("conditions", OVER_SOCKETS.values(), ids=OVER_SOCKETS.keys())
@pytest.mark.parametrize(("script", "version"), SOCKET_CASES)
async def test_a_conversation_goes_as_written_over_sockets(
        script: Script, version: int, conditions: dict[str, bool]) -> None:
    # Proves: [MQTT-4.2.0-1] [MQTT3-7.1.1-1]
    await run_over_sockets(script, version, **conditions)
