"""The exit codes of the commands. `python -m broker.cli.exit_codes` prints docs/exit-codes.md.

A house test holds this table against the constants in the code.
"""

from __future__ import annotations

from typing import Final, NamedTuple


class ExitCode(NamedTuple):
    """One way to end: of which commands, its number, the constant that says so, what it means and what to do."""

    commands: str
    code: int
    constant: str
    text: str
    advice: str = ""


SERVE: Final = "serve"
WORKER: Final = "a worker's process"
PUB_SUB: Final = "pub, sub"
LOG: Final = "log, backup, restore"
ADMIN: Final = "admin, top"
ACL: Final = "acl"
LAKE: Final = "lake, analyze, replay"

EXIT_CODES: Final = (
    ExitCode(SERVE, 0, "", "Was asked to end, and did in order."),
    ExitCode(
        SERVE,
        2,
        "broker.cli.main.EXIT_CONFIG",
        "The command line or a setting is wrong; each mistake has a line.",
        "Mend it; a restart alone changes nothing.",
    ),
    ExitCode(
        SERVE,
        3,
        "broker.cli.main.EXIT_NOT_STARTED",
        "It could not start: an address is in use, a file cannot be read, the data folder is another broker's or "
        "damaged.",
        "The sentence says which.",
    ),
    ExitCode(
        SERVE,
        4,
        "broker.cli.main.EXIT_WORKERS",
        "A worker ended too often (`processes.restarts_max`).",
        "A restart may help; the log says why it ended.",
    ),
    ExitCode(
        SERVE, 130, "", "Was asked a second time, by SIGINT, and ended at once. Nothing acknowledged is lost.", ""
    ),
    ExitCode(SERVE, 143, "", "Likewise, by SIGTERM."),
    ExitCode(WORKER, 0, "", "Was asked to end, and did in order."),
    ExitCode(
        WORKER,
        3,
        "broker.processes.worker_main.EXIT_NOT_BOOTED",
        "It could not start. The supervisor logs why (`worker_not_booted`) and tries twice more.",
    ),
    ExitCode(WORKER, 4, "broker.processes.worker_main.EXIT_ORPHANED", "Its supervisor was gone before it had begun."),
    ExitCode(PUB_SUB, 0, "", "Done."),
    ExitCode(PUB_SUB, 1, "broker.cli.pubsub.EXIT_BROKER", "The broker is not there, refused, or was lost."),
    ExitCode(PUB_SUB, 2, "", "The command line is wrong."),
    ExitCode(PUB_SUB, 3, "broker.cli.pubsub.EXIT_TIME_OVER", "The time of `-W` was over before the messages of `-C`."),
    ExitCode(PUB_SUB, 130, "broker.cli.pubsub.EXIT_INTERRUPTED", "Ctrl-C."),
    ExitCode(LOG, 0, "", "Done, and all is well."),
    ExitCode(LOG, 1, "broker.cli.log.EXIT_DAMAGED", "Something is damaged or missing."),
    ExitCode(
        LOG, 2, "broker.cli.log.EXIT_UNREADABLE", "The command line is wrong, or the log cannot be read or written."
    ),
    ExitCode(LOG, 130, "broker.cli.log.EXIT_INTERRUPTED", "Ctrl-C."),
    ExitCode(ADMIN, 0, "", "Done."),
    ExitCode(
        ADMIN,
        1,
        "broker.cli.admin.EXIT_REFUSED",
        "The broker refused, or knows no such thing; or a worker gave no answer, and a listing is not whole.",
    ),
    ExitCode(ADMIN, 2, "broker.cli.admin.EXIT_NO_BROKER", "The command line is wrong, or there is no broker to ask."),
    ExitCode(ADMIN, 130, "", "Ctrl-C."),
    ExitCode(ACL, 0, "", "All is well, or the answer is yes."),
    ExitCode(
        ACL,
        1,
        "broker.cli.acl.EXIT_NO",
        "A file cannot be used, the answer is no, or something would have been refused.",
    ),
    ExitCode(ACL, 2, "", "The command line is wrong."),
    ExitCode("check-config", 0, "", "A broker would start with this file."),
    ExitCode("check-config", 1, "broker.cli.main.EXIT_CHECKED", "Something is wrong with it; each mistake has a line."),
    ExitCode("passwd, dynsec", 0, "", "Done."),
    ExitCode("passwd, dynsec", 1, "broker.cli.password_prompt.EXIT_FAILED", "The file or the password cannot be used."),
    ExitCode("passwd, dynsec", 2, "", "The command line is wrong."),
    ExitCode(LAKE, 0, "", "Done."),
    ExitCode(LAKE, 1, "analytics.cli.lake.EXIT_FAILED", "It went wrong; a sentence says how."),
    ExitCode(LAKE, 2, "", "The command line is wrong."),
    ExitCode(LAKE, 130, "analytics.cli.lake.EXIT_INTERRUPTED", "Ctrl-C."),
)


def page() -> str:
    """Return docs/exit-codes.md."""
    lines = [
        "# Exit codes",
        "",
        "Made by `python -m broker.cli.exit_codes`; do not change it by hand.",
        "",
        "A service manager should restart `shoal serve` after 4 and after any signal, and need not after 2 and 3.",
        "",
        "| `shoal ...` | exit code | meaning |",
        "|---|---|---|",
    ]
    lines += [f"| {one.commands} | {one.code} | {' '.join(filter(None, one[3:]))} |" for one in EXIT_CODES]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(page(), end="")
