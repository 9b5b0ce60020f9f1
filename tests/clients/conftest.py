"""One broker for all tests with real clients, and the clients of each test."""

from __future__ import annotations

import itertools
import os

import pytest

from tests.clients.drivers import MODULES, MissingError, load
from tests.support.process import BrokerProcess

_numbers = itertools.count(1)


# With one worker, too: `make test-workers`.
COUNTS = {"one_worker": 1, "three_workers": 3}
if os.environ.get("SHOAL_TEST_WORKERS") != "all":
    del COUNTS["one_worker"]


@pytest.fixture(scope="session", params=COUNTS.values(), ids=COUNTS.keys())
def broker_port(request, tmp_path_factory):
    """The port of a running broker: ours, or the one that SHOAL_TEST_BROKER names the port of, on this machine."""
    elsewhere = os.environ.get("SHOAL_TEST_BROKER")
    if elsewhere is not None:
        yield int(elsewhere)
        return
    with BrokerProcess(tmp_path_factory.mktemp("broker"), "--workers", str(request.param)) as broker:
        yield broker.port


@pytest.fixture
def unique():
    """A name that no other test uses, for topics and client identifiers."""
    return f"test{next(_numbers)}"


@pytest.fixture(params=MODULES, ids=lambda module: module.removesuffix("_driver"))
def driver(request):
    """Each client library's driver in turn; one that is not installed is named and skipped, except in CI."""
    return found(request.param)


@pytest.fixture(params=[4, 5], ids=["3.1.1", "5.0"])
def version(request):
    return request.param


def found(module):
    try:
        return load(module)
    except MissingError as error:
        if os.environ.get("CI") == "true":
            pytest.fail(f"missing: {error}")
        pytest.skip(f"missing: {error}")


@pytest.fixture
def new_client(broker_port, driver, version, unique):
    """Make a connected client of the driver under test; it is closed when the test ends."""
    clients = []

    def make(name="client", port=None, **arguments):
        client = driver(port or broker_port, version)
        clients.append(client)
        client.session_present = client.connect(f"{unique}-{name}", **arguments)
        return client

    yield make
    for client in clients:
        client.close()
