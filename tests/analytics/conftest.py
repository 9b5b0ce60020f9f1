"""One Spark session for all tests: it takes longer to start than they do."""

import os
from collections.abc import Iterator
from typing import Any

import pytest

# A Java that lives for a minute is not worth compiling for.
os.environ.setdefault("JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xshare:auto")

SETTINGS = {
    "spark.driver.memory": "512m",
    "spark.sql.shuffle.partitions": "1",
    "spark.default.parallelism": "1",
    "spark.sql.streaming.pollingDelay": "50ms",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",
    "spark.driver.maxResultSize": "1m",
}


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    from analytics.source.spark_session import session

    warehouse = str(tmp_path_factory.mktemp("warehouse"))
    made = session(master="local[1]", name="tests", settings={**SETTINGS, "spark.sql.warehouse.dir": warehouse})
    yield made
    made.stop()
