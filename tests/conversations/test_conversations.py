"""Every conversation in tests/conversations, under everything that may lie between a client and the router."""

import os
from pathlib import Path
from typing import Any

import pytest

from tests.support.conversation import run_in_memory, run_over_sockets, run_over_workers
from tests.support.script import VERSIONS, Script, load

SCRIPTS = [load(path) for path in sorted(Path(__file__).parent.glob("*.txt"))]
CASES = [
    pytest.param(script, VERSIONS[version], id=f"{script.path.stem}-{version}")
    for script in SCRIPTS
    for version in script.versions
]
SOCKET_CASES = [case for case in CASES if not case.values[0].needs_time]

# Over several workers these go another way: limits are of what each knows of the others (retained_max), only publishers
# on the subscriber's worker are pushed back, a worker that was picked for a shared subscription picks among its own
# members, and what comes through one is sent by itself.
OF_ONE_WORKER = {"overlapping_shared", "queue_push_back_room", "retained_max", "shared_too_large"}
# The others are in `make test-workers`.
OF_SEVERAL_WORKERS = {
    "acknowledgements",
    "behind_connect",
    "client_identifiers",
    "connections_max",
    "empty_identifier",
    "no_matching_subscribers",
    "order",
    "overlapping",
    "queue_max",
    "reauthentication",
    "receive_maximum",
    "redelivery",
    "retain_options",
    "retained",
    "retained_changed",
    "server_reference_full",
    "session",
    "shared",
    "shared_reconnect",
    "subscribe_again",
    "subscription_options",
    "sys_publish",
    "takeover",
    "topic_alias",
    "unsubscribe",
    "will_acl",
    "will_takeover",
    "wills",
}
WORKERS_CASES = [
    case
    for case in SOCKET_CASES
    if case.values[0].path.stem not in OF_ONE_WORKER
    and (
        os.environ.get("SHOAL_TEST_WORKERS") == "all"
        or (case.values[0].path.stem in OF_SEVERAL_WORKERS and case.values[1] == 5)
    )
]

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
    "tls": {"over": "tls"},
    "tls_cut_and_logged": {"over": "tls_cut", "logged": True},
    "websocket": {"over": "ws"},
    "websocket_cut_slow_and_logged": {"over": "ws", "piecewise": True, "slow": True, "logged": True},
    "websocket_over_tls": {"over": "wss"},
    "websocket_over_tls_cut": {"over": "wss_cut"},
}
# Queues count the bytes of the broker's names, which are longer than what the script says.
OF_BYTES = {"queue_drop_oldest"}
# No user name and password fit into its packets.
OF_FEW_BYTES = {"packet_size_least"}


@pytest.mark.parametrize("conditions", IN_MEMORY.values(), ids=IN_MEMORY.keys())
@pytest.mark.parametrize(("script", "version"), CASES)
async def test_a_conversation_goes_as_written(script: Script, version: int, conditions: dict[str, bool]) -> None:
    await run_in_memory(script, version, **conditions)


@pytest.mark.parametrize("conditions", [{}, {"logged": True, "indexed": True}], ids=["plain", "logged_and_indexed"])
@pytest.mark.parametrize(
    ("script", "version"), [case for case in CASES if case.values[0].path.stem not in OF_FEW_BYTES]
)
async def test_a_conversation_goes_as_written_with_a_password_file_and_an_acl(
    script: Script, version: int, conditions: dict[str, bool]
) -> None:
    await run_in_memory(script, version, chained=True, **conditions)


@pytest.mark.parametrize("conditions", OVER_SOCKETS.values(), ids=OVER_SOCKETS.keys())
@pytest.mark.parametrize(("script", "version"), SOCKET_CASES)
async def test_a_conversation_goes_as_written_over_sockets(
    script: Script, version: int, conditions: dict[str, Any]
) -> None:
    # Proves: [MQTT-4.2.0-1] [MQTT3-7.1.1-1] [MQTT-6.0.0-2]
    await run_over_sockets(script, version, **conditions)


@pytest.mark.parametrize("conditions", [{}, {"logged": True, "indexed": True}], ids=["plain", "logged_and_indexed"])
@pytest.mark.parametrize(("script", "version"), [case for case in CASES if case.values[0].path.stem not in OF_BYTES])
async def test_a_conversation_goes_as_written_under_a_mount_point(
    script: Script, version: int, conditions: dict[str, bool]
) -> None:
    await run_in_memory(script, version, over="tcp@plant/two/", **conditions)


@pytest.mark.parametrize("over", ["tcp@plant/", "tls_cut@plant/"])
@pytest.mark.parametrize(
    ("script", "version"), [case for case in SOCKET_CASES if case.values[0].path.stem not in OF_BYTES]
)
async def test_a_conversation_goes_as_written_under_a_mount_point_over_sockets(
    script: Script, version: int, over: str
) -> None:
    await run_over_sockets(script, version, over=over)


@pytest.mark.parametrize(("script", "version"), WORKERS_CASES)
async def test_a_conversation_goes_as_written_over_several_workers(script: Script, version: int) -> None:
    await run_over_workers(script, version, 3)


@pytest.mark.parametrize("over", ["tls", "ws", "wss", "tcp@plant/", "wss@plant/"])
@pytest.mark.parametrize(("script", "version"), WORKERS_CASES)
async def test_a_conversation_goes_as_written_through_a_worker_that_speaks_for_another(
    script: Script, version: int, over: str
) -> None:
    await run_over_workers(script, version, 3, over=over)
