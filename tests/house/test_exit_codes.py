"""The table of exit codes, docs/exit-codes.md and the constants in the code say the same."""

from __future__ import annotations

import ast

from broker.cli.exit_codes import EXIT_CODES, page
from tests.support.process import ROOT

# One meaning in two modules: those that start workers, and those that read a log, must not load each other.
COPIES = {
    "broker.processes.supervisor.EXIT_NOT_BOOTED": "broker.processes.worker_main.EXIT_NOT_BOOTED",
    "broker.cli.top.EXIT_NO_BROKER": "broker.cli.admin.EXIT_NO_BROKER",
}


def constants() -> dict[str, int]:
    """Return every EXIT_... of the code, by module and name."""
    found = {}
    for package in ("broker", "analytics"):
        for path in (ROOT / package).rglob("*.py"):
            module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
            for node in ast.parse(path.read_text()).body:
                target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
                value = getattr(node, "value", None)
                if isinstance(target, ast.Name) and target.id.startswith("EXIT_") and isinstance(value, ast.Constant):
                    found[f"{module}.{target.id}"] = value.value
    return found


def test_every_exit_code_is_in_the_table_with_its_number() -> None:
    found = constants()
    for copy, original in COPIES.items():
        assert found.pop(copy) == found[original]
    assert found == {one.constant: one.code for one in EXIT_CODES if one.constant}


def test_no_exit_code_is_written_as_a_number() -> None:
    for package in ("broker/cli", "analytics/cli"):
        for path in (ROOT / package).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Call) and ast.unparse(node.func) in ("sys.exit", "SystemExit", "_fail"):
                    assert not any(isinstance(argument, ast.Constant) and isinstance(argument.value, int)
                                   for argument in node.args), f"{path}:{node.lineno}"  # fmt: skip


def test_the_page_is_that_of_the_table() -> None:
    assert (ROOT / "docs/exit-codes.md").read_text() == page(), "python -m broker.cli.exit_codes > docs/exit-codes.md"
