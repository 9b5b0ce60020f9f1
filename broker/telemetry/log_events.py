"""The events of the log: what each line means, and what an operator may do.

`python -m broker.telemetry.log_events` prints docs/log-events.md. A house test holds this table against the code.
"""

from __future__ import annotations

from typing import Final

from broker.telemetry.ending_events import ENDING
from broker.telemetry.http_events import HTTP
from broker.telemetry.log_event import Event

CLIENTS: Final = (
    Event(
        "client_connected",
        "info",
        "connections",
        "client, address, user, version, transport, keep_alive_s, session",
        "A client was let in. `session` is `new` or `resumed`.",
        "`log.connections = false` leaves these out.",
    ),
    Event(
        "connection_ended",
        "info",
        "connections",
        "client, address, reason, clause, detail, paused_by, duration_s, messages_in, messages_out, bytes_in, "
        "bytes_out, messages_dropped",
        "A connection ended. `reason` is one of the close reasons, `clause` and `detail` say what the client did "
        "wrong. A client that was refused has an `address` and no counters. At debug: a connection that closed before "
        "its first byte.",
    ),
    Event(
        "client_loses_messages",
        "warning",
        "connections",
        "client, reason, count",
        "A client has begun to lose messages: `count` so far, most of them for `reason`. `queue_full`, `queue_oldest`: "
        "more waits for it than its queue may hold. `output_full`: QoS 0 that it does not take. `too_large`: over its "
        "Maximum Packet Size. `memory`: the worker is at its limit. `unreadable`: the log has lost it.",
        "See `shoal admin client`: whether it is away, or slow.",
    ),
    Event(
        "client_loses_no_more",
        "info",
        "connections",
        "client, lost, count, duration_s",
        "It has lost no message for 10 s; `lost` says how many by reason.",
    ),
    Event(
        "more_clients_lose_messages",
        "warning",
        "connections",
        "lost, count",
        "A hundred clients have such lines already; the others have lost so many, at most a line a minute.",
    ),
    Event("kicked", "warning", "admin", "client, session", "An operator has disconnected a client."),
    Event(
        "banned_client_sent_away",
        "warning",
        "bans",
        "client, ban, reason",
        "A client was disconnected, because it has been banned since it connected.",
    ),
    Event("ban_in_force", "debug", "bans", "client, address, ban, reason", "A banned client was refused."),
    Event(
        "logins_slowed",
        "warning",
        "logins",
        "address, user",
        "After failed logins this user, or all of this address, has to wait before the next one.",
        "Many addresses: someone guesses passwords. One: a device has an old password.",
    ),
    Event(
        "client_flaps",
        "warning",
        "flapping",
        "client, address, pause_s",
        "A client connects more often than `limits.reconnects_per_minute_max` and has to wait.",
        "Two devices may have the same client identifier.",
    ),
    Event(
        "replay_refused",
        "info",
        "connections",
        "client, topic_filter, reason, detail",
        "A subscription to stored messages was refused.",
    ),
    Event(
        "replay_failed",
        "warning",
        "replay",
        "client, topic_filter, error",
        "Stored messages could not be read; it is tried again.",
    ),
    Event(
        "replay_gap",
        "warning",
        "replay",
        "client, topic_filter, of_worker, first_record, records",
        "A replay found messages removed before it came to them.",
        "`archive.retention_bytes` or `archive.retention_age_s` is too small for it.",
    ),
    Event(
        "client_lost",
        "warning",
        "handover",
        "what",
        "A client that another worker sent here did not arrive.",
        "Raise the limit on open files.",
    ),
)

IDENTITY: Final = (
    Event(
        "authenticator_failed",
        "error",
        "handshake, authentication",
        "exception",
        "An authenticator raised an error. The client was refused.",
        "It is a fault of that authenticator.",
    ),
    Event(
        "admission_failed", "error", "handshake", "exception", "An admission raised an error. The client was refused."
    ),
    Event("acl_failed", "error", "acl", "exception", "An ACL raised an error. What was asked was refused."),
    Event("hashing_process_ended", "warning", "hashing", "pid, what", "A process that hashed a password has ended."),
    Event("hashing_process_not_started", "warning", "hashing", "error, what", "Passwords are hashed in threads."),
    Event(
        "password_lines_skipped",
        "warning",
        "password_file",
        "file, lines, count, what",
        "A password file has lines that are no users.",
    ),
    Event(
        "shadow_would_refuse",
        "info",
        "acl",
        "verdict, client, user, action, topic, decided_by, not_logged",
        "A file on trial would have refused or narrowed what was allowed. At most one line in 10 s: `not_logged` is "
        "how many there were since the one before.",
        "`shoal admin shadow` has all of them.",
    ),
    Event(
        "shadow_failed",
        "error",
        "acl",
        "exception",
        "Rules on trial could not be asked. Those that count have decided.",
        "A bug: send its traceback.",
    ),
    Event(
        "subscription_revoked",
        "info",
        "acl",
        "client, topic_filter, decided_by",
        "A subscription ended, because its client may not have it any more.",
    ),
    Event(
        "principal_unreadable",
        "warning",
        "acl",
        "client, error",
        "What the log keeps of who a session's client is cannot be read. Its rights are judged when it is back.",
    ),
    Event("acl_note", "warning", "acl_file", "file, what", "A rule can be read, and may not say what it was meant to."),
    Event("rules_by_time", "info", "acl_file", "what", "Hours that rules ask for have begun or ended."),
    Event(
        "http_failed",
        "warning",
        "http_authenticator",
        "authenticator, url, what",
        "A server that is asked about clients gave no answer that can be used. The next one is asked.",
    ),
    Event(
        "http_authorizer_failed",
        "warning",
        "http_authorizer",
        "authorizer, url, what",
        "A server that is asked about the rights of clients gave no answer that can be used. The next one is asked.",
    ),
    Event(
        "will_refused",
        "info",
        "handshake",
        "client, topic",
        "A client is let in without its will: a server has said at its CONNECT that it may not publish that, or it is "
        "to a topic name by which the broker takes requests.",
    ),
    Event(
        "token_refused",
        "info",
        "tokens",
        "authenticator, address, what",
        "A token is right, but not for this client, or not now.",
    ),
    Event(
        "token_ignored",
        "debug",
        "tokens",
        "authenticator, address, what",
        "What a client gave is no token of this authenticator's. The next one is asked.",
    ),
    Event(
        "dynamic_security_begun",
        "info",
        "dynamic_security",
        "clients, groups, roles",
        "The log has what the file of dynamic security said. From now on the file is not read.",
    ),
    Event(
        "dynamic_security_command",
        "info",
        "dynamic_security",
        "client, user, command, username, groupname, rolename, error",
        "An administrator's command was executed, or not: then `error` says why.",
    ),
    Event(
        "dynamic_security_failed",
        "error",
        "dynamic_security",
        "client",
        "A request was answered with an internal error, by a fault of the broker's or because its log takes no more.",
        "The traceback says which.",
    ),
    Event(
        "worker_not_asked",
        "warning",
        "dynamic_security",
        "worker, query, what",
        "A worker gave no answer about a request of an administrator's: it is away, or busy. It hears of what was "
        "changed when it is back.",
    ),
    Event("token_keys_found", "info", "tokens", "authenticator, keys", "The keys of an issuer were read."),
    Event(
        "token_keys_not_found",
        "warning",
        "tokens",
        "authenticator, what, in_use",
        "The keys of an issuer could not be read. Those that were read before stay in use.",
        "See what it says.",
    ),
    Event(
        "reloaded",
        "info",
        "reload",
        "certificates, authenticators, users, rules",
        "Certificates, keys, password files and the like were read again.",
    ),
    Event(
        "reload_failed",
        "error",
        "reload",
        "what",
        "A file could not be used, or a setting is wrong. What was read before stays in use.",
        "Mend the file; those of certificates, users and rules are looked at every two seconds.",
    ),
    Event(
        "settings_changed",
        "info",
        "reload",
        "changed, pending",
        "Settings were read again. `changed` are in force; `pending` count after a restart: "
        "[configuration.md](configuration.md) says of which kind.",
    ),
    Event("settings_as_before", "info", "reload", "", "Settings were read again, and say what they said before."),
    Event(
        "tls_keys_are_logged",
        "warning",
        "tls",
        "file, what",
        "`tls_keylog_file` is set.",
        "Never in production: whoever has the file can read everything.",
    ),
    Event("tls_keylog_failed", "warning", "tls", "what", "Keys could not be written to `tls_keylog_file`."),
)

STORAGE: Final = (
    Event(
        "recovered",
        "info",
        "storage",
        "records, sessions, retained, queued, seconds, incarnation",
        "The log was read at a start.",
    ),
    Event(
        "log_compacted",
        "info",
        "storage",
        "segment, sessions, messages, snapshot_bytes, seconds",
        "What is no longer needed of the log was removed.",
    ),
    Event(
        "log_not_compacted",
        "error",
        "storage",
        "exit_code, what",
        "The log could not be made shorter; it is tried again.",
        "See what it says: above all whether the disk is full.",
    ),
    Event(
        "snapshot_not_written",
        "error",
        "storage",
        "what",
        "A snapshot, with which the log could be made shorter, could not be written; it is tried again.",
        "See what it says: above all whether the disk is full.",
    ),
    Event("snapshot_written_again", "info", "storage", "", "Snapshots are written again."),
    Event(
        "log_not_written",
        "error",
        "storage",
        "what, waiting_bytes",
        "The disk does not take what is to be kept. Nothing is acknowledged meanwhile, and it is tried again.",
        "Make room, or mend the disk. `/ready` says 503.",
    ),
    Event("log_written_again", "info", "storage", "", "The disk takes what is to be kept again."),
    Event(
        "log_damaged", "warning", "storage", "what", "A damaged place of the log was passed over, with `--accept-loss`."
    ),
    Event(
        "log_record_unfit",
        "warning",
        "storage",
        "what",
        "A record of the log does not fit what came before it.",
        "`shoal log verify` says more.",
    ),
    Event(
        "retained_damaged",
        "warning, error",
        "storage",
        "what, values",
        "The index of retained messages is damaged. It is made anew from its second copy and the log.",
    ),
    Event(
        "retained_incomplete",
        "warning",
        "storage",
        "known_up_to, log_begins_with",
        "The index of retained messages ends before the log begins.",
        "Some retained messages are missing.",
    ),
    Event(
        "retained_copied_anew",
        "warning",
        "storage",
        "what",
        "The second copy of the retained messages could not be used and was made anew.",
    ),
    Event(
        "retained_not_copied",
        "error",
        "storage",
        "exit_code, what",
        "The second copy of the retained messages could not be written; it is tried again.",
    ),
    Event(
        "retained_not_written",
        "error, warning",
        "storage",
        "what, waiting",
        "The index of retained messages could not be written; they are in the log, and it is tried again.",
    ),
    Event("retained_written_again", "info", "storage", "", "The index of retained messages is written again."),
    Event("left_logs_not_trimmed", "error", "storage", "what", "Logs of former workers could not be made shorter."),
    Event(
        "sessions_spread",
        "info",
        "adoption",
        "workers, sessions_moved, messages_copied, messages_delivered, messages_lost, seconds",
        "The broker has another number of workers than before, and sessions went to their new ones.",
    ),
    Event(
        "state_not_understood",
        "error",
        "state",
        "topic, exception",
        "What a newer worker keeps for the others is not known to this one.",
        "Update this broker.",
    ),
)

PROCESSES: Final = (
    Event("listening", "info", "worker", "addresses, pid", "Clients can connect."),
    Event(
        "worker_listening", "info", "supervisor", "worker, incarnation, restarts", "Clients can connect to a worker."
    ),
    Event(
        "worker_ended",
        "error",
        "supervisor",
        "worker, what, listened",
        "A worker ended, and is started again.",
        "Report it, with the lines before: a worker ends by itself only by a fault or for want of memory.",
    ),
    Event(
        "worker_killed",
        "error",
        "supervisor",
        "worker, pid, what, stall_s",
        "The supervisor ended a worker that did not turn, or did not end.",
    ),
    Event(
        "worker_not_booted",
        "error",
        "supervisor",
        "worker, what, in_a_row",
        "A worker could not start; `what` says why.",
    ),
    Event(
        "node_in_use_twice",
        "warning",
        "supervisor",
        "folder, what",
        "Another broker runs on a copy of this data folder.",
        "Stop one of them: they are the same node.",
    ),
    Event("orphan_reaped", "debug", "supervisor", "pid", "A process that a worker had started ended after it."),
    Event("worker_not_let_in", "warning", "handover", "what", "Another worker could not connect to pass clients on."),
    Event("worker_hung_up", "warning", "handover", "what", "Another worker that passes clients on is gone."),
    Event(
        "control_channel_stuck",
        "error",
        "control_channel",
        "peer, bytes",
        "Supervisor or worker do not read what they are sent.",
    ),
    Event(
        "control_failed",
        "error",
        "control_channel",
        "peer, kind, exception",
        "What supervisor or worker asked failed by a fault.",
    ),
    Event(
        "control_message_too_large",
        "error",
        "control_channel",
        "peer, bytes",
        "Supervisor and worker do not understand each other.",
    ),
    Event(
        "control_message_malformed",
        "error",
        "control_channel",
        "peer, what",
        "Supervisor and worker do not understand each other.",
    ),
    Event("log_level_changed", "warning", "admin", "to", "An operator has changed what is logged."),
    Event("admin_failed", "error", "admin", "path, exception", "A request to the admin socket failed by a fault."),
    Event(
        "connections_limit",
        "info",
        "worker",
        "connections_max, open_files_max",
        "How many connections this process takes: the setting, or what the limit on open files leaves.",
    ),
    Event(
        "accept_paused",
        "warning",
        "acceptor",
        "reason",
        "No connection is accepted for a while: a limit is reached, or there are no more open files.",
    ),
    Event(
        "memory_full",
        "warning",
        "limits",
        "resident_bytes, limit_bytes",
        "The worker is at its limit of memory: nothing more is queued, retained or connected.",
    ),
    Event("memory_available", "info", "limits", "resident_bytes, limit_bytes", "There is memory again."),
    Event(
        "slow_turns",
        "warning",
        "connections",
        "count, turn_us, ..._us",
        "Turns took 50 ms or more since the last such line, at least ten seconds ago; all clients of the worker "
        "waited for "
        "so long. Of the longest one: how long each part took.",
        "Often the machine is short of processors; else report it.",
    ),
    Event("slow_turn", "debug", "connections", "turn_us, ..._us", "A turn took 10 ms or more."),
    Event(
        "internal_error",
        "error",
        "connections",
        "client, exception",
        "A connection ended by a fault of the broker.",
        "Report it.",
    ),
    Event(
        "filter_failed",
        "error",
        "connections, relay",
        "client, exception",
        "A connection ended by a fault between socket and protocol.",
        "Report it.",
    ),
    Event(
        "dump", "warning", "worker", "turns_us, turn_histogram, tasks, ...", "SIGUSR2: what the worker does and counts."
    ),
    Event(
        "unraisable",
        "error",
        "worker",
        "where, exception",
        "A fault where nothing could be done about it.",
        "Report it.",
    ),
    Event("collected_garbage", "debug", "worker", "seconds", "Python looked for memory that is no longer used."),
)

LINKS: Final = (
    Event(
        "peer", "info", "mesh", "peer, state, before, incarnation", "The link to another worker is in another state."
    ),
    Event(
        "peers_missing",
        "warning",
        "mesh",
        "peers",
        "At a start these workers had not been heard of in time. What they are owed waits for them.",
    ),
    Event(
        "peer_forgotten",
        "warning",
        "mesh",
        "peer, messages_dropped",
        "What a worker that is away was owed has been dropped.",
    ),
    Event("bad_frame", "warning", "mesh", "peer, what", "Another worker sent what is no frame; the link begins anew."),
)

LINES: Final = (
    Event(
        "log_suppressed",
        "warning",
        "logs",
        "suppressed_event, count",
        "Lines of an event were left out: there are at most 100 in a second.",
    ),
    Event("log_dropped", "warning", "logs", "count", "Lines were lost: the disk or the pipe of the log is too slow."),
    Event("log_reopen_failed", "warning", "logs", "file, error", "SIGHUP: the log file could not be opened anew."),
    Event(
        "log_unrenderable",
        "error",
        "logs",
        "of, error",
        "A line could not be written because of what is in it.",
        "Report it.",
    ),
)

TABLES: Final = (
    ("Clients", CLIENTS),
    ("Identity and keys", IDENTITY),
    ("What is kept", STORAGE),
    ("Processes", PROCESSES),
    ("HTTP", HTTP),
    ("Ends in order", ENDING),
    ("Links between workers", LINKS),
    ("The log itself", LINES),
)


def events() -> dict[str, Event]:
    """Return all events by their names."""
    return {event.name: event for _, table in TABLES for event in table}


def page() -> str:
    """Return docs/log-events.md."""
    lines = [
        "# Events of the log",
        "",
        "Made by `python -m broker.telemetry.log_events`; do not change it by hand.",
        "",
        "A line of the log is one event. As JSON (`log.format`) it has `event`, `level`, `timestamp`, `logger`, with "
        "several",
        "workers `worker`, and the fields below; an `exception` is a traceback. Names of events and fields stay as "
        "they are",
        "from release to release.",
    ]
    for title, table in TABLES:
        lines += ["", f"## {title}", "", "| event | level | fields | meaning |", "|---|---|---|---|"]
        lines += [
            f"| `{event.name}` | {event.level} | {event.fields or '-'} | {' '.join(filter(None, event[4:]))} |"
            for event in table
        ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(page(), end="")
