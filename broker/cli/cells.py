"""Values as `shoal admin` and `shoal top` print them for people: numbers, sizes, times, names of receivers."""

from __future__ import annotations

from typing import Any, Final

Row = dict[str, Any]  # of an answer of the admin socket

NEVER_S: Final = 0xFFFFFFFF


def count(number: float | None) -> str:
    """Return a number with thousands apart."""
    return "-" if number is None else f"{number:,.0f}"


def size(number: float | None) -> str:
    """Return bytes in the largest unit that keeps them above 1."""
    if number is None:
        return "-"
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(number) < 1024:
            return f"{number:.0f} {unit}" if unit == "B" else f"{number:.1f} {unit}"
        number /= 1024
    return f"{number:.1f} TiB"


def duration(seconds: float | None) -> str:
    """Return a time in its two largest units."""
    if seconds is None:
        return "-"
    if seconds >= NEVER_S:
        return "for ever"
    whole = int(seconds)
    for unit, length, smaller, smaller_length in (
        ("d", 86_400, "h", 3600),
        ("h", 3600, "min", 60),
        ("min", 60, "s", 1),
    ):
        if whole >= length:
            return f"{whole // length} {unit} {whole % length // smaller_length} {smaller}"
    return f"{whole} s" if whole >= 10 else f"{seconds:.1f} s"


def yes(value: object) -> str:
    """Return a truth as a word."""
    return "-" if value is None else "yes" if value else "no"


def payload(row: Row) -> str:
    """Return as much of a payload as was shown."""
    if "payload" in row:
        text = repr(row["payload"])[1:-1]
        return text + (" …" if len(row["payload"].encode()) < row["payload_bytes"] else "")
    return f"base64:{row.get('payload_base64', '')}"


def options(row: Row) -> str:
    """Return the options of a subscription in words."""
    words = [name.replace("_", " ") for name in ("no_local", "retain_as_published") if row.get(name)]
    if "retain_handling" in row:
        words.append(f"retain handling {row['retain_handling']}")
    if "subscription_identifier" in row:
        words.append(f"identifier {row['subscription_identifier']}")
    return ", ".join(words)


def who(row: Row | None) -> str:
    """Return the name of a receiver."""
    if row is None:
        return "nobody"
    if "peer" in row:
        return f"worker {row['peer']}"
    return str(row["client"]) + (" (in process)" if row.get("in_process") else "")


def handshakes(row: Row | None) -> str:
    """Return how many TLS handshakes there were."""
    return "-" if row is None else f"{count(row['full'])} full, {count(row['resumed'])} resumed"


def certificate(row: Row) -> str:
    """Return whose a certificate is, and how long yet."""
    days = row["days_left"]
    names = " ".join(row["names"]) or row["subject"]
    return f"{names} ({count(days)} days)" if days >= 0 else f"{names} (has expired)"


def came_by(row: Row) -> str:
    """Return how a client came in, and what is known of it by that."""
    words = [f"listener {row['listener']}"]
    if "proxy" in row:
        words.append(f"through the proxy {row['proxy']}")
    if "tls_version" in row:
        words.append(f"{row['tls_version']}, {row['tls_cipher']}")
    if "server_name" in row:
        words.append(f"to {row['server_name']}")
    if "psk_identity" in row:
        words.append(f"pre-shared key of {row['psk_identity']}")
    if "certificate" in row:
        found = row["certificate"]
        words.append(f"certificate {found.get('dn') or found.get('cn') or '-'}")
    return ", ".join(words)


def filters(row: Row) -> str:
    """Return the topic filters that matched, with their QoS."""
    return ", ".join(
        f"{found['topic_filter']} (QoS {found['qos']}" + (f", {options(found)}" if options(found) else "") + ")"
        for found in row["filters"]
    )
