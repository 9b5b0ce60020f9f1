"""From Spark to a broker and back, over MQTT."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from broker.cli.main import main
from tests.support.log_folders import write_messages
from tests.support.process import BrokerProcess

pytest.importorskip("pyspark")

from analytics.source.mqtt_client import Client, NetworkError

USERS = {"SHOAL_ARCHIVE__TOPIC_FILTERS": "#"}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("broker"), environment=USERS) as running:
        yield running


def url_of(broker: BrokerProcess) -> str:
    return f"tcp://127.0.0.1:{broker.port}"


def replayed(broker: BrokerProcess, topic_filter: str) -> list[Any]:
    with Client(url_of(broker)) as client:
        client.subscribe(f"$replay/-1h/{topic_filter}")
        return list(client.messages(1.0))


def test_rows_are_published_with_their_properties_and_read_back_over_the_network(
    spark: Any, broker: BrokerProcess, tmp_path: Path
) -> None:
    rows = spark.createDataFrame(
        [("sink/a", b"1", "text/plain", {"k": "v"}, 100), ("sink/b", b"\xff", None, None, None)],
        "topic string, payload binary, content_type string, user_properties map<string,string>, expiry_s int",
    )
    rows.write.format("shoal").option("url", url_of(broker)).mode("append").save()
    found = spark.read.format("shoal").option("url", url_of(broker)).option("topicFilter", "sink/#").load().collect()
    one, two = sorted(found, key=lambda row: str(row.topic))
    assert (one.topic, bytes(one.payload), one.content_type, one.qos) == ("sink/a", b"1", "text/plain", 1)
    assert [tuple(pair) for pair in one.user_properties] == [("k", "v")]
    assert 0 < one.expiry_s <= 100
    assert (two.topic, bytes(two.payload), two.content_type, two.user_properties) == ("sink/b", b"\xff", None, [])


def test_a_stream_that_is_published_again_after_a_stop_has_the_same_name_for_a_row(
    spark: Any, broker: BrokerProcess, tmp_path: Path
) -> None:
    data, checkpoint = tmp_path / "data", tmp_path / "checkpoint"
    write_messages(data, *((number, f"from/{number % 2}", b"%d" % number) for number in range(6)))

    def run() -> None:
        stream = spark.readStream.format("shoal").option("maxMessagesPerTrigger", "4").load(str(data))
        query = (
            stream.selectExpr("concat('published/', topic) as topic", "payload", "qos").writeStream.format("shoal")
            .option("url", url_of(broker)).option("rowIds", "true").trigger(availableNow=True)
            .option("checkpointLocation", str(checkpoint)).start()
        )  # fmt: skip
        query.awaitTermination()

    run()
    assert sorted(path.name for path in (checkpoint / "commits").glob("[0-9]*")) == ["0", "1"]
    # As if Spark had been killed when a batch was published, and before it noted that.
    for name in ("1", ".1.crc"):
        (checkpoint / "commits" / name).unlink()
    write_messages(data, (6, "from/0", b"6"))
    run()
    published = spark.read.format("shoal").option("url", url_of(broker)).option("topicFilter", "published/#").load()
    rows = published.selectExpr("payload", "filter(user_properties, each -> each.name = 'shoal-row')[0].value as row")
    once = rows.dropDuplicates(["row"])
    assert sorted(int(bytes(row.payload)) for row in rows.collect()) == [0, 1, 2, 3, 4, 4, 5, 5, 6]
    assert sorted(int(bytes(row.payload)) for row in once.collect()) == [*range(7)]


def test_a_stream_over_the_network_gives_each_message_once_over_a_restart(
    spark: Any, broker: BrokerProcess, tmp_path: Path
) -> None:
    def publish(first: int, count: int) -> None:
        with Client(url_of(broker)) as client:
            for number in range(first, first + count):
                client.publish("live/x", b"%d" % number)
            client.flush()

    def run() -> None:
        stream = spark.readStream.format("shoal").option("url", url_of(broker)).option("topicFilter", "live/#")
        query = (
            stream.option("maxMessagesPerTrigger", "40").load().select("payload").writeStream.format("parquet")
            .option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True)
            .start(str(tmp_path / "out"))
        )  # fmt: skip
        query.awaitTermination()

    publish(0, 60)
    run()
    publish(60, 5)
    run()
    rows = spark.read.parquet(str(tmp_path / "out")).collect()
    assert sorted(int(bytes(row.payload)) for row in rows) == [*range(65)]


def test_replay_publishes_a_stretch_of_the_log_again(broker: BrokerProcess, tmp_path: Path) -> None:
    from analytics.source.mqtt_client import publish_properties

    with Client(url_of(broker)) as client:
        for number in range(20):
            properties = publish_properties({"user_properties": [("number", str(number))]})
            client.publish(f"first/{number % 2}", b"%d" % number, number % 3, properties=properties)
        client.flush()
    result = CliRunner().invoke(main, [
        "replay", url_of(broker), "--data-dir", str(broker.folder / "data"), "--topic-filter", "first/1",
        "--speed", "0",
        "--topic-prefix", "again/",
    ])  # fmt: skip
    assert result.exit_code == 0, result.output
    assert result.output.startswith("10 messages in ")
    again = replayed(broker, "again/#")
    assert [message.payload for message in again] == [b"%d" % number for number in range(1, 20, 2)]
    assert [message.user_properties[-1] for message in again] == [("number", str(number)) for number in range(1, 20, 2)]


def test_what_goes_wrong_on_the_network_is_a_sentence(broker: BrokerProcess) -> None:
    with pytest.raises(NetworkError, match=r"'http://x' is no address of a broker"):
        Client("http://x")
    with pytest.raises(NetworkError, match=r"tcp://127.0.0.1:1 cannot be reached"):
        Client("tcp://127.0.0.1:1")
    with (
        Client(url_of(broker)) as client,
        pytest.raises(NetworkError, match=r"refuses a subscription to '\$replay/x/#'"),
    ):
        client.subscribe("$replay/x/#")
    result = CliRunner().invoke(main, ["replay", "tcp://127.0.0.1:1", "--data-dir", str(broker.folder / "data")])
    assert result.exit_code == 1
    assert result.output.startswith("shoal: tcp://127.0.0.1:1 cannot be reached")


def test_deliveries_and_events_tell_when_what_a_session_was_owed_was_acknowledged(
    spark: Any, broker: BrokerProcess
) -> None:
    with (
        Client(url_of(broker), client_identifier="owed", session_expiry_s=600) as owed,
        Client(url_of(broker), client_identifier="sender") as sender,
    ):
        owed.subscribe("owed/#", 1)
        for number in range(5):
            sender.publish("owed/x", b"%d" % number)
        sender.flush()
        taken = []
        for message in owed.messages(1.0):
            taken.append(message)
            owed.acknowledge([message])
        assert len(taken) == 5
    read = spark.read.format("shoal")
    table = read.option("table", "deliveries").load(str(broker.folder / "data")).where("client = 'owed'").collect()
    assert len({row.record for row in table}) == len(table) == 5
    assert all(row.latency_us >= 0 and row.time > row.accepted for row in table)
    events = spark.read.format("shoal").option("table", "events").load(str(broker.folder / "data"))
    told = [(row.kind, row.topic_filter) for row in events.where("client = 'owed'").orderBy("number").collect()]
    assert told == [("session", None), ("subscribe", "owed/#"), ("detached", None)]


def test_a_micro_batch_over_the_network_is_the_same_when_it_is_read_again(tmp_path: Path) -> None:
    from analytics.source.network_reader import NETWORK, NetworkStreamReader
    from analytics.source.options import parse_options

    with BrokerProcess(tmp_path, "--workers", "2", environment=USERS) as broker:

        def publish(first: int, count: int) -> None:
            for name in range(3):
                with Client(url_of(broker), client_identifier=f"publisher-{name}") as client:
                    for number in range(first + name, first + count, 3):
                        client.publish("live/x" if number % 2 else "other", b"%d" % number)
                    client.flush()

        options = parse_options({"url": url_of(broker), "topicFilter": "live/#", "maxMessagesPerTrigger": "25"})

        def read_on(offset: Any) -> tuple[Any, list[int]]:
            reader = NetworkStreamReader(options, NETWORK)
            reader.prepareForTriggerAvailableNow()
            found: list[int] = []
            while (ahead := reader.latestOffset(offset, reader.getDefaultReadLimit())) != offset:
                assert ahead["messages"] - offset["messages"] <= 25
                for part in reader.partitions(offset, ahead):
                    rows = [int(row[4]) for row in reader.read(part)]
                    assert [int(row[4]) for row in reader.read(part)] == rows  # 4: payload
                    found += rows
                offset = ahead
            return offset, found

        publish(0, 120)
        offset, found = read_on(NetworkStreamReader(options, NETWORK).initialOffset())
        assert sorted(found) == [*range(1, 120, 2)]
        publish(120, 30)
        assert sorted(read_on(offset)[1]) == [*range(121, 150, 2)]
