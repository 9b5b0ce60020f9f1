"""One Spark session for all tests: it takes longer to start than they do."""

from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("pyarrow")

SETTINGS = {
    "spark.driver.memory": "512m",
    "spark.sql.shuffle.partitions": "1",
    "spark.default.parallelism": "1",
    "spark.sql.streaming.pollingDelay": "10ms",
}


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    from analytics.session import session

    made = session(master="local[1]", name="tests", settings=SETTINGS)
    yield made
    made.stop()
