"""A broker that listens in every way there is, and what our own commands need to come in by each."""

from __future__ import annotations

import functools
import tempfile
from pathlib import Path
from typing import Self

from tests.support.certificates import Certificates, certificates
from tests.support.process import BrokerProcess

OURS = certificates()
OTHERS = Certificates()
PSK = ("--psk", "0123456789abcdef", "--psk-identity", "device-7")
TRUST = ("--cafile", str(OURS.cafile))


@functools.cache
def own(name: str = "client", *, of: Certificates = OURS, days: float = 30) -> tuple[str, ...]:
    """Return the options of a client's certificate."""
    certificate, key = of.issue(name, f"{name}.example", common_name=name, days=days)
    return ("--cert", certificate, "--key", key)


class Ways:
    """Listeners, by name, and the options that lead to each; with a folder that is gone at the end of the block."""

    def __init__(self) -> None:
        self._held = tempfile.TemporaryDirectory(prefix="shoal-ways-")  # a Unix socket's path has to be short
        self.folder = Path(self._held.name)
        (self.folder / "keys.psk").write_text("device-7:0123456789abcdef\n", encoding="ascii")
        ours, expired = OURS.server, OURS.issue("expired-server", "localhost", days=-1)
        others = OURS.issue("other-server", "other.example", "second.example", "192.0.2.7")
        trusted = {"cafile": str(OURS.cafile), "require_certificate": True}
        self.listeners: dict[str, tuple[str, dict[str, object]]] = {
            "ws": ("ws", {}),
            "tls": ("tls", _pair(ours)),
            "wss": ("wss", _pair(ours)),
            "certificate": ("tls", {**_pair(ours), **trusted, "username_from": "cert.cn"}),
            "psk": ("tls", {"psk_file": str(self.folder / "keys.psk")}),
            "other name": ("tls", _pair(others)),
            "expired": ("tls", _pair(expired)),
        }

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._held.cleanup()

    @property
    def socket(self) -> Path:
        """Of the Unix socket."""
        return self.folder / "s"

    def configuration(self, ports: dict[str, int] | None = None) -> Path:
        """Write the broker's settings to a file.

        Args:
            ports: of a broker before this one; None: any that are free.
        """
        tables = [("unix", f"unix://{self.socket}", {})]
        tables += [
            (name, f"{scheme}://127.0.0.1:{(ports or {}).get(name, 0)}", settings)
            for name, (scheme, settings) in self.listeners.items()
        ]
        file = self.folder / "shoal.toml"
        file.write_text(
            "".join(
                f"[[listener]]\naddress = '{address}'\n"
                + "".join(f"{key} = {_toml(value)}\n" for key, value in settings.items())
                for _, address, settings in tables
            ),
            encoding="utf-8",
        )
        return file

    def ports(self, broker: BrokerProcess) -> dict[str, int]:
        """Return the port of each listener; that of plain TCP is "tcp"."""
        return dict(zip(["tcp", *self.listeners], (port for _, port in broker.addresses), strict=True))

    def options(self, name: str, ports: dict[str, int]) -> tuple[str, ...]:
        """Return what leads a command of ours to a listener."""
        host = ("-h", "localhost", "-p", str(ports.get(name, 0)))
        return {
            "tcp": ("--url", f"mqtt://127.0.0.1:{ports['tcp']}"),
            "unix": ("--url", f"unix://{self.socket}"),
            "ws": ("--url", f"ws://127.0.0.1:{ports['ws']}"),
            "tls": ("--url", f"mqtts://localhost:{ports['tls']}", *TRUST),
            "wss": ("--url", f"wss://localhost:{ports['wss']}/ws", *TRUST),
            "certificate": (*host, *TRUST, *own()),
            "psk": (*host, *PSK),
        }[name]


def _pair(files: tuple[str, str]) -> dict[str, object]:
    return {"certfile": [files[0]], "keyfile": [files[1]]}


def _toml(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else repr(value)
