"""Where clients can come in, as one worker has it, and its share of all workers put together."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from broker.admin.pagination import Row

if TYPE_CHECKING:
    from broker.admin.worker_view import AskedWorker
    from broker.transport.facts import Certificate, Facts


def listeners_of(worker: AskedWorker) -> list[Row]:
    """Return a worker's listeners, in the order of the settings."""
    rows = []
    reload = worker.reload
    for entrance, rules in zip(worker.entrances, worker.controller.handshake.rules, strict=True):
        found = [str(address) for address in worker.addresses_of(entrance.number)]
        rows.append(
            {
                "listener": entrance.number + 1,
                "address": entrance.settings.address,
                "listening": found,
                "clients": rules.open_connections,
                "clients_max": rules.connections_max or None,
                "mount_point": entrance.settings.mount_point or None,
                "handshakes": None if entrance.context is None else dict(entrance.handshakes),
                "certificates": [certificate_row(one) for one in entrance.certificates],
                "reloads": reload.done,
                "reloads_failed": reload.failed,
                "trouble": reload.error if reload.reads_files else None,
            }
        )
    return rows


def certificate_row(certificate: Certificate) -> Row:
    """Return what an operator asks for of one of our certificates."""
    return {
        "subject": certificate.dn,
        "names": list(certificate.san_dns),
        "issuer": certificate.issuer,
        "serial": certificate.serial,
        "sha256": certificate.sha256,
        "not_before_s": certificate.not_before_s,
        "not_after_s": certificate.not_after_s,
        "days_left": certificate.days_left(),
    }


def facts_row(facts: Facts | None) -> Row:
    """Return how a client came in, and what its layers found out about it."""
    if facts is None:
        return {"listener": 1}
    row: Row = {"listener": facts.listener + 1}
    row |= {
        name: value
        for name in ("proxy", "tls_version", "tls_cipher", "server_name", "psk_identity", "unique_id")
        if (value := getattr(facts, name)) is not None
    }
    certificate = facts.certificate
    if certificate is not None:
        fields = {
            "cn": certificate.cn,
            "dn": certificate.dn,
            "san_dns": list(certificate.san_dns),
            "san_uri": list(certificate.san_uri),
            "san_email": list(certificate.san_email),
            "sha256": certificate.sha256,
            "serial": certificate.serial,
            "issuer": certificate.issuer,
            "not_after_s": certificate.not_after_s,
        }
        row["certificate"] = {name: value for name, value in fields.items() if value not in (None, [])}
    return row


def merged_listeners(answers: Iterable[list[Row]]) -> list[Row]:
    """Return the listeners of a broker, of those of its workers: sums, and whatever troubles one of them."""
    merged: dict[int, Row] = {}
    for rows in answers:
        for row in rows:
            known = merged.setdefault(row["listener"], row)
            if known is row:
                continue
            known["clients"] += row["clients"]
            known["listening"] = list(dict.fromkeys(known["listening"] + row["listening"]))
            for kind, count in (row["handshakes"] or {}).items():
                known["handshakes"][kind] += count
            for name in ("reloads", "reloads_failed"):
                known[name] = max(known[name], row[name])
            known["trouble"] = known["trouble"] or row["trouble"]
    return list(merged.values())


def merged_members(answers: Iterable[list[Row]], kind: str) -> list[Row]:
    """Return the authenticators or authorizers of a broker, of those of its workers: all read the same files.

    Each verifies logins, and asks servers.

    Args:
        kind: "authenticator" or "authorizer".
    """
    merged: dict[int, Row] = {}
    for rows in answers:
        for row in rows:
            known = merged.setdefault(row[kind], row)
            if known is row:
                continue
            for name in ("verified", "asked", "remembered", "failed"):
                if name in row:
                    known[name] += row[name]
            if "trouble" in row:
                known["trouble"] = known["trouble"] or row["trouble"]
    return list(merged.values())
