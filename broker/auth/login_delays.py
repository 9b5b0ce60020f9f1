"""Failed logins make the next attempts wait: of one user from one address, and of an address that tries many users."""

from __future__ import annotations

from _blake2 import blake2b  # hashlib would load OpenSSL
from collections import OrderedDict
from typing import Final

FREE_OF_USER: Final = 3  # failures of one user from one network before the next attempt waits
FREE_OF_NETWORK: Final = 10  # different users that failed from one network, likewise
FORGOTTEN_S: Final = 900.0  # after the last failure
ENTRIES_MAX: Final = 20_000  # then the one that failed longest ago is forgotten


class LoginDelays:
    """How long the next attempt has to wait, by what failed before. Each further failure doubles it, from a second on.

    One user that fails again and again, such as a device with an old password, makes nobody else wait who comes from
    behind the same address; one that tries user after user makes all wait there who are not known to be right.

    Args:
        delay_max_s: seconds; the longest delay.
    """

    def __init__(self, delay_max_s: float) -> None:
        self._delay_max_s = delay_max_s
        # Count and last time. A name may have 64 KiB, and who has not been let in chooses it: what is kept is a digest.
        self._failed: OrderedDict[tuple[str, bytes | None], tuple[int, float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._failed)

    def of_user(self, network: str, user: str, now_s: float) -> float:
        """Return for how many seconds a user has to wait who comes from a network; 0: not at all."""
        return self._left((network, _kept(user)), FREE_OF_USER, now_s)

    def of_network(self, network: str, now_s: float) -> float:
        """Return for how many seconds clients have to wait that come from a network."""
        return self._left((network, None), FREE_OF_NETWORK, now_s)

    def failed(self, network: str, user: str, now_s: float) -> bool:
        """Count a failure. Returns whether it is the first after which the user, or the network, has to wait."""
        count = self._count((network, _kept(user)), now_s)
        begins = count == FREE_OF_USER
        if count == 1:
            begins |= self._count((network, None), now_s) == FREE_OF_NETWORK
        return begins

    def succeeded(self, network: str, user: str) -> None:
        """The user has proved to be right: its failures were mistakes."""
        self._failed.pop((network, _kept(user)), None)

    def _left(self, key: tuple[str, bytes | None], free: int, now_s: float) -> float:
        count, last_s = self._failed.get(key, (0, 0.0))
        if count < free or now_s - last_s >= FORGOTTEN_S:
            return 0.0
        return max(0.0, last_s + min(self._delay_max_s, 2.0 ** min(count - free, 30)) - now_s)

    def _count(self, key: tuple[str, bytes | None], now_s: float) -> int:
        count, last_s = self._failed.pop(key, (0, 0.0))
        count = 1 if now_s - last_s >= FORGOTTEN_S else count + 1
        self._failed[key] = count, now_s
        if len(self._failed) > ENTRIES_MAX:
            self._failed.popitem(last=False)
        return count


def _kept(user: str) -> bytes:
    return blake2b(user.encode("utf-8", "surrogatepass"), digest_size=16).digest()
