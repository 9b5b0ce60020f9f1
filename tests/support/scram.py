"""A client's half of SCRAM, written from RFC 5802 without a look at the server's half."""

from __future__ import annotations

from base64 import b64decode, b64encode
from hashlib import new, pbkdf2_hmac
from hmac import digest


class ScramClient:
    """One login. Change `gs2_header`, `binding` or `nonce` to be a client that does it wrong."""

    def __init__(
        self,
        user_name: str,
        password: str,
        nonce: str = "fyko+d2lbbFgONRv9qkxdawL",
        gs2_header: str = "n,,",
        hash_name: str = "sha256",
    ) -> None:
        self.password = password
        self.hash_name = hash_name
        self.gs2_header = self.binding = gs2_header
        escaped = user_name.replace("=", "=3D").replace(",", "=2C")
        self.bare = f"n={escaped},r={nonce}"
        self.nonce: str | None = None  # None: what the server says
        self.server_signature = b""

    @property
    def first(self) -> bytes:
        """The first message."""
        return (self.gs2_header + self.bare).encode()

    def final(self, server_first: bytes) -> bytes:
        """The final message, which answers the server's first one."""
        fields = dict(field.split("=", 1) for field in server_first.decode().split(","))
        salted = pbkdf2_hmac(self.hash_name, self.password.encode(), b64decode(fields["s"]), int(fields["i"]))
        client_key = digest(salted, b"Client Key", self.hash_name)
        binding = b64encode(self.binding.encode()).decode()
        without_proof = f"c={binding},r={self.nonce or fields['r']}"
        messages = f"{self.bare},{server_first.decode()},{without_proof}".encode()
        signature = digest(new(self.hash_name, client_key).digest(), messages, self.hash_name)
        proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
        self.server_signature = digest(digest(salted, b"Server Key", self.hash_name), messages, self.hash_name)
        return f"{without_proof},p={b64encode(proof).decode()}".encode()

    def trusts(self, server_final: bytes | None) -> bool:
        """Whether the server has proved that it knows the password."""
        return server_final == b"v=" + b64encode(self.server_signature)
