"""What tests.analytics.cluster submits: it counts a data folder, puts it into a lake, and says where that happened."""

import json
import sys


def main() -> None:
    from analytics.lake.lake import Lake, Plan, read_lake
    from analytics.source.spark_session import session

    data, folder = sys.argv[1:]
    spark = session(name="cluster job")

    def where(rows: object) -> list[tuple[int, str, str]]:
        import os

        import analytics

        return [(os.getppid(), os.getcwd(), str(analytics.__file__))]

    places = spark.sparkContext.parallelize(range(8), 8).mapPartitions(where).collect()
    count = spark.read.format("shoal").load(data).count()
    query = Lake(spark, Plan(data, f"{folder}/lake", messages_max=4_000)).start()
    query.awaitTermination()
    with open(f"{folder}/result.json", "w", encoding="utf-8") as file:
        json.dump({"count": count, "lake": read_lake(spark, f"{folder}/lake").count(), "places": places}, file)
    spark.stop()


main()
