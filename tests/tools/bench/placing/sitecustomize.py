"""Python runs this at the start of every worker of a benchmark: it says which worker the load's clients live on.

BENCH_PLACES is JSON, {"p": 0, "s": 1} for instance: clients of mqload that publish (p), that subscribe
(s), that only connect (c). Without it, they live where the node's key says. In place of a number, of two workers,
"here" is the one that a client came to, and "there" the other one.
"""

import json
import os
from typing import SupportsIndex

PLACES = os.environ.get("BENCH_PLACES", "")

if PLACES:
    from mesh.placement import Homes

    class Relative:
        """A worker's number as the other one sees it that is asked last whether it is this."""

        def __init__(self, here: bool) -> None:
            self.here = here
            self.asked = 0

        def __eq__(self, number: object) -> bool:
            assert isinstance(number, int)
            self.asked = number
            return self.here

        __hash__ = None  # type: ignore[assignment]

        def __index__(self) -> int:
            return self.asked if self.here else 1 - self.asked

    relative = {"here": Relative(True), "there": Relative(False)}
    places = {role: relative.get(place, place) for role, place in json.loads(PLACES).items()}
    home_of = Homes.home_of

    def placed(homes: Homes, client_identifier: bytes) -> SupportsIndex:
        """Return the worker of an identifier such as ml1a2bs17: a run, a role and a number."""
        hashed = home_of(homes, client_identifier)  # in any case, so that nothing costs less than it does
        role = client_identifier.rstrip(b"0123456789")[-1:].decode()
        place: SupportsIndex | None = places.get(role) if client_identifier.startswith(b"ml") else None
        return hashed if place is None else place

    Homes.home_of = placed  # type: ignore[method-assign]
