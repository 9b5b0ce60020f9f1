"""Which messages there are, by their ids."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import pyarrow as pa

_Ids = np.ndarray[tuple[int], np.dtype[np.int64]]


class IdSet:
    """Ids of messages: worker, incarnation and n. Eight bytes each."""

    def __init__(self) -> None:
        self._added: dict[tuple[int, int], list[_Ids]] = {}
        self._sorted: dict[tuple[int, int], _Ids] = {}

    def add(self, batch: pa.RecordBatch) -> None:
        """Add the messages of a batch."""
        self._sorted.clear()
        for run, rows in _by_run(batch):
            self._added.setdefault(run, []).append(batch.column("n").to_numpy()[rows])

    def without(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the messages of a batch that are not here."""
        import pyarrow as pa

        known = np.zeros(len(batch), np.bool_)
        for run, rows in _by_run(batch):
            ids = self._of(run)
            if len(ids):
                wanted = batch.column("n").to_numpy()[rows]
                at = np.minimum(np.searchsorted(ids, wanted), len(ids) - 1)
                known[rows] = ids[at] == wanted
        return batch if not known.any() else batch.filter(pa.array(~known))

    def _of(self, run: tuple[int, int]) -> _Ids:
        if run not in self._sorted:
            parts = self._added.get(run, [])
            self._sorted[run] = np.sort(np.concatenate(parts)) if parts else np.empty(0, np.int64)
            self._added[run] = [self._sorted[run]] if parts else []
        return self._sorted[run]


def _by_run(batch: pa.RecordBatch) -> list[tuple[tuple[int, int], np.ndarray[tuple[int], np.dtype[np.bool_]]]]:
    """Return the rows of each worker's run, as what is true of them."""
    workers, runs = (batch.column(name).to_numpy() for name in ("worker", "incarnation"))
    return [
        ((worker, run), (workers == worker) & (runs == run))
        for worker in np.unique(workers).tolist()
        for run in np.unique(runs[workers == worker]).tolist()
    ]
