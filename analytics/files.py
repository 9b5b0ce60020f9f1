"""Files wherever Spark can write them: a folder of this machine, HDFS, an object store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Entry(NamedTuple):
    """A file or a folder; `size` in bytes."""

    name: str
    size: int
    is_folder: bool


class Files:
    """What is below one folder, by names relative to it.

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
        self.root = self._system.makeQualified(self._root).toString()

    def _path(self, name: str) -> Any:
        return self._hadoop.fs.Path(self._root, name) if name else self._root

    def uri(self, name: str) -> str:
        """Return a name as Spark's readers and writers take it."""
        return f"{self.root}/{name}"

    def entries(self, folder: str) -> list[Entry]:
        """Return what is in a folder, by name; nothing if there is none."""
        path = self._path(folder)
        if not self._system.exists(path):
            return []
        found = [
            Entry(each.getPath().getName(), each.getLen(), each.isDirectory()) for each in self._system.listStatus(path)
        ]
        return sorted(found)

    def read(self, name: str) -> str:
        """Return a file's text."""
        stream = self._system.open(self._path(name))
        try:
            text: str = self._io.toString(stream, "UTF-8")
            return text
        finally:
            stream.close()

    def write(self, name: str, text: str) -> bool:
        """Write a file that appears as a whole or not at all; False if there is one of this name."""
        path, unfinished = self._path(name), self._path(f"{name}.new")
        stream = self._system.create(unfinished, True)
        try:
            stream.write(bytearray(text.encode()))
            stream.hsync()
        finally:
            stream.close()
        return not self._system.exists(path) and bool(self._system.rename(unfinished, path))

    def rename(self, name: str, new_name: str) -> None:
        """Rename a file, into a folder that is made if need be. Raises FileExistsError."""
        path = self._path(new_name)
        self._system.mkdirs(path.getParent())
        if not self._system.rename(self._path(name), path):
            raise FileExistsError(f"{self.uri(name)} cannot be renamed to {self.uri(new_name)}")

    def remove(self, name: str) -> None:
        """Remove a file, or a folder with all that is in it, if it is there."""
        self._system.delete(self._path(name), True)
