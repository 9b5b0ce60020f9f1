"""Files that are not of this machine, by what Spark reaches them with: HDFS, an object store."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

from analytics.lake.file_store import Entry, Files

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class HadoopFiles(Files):
    """What is below one folder of a file system that Hadoop knows.

    Args:
        spark: whose settings say how to get there.
        root: of any kind that Spark can write to.

    Errors of the file system are Py4JJavaError.
    """

    def __init__(self, spark: SparkSession, root: str) -> None:
        context: Any = spark.sparkContext
        self._hadoop = context._jvm.org.apache.hadoop
        self._io = context._jvm.org.apache.commons.io.IOUtils
        self._root = self._hadoop.fs.Path(root)
        self._system = self._root.getFileSystem(context._jsc.hadoopConfiguration())
        qualified = self._system.makeQualified(self._root)
        self.root = qualified.toString()
        # Where it is a folder of this machine, which LocalFiles does better.
        self.local_path: str | None = qualified.toUri().getPath() if self._system.getScheme() == "file" else None

    def _path(self, name: str) -> Any:
        return self._hadoop.fs.Path(self._root, name) if name else self._root

    def entries(self, folder: str) -> list[Entry]:
        path = self._path(folder)
        if not self._system.exists(path):
            return []
        found = [
            Entry(each.getPath().getName(), each.getLen(), each.isDirectory()) for each in self._system.listStatus(path)
        ]
        return sorted(found)

    def read(self, name: str) -> str:
        stream = self._system.open(self._path(name))
        try:
            text: str = self._io.toString(stream, "UTF-8")
            return text
        finally:
            stream.close()

    def write(self, name: str, text: str) -> bool:
        # Its name is nobody else's: two writers must not write the same file before one of them loses.
        path, unfinished = self._path(name), self._path(f"{name}.{uuid.uuid4().hex[:8]}.new")
        stream = self._system.create(unfinished, True)
        try:
            stream.write(bytearray(text.encode()))
            stream.hsync()
        finally:
            stream.close()
        # HDFS never replaces a file by a rename; an object store may, when two do it at the same moment.
        if not self._system.exists(path) and self._system.rename(unfinished, path):
            return True
        self._system.delete(unfinished, False)
        return False

    def rename(self, name: str, new_name: str) -> None:
        path = self._path(new_name)
        self._system.mkdirs(path.getParent())
        if not self._system.rename(self._path(name), path):
            raise FileExistsError(f"{self.uri(name)} cannot be renamed to {self.uri(new_name)}")

    def remove(self, name: str) -> None:
        self._system.delete(self._path(name), True)
