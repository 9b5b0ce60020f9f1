"""What every test relies on: hypothesis profiles, and CI=true, under which nothing is skipped."""

import os
import signal
from collections.abc import Generator
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

# A shell that runs the tests in the background ignores SIGINT for them, and every program that they start and end by it
# would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)

# What a terminal once said of its size: programs whose output we read would wrap it.
for _of_a_terminal in ("COLUMNS", "LINES"):
    os.environ.pop(_of_a_terminal, None)

IN_CI = os.environ.get("CI") == "true"

# No test fails for the time that it takes: the machine may be busy with others.
ANY_TIME: dict[str, Any] = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("default", max_examples=100, **ANY_TIME)
settings.register_profile("long", max_examples=2000, **ANY_TIME)
# Sanitizers and interpreters with PYTHONMALLOC=malloc are several times slower; breadth is the default profile's work.
settings.register_profile("checked", max_examples=30, **ANY_TIME)
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


# Tests that share what is costly to make: beginnings of their names -> whoever runs them all. pytest-xdist 3.8 tells
# groups by a suffix of names, which pytest 9.2 makes anew from elsewhere, so its own marks mean nothing there.
TOGETHER = {
    "tests/analytics/test_decoding.py": "spark",
    "tests/analytics/test_jobs.py": "spark",
    "tests/analytics/test_lake": "spark",
    "tests/analytics/test_network.py": "spark",
    "tests/analytics/test_source.py": "spark",
    "tests/packaging/": "packaging",
}


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Return what gives tests to processes, one by one, but for those of a group."""
    if config.getvalue("dist") != "loadgroup":
        return None
    from xdist.scheduler import LoadScopeScheduling

    class Groups(LoadScopeScheduling):
        """Knows a test's group by its name."""

        def _split_scope(self, nodeid: str) -> str:
            return next((group for start, group in TOGETHER.items() if nodeid.startswith(start)), nodeid)

    return Groups(config, log)
