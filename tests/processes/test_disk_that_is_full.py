"""`shoal serve` on a disk that is full: it says so, in one sentence, and starts when there is room."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.wire.packets import Suback, Subscribe, subscription
from tests.support.raw_client import RawClient
from tests.support.workers import Workers

DISK_BYTES = 16_777_216


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """Return a folder on a small disk of its own."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES},mode=0700", "tmpfs", str(folder)]
    if os.getuid() != 0 or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("a disk of one's own needs root and mount")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(file: Path, leave_bytes: int = 0) -> None:
    """Have a file take all the room that there is, but for some."""
    with file.open("ab", buffering=0) as written:
        try:
            while written.write(b"\0" * 65_536) == 65_536:
                pass
        except OSError:
            pass
    os.truncate(file, max(file.stat().st_size - leave_bytes, 0))


class OnDisk(Workers):
    """A broker whose data is on a disk of its own; what it says goes elsewhere."""

    def __init__(self, folder: Path, disk: Path, count: int) -> None:
        super().__init__(folder, count)
        self.data = disk / "data"
        self.options = (*self.options, "--data-dir", str(self.data))

    def refused(self) -> str:
        """Start it, which must be refused; return the only line that it wrote last, the reason."""
        begun = self.errors.stat().st_size if self.errors.exists() else 0
        with pytest.raises(AssertionError, match="did not start"):
            self.start()
        assert self.process is not None
        assert self.process.returncode == 3
        said = self.errors.read_text()[begun:]
        assert "Traceback" not in said
        return said.splitlines()[-1]


@pytest.mark.parametrize("leave_bytes", [0, 4096, 32_768])
@pytest.mark.parametrize("count", [1, 2])
def test_a_start_on_a_full_disk_is_refused_with_the_reason(
    tmp_path: Path, disk: Path, count: int, leave_bytes: int
) -> None:
    broker = OnDisk(tmp_path, disk, count)
    fill(disk / "filling", leave_bytes)
    reason = f"The disk of the data folder {broker.data} is full: "
    assert broker.refused().startswith(reason)
    (disk / "filling").unlink()
    with broker, RawClient(broker.port) as client:
        client.connect("client", keep=True)
        client.send(Subscribe(1, (subscription(b"a", 1),)))
        assert isinstance(client.read(), Suback)
    fill(disk / "filling", leave_bytes)
    assert broker.refused().startswith(reason)  # nor does it matter whether there was anything before
    (disk / "filling").unlink()
    with broker, RawClient(broker.port) as client:
        assert client.connect("client", keep=True).session_present


@pytest.mark.parametrize("count", [1, 2])
def test_what_an_unfinished_snapshot_took_is_room_for_the_next_start(tmp_path: Path, disk: Path, count: int) -> None:
    broker = OnDisk(tmp_path, disk, count)
    with broker:
        pass
    fill(broker.data / "worker-0" / "snapshot-000000000007.log.new")
    with broker:
        pass
    assert not list(broker.data.rglob("*.new"))


def test_another_number_of_workers_on_a_full_disk_is_refused_with_the_reason(tmp_path: Path, disk: Path) -> None:
    with OnDisk(tmp_path, disk, 2):
        pass
    fill(disk / "filling")
    broker = OnDisk(tmp_path, disk, 3)
    assert broker.refused().startswith(f"The disk of the data folder {broker.data} is full: ")
    (disk / "filling").unlink()
    with broker:
        pass
