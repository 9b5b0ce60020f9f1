"""What every test relies on: hypothesis profiles, and CI=true, under which nothing is skipped."""

import os
import signal
from collections.abc import Generator

import pytest
from hypothesis import HealthCheck, settings

# A shell that runs the tests in the background ignores SIGINT for them, and every program that they start and end by it
# would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)

# What a terminal once said of its size: programs whose output we read would wrap it.
for _of_a_terminal in ("COLUMNS", "LINES"):
    os.environ.pop(_of_a_terminal, None)

IN_CI = os.environ.get("CI") == "true"

settings.register_profile("default", max_examples=100, deadline=None)
settings.register_profile("long", max_examples=2000, deadline=None)
# Sanitizers and interpreters with PYTHONMALLOC=malloc are several times slower; breadth is the default profile's work.
settings.register_profile("checked", max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """With CI=true, count a skipped test as failed: there, every system package is installed."""
    report = yield
    if IN_CI and report.skipped and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
        report.longrepr = f"skipped, though CI=true: {report.longrepr}"
    return report
