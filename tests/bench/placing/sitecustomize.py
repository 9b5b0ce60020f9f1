"""Python runs this at the start of every worker of a benchmark: it says which worker the load's clients live on.

BENCH_PLACES is JSON, {"p": 0, "s": 1} for instance: clients of mqload that publish (p), that subscribe
(s), that only connect (c). Without it, they live where the node's key says.
"""

import json
import os

PLACES = os.environ.get("BENCH_PLACES", "")

if PLACES:
    from mesh.home import Homes

    places = json.loads(PLACES)
    home_of = Homes.home_of

    def placed(homes: Homes, client_identifier: bytes) -> int:
        """Return the worker of an identifier such as ml1a2bs17: a run, a role and a number."""
        role = client_identifier.rstrip(b"0123456789")[-1:].decode()
        number = places.get(role) if client_identifier.startswith(b"ml") else None
        return home_of(homes, client_identifier) if number is None else number

    Homes.home_of = placed      # type: ignore[method-assign]
