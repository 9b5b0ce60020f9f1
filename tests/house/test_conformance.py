"""docs/conformance.md against the tests: every statement has a row, every row a proof, every proof its test."""

import ast
import re
from functools import cache
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
PAGE = TESTS.parent / "docs" / "conformance.md"

# How many numbered statements each section has: of 5.0 by its appendix B, of 3.1.1 by its appendix B.
STATEMENTS = {
    "MQTT": (
        251,
        """
        1.5.4:1-3 1.5.5:1-1 1.5.7:1-1 2.1.3:1-1 2.2.1:2-6 2.2.2:1-1 3.1.0:1-2 3.1.2:1-30 3.1.3:1-12 3.1.4:1-6 3.2.0:1-2
        3.2.2:1-22 3.3.1:1-13 3.3.2:1-20 3.3.4:1-10 3.4.2:1-3 3.5.2:1-3 3.6.1:1-1 3.6.2:1-3 3.7.2:1-3 3.8.1:1-1
        3.8.3:1-5 3.8.4:1-8 3.9.2:1-2 3.9.3:1-2 3.10.1:1-1 3.10.3:1-2 3.10.4:1-6 3.11.2:1-2 3.11.3:1-2 3.12.4:1-1
        3.14.0:1-1 3.14.1:1-1 3.14.2:1-4 3.14.4:1-3 3.15.1:1-1 3.15.2:1-3 4.1.0:1-2 4.2.0:1-1 4.3.1:1-1 4.3.2:1-5
        4.3.3:1-13 4.4.0:1-2 4.5.0:1-2 4.6.0:1-6 4.7.0:1-1 4.7.1:1-2 4.7.2:1-1 4.7.3:1-4 4.8.2:1-6 4.9.0:1-3
        4.12.0:1-7 4.12.1:1-2 4.13.1:1-1 4.13.2:1-1 6.0.0:1-4""",
    ),
    "MQTT3": (
        141,
        """
        1.5.3:1-3 2.2.2:1-2 2.3.1:1-7 3.1.0:1-2 3.1.2:1-24 3.1.3:1-11 3.1.4:1-5 3.2.0:1-1 3.2.2:1-6 3.3.1:1-12 3.3.2:1-3
        3.3.4:1-1 3.3.5:1-2 3.6.1:1-1 3.8.1:1-1 3.8.3:1-4 3.8.4:1-6 3.9.3:1-2 3.10.1:1-1 3.10.3:1-2 3.10.4:1-6
        3.12.4:1-1 3.14.1:1-1 3.14.4:1-3 4.1.0:1-2 4.3.1:1-1 4.3.2:1-2 4.3.3:1-2 4.4.0:1-1 4.5.0:1-2 4.6.0:1-6
        4.7.1:1-3 4.7.2:1-1 4.7.3:1-4 4.8.0:1-2 6.0.0:1-4 7.0.0:1-2 7.1.1:1-1 7.1.2:1-1""",
    ),
}
CLAUSE = re.compile(r"\[(MQTT3?-\d+\.\d+\.\d+-\d+)\]")
ROW = re.compile(r"^\| (MQTT3?-\S+) \| (.+) \| (.*)\|$")
SAME_ROW = re.compile(r"^\| (MQTT3-\S+) \| (MQTT-\S+) \|$")
NOT_APPLICABLE = re.compile(r"not applicable\b(?:: (.*))?")
SHORTEST_REASON = 15


def statements() -> list[str]:
    """The numbers of the two standards, in their order."""
    return [
        f"{standard}-{section}-{number}"
        for standard, (_, sections) in STATEMENTS.items()
        for section, first, last in re.findall(r"([\d.]+):(\d+)-(\d+)", sections)
        for number in range(int(first), int(last) + 1)
    ]


@cache
def rows() -> dict[str, tuple[str, list[str]]]:
    """What docs/conformance.md says: clause -> (sentence, proofs)."""
    found = {}
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        if SAME_ROW.match(line) is None and (match := ROW.match(line)) is not None:
            assert match[1] not in found, f"two rows for {match[1]}"
            found[match[1]] = match[2].strip(), re.findall(r"`([^`]+)`", match[3])
    return found


@cache
def same_rows() -> dict[str, str]:
    """The statements of 3.1.1 that are as in 5.0: clause -> clause."""
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    found = [match.groups() for line in lines if (match := SAME_ROW.match(line)) is not None]
    assert len({clause for clause, _ in found}) == len(found), "two rows for a statement of 3.1.1"
    return dict(found)


def clauses_of(lines: list[str]) -> set[str]:
    return {clause for line in lines if "Proves:" in line for clause in CLAUSE.findall(line)}


@cache
def proofs() -> dict[str, set[str]]:
    """What the tests say that they prove: conversation or test function -> clauses."""
    found = {}
    for path in sorted((TESTS / "conversations").glob("*.txt")):
        found[f"conversations/{path.name}"] = clauses_of(path.read_text(encoding="utf-8").splitlines())
    for path in sorted(TESTS.rglob("test_*.py")):
        if path == Path(__file__):
            continue
        text = path.read_text(encoding="utf-8")
        lines = text.splitlines()
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name.startswith("test_"):
                found[f"{path.relative_to(TESTS).as_posix()}::{node.name}"] = clauses_of(
                    lines[node.lineno - 1 : node.end_lineno]
                )
    return found


def unproved() -> list[str]:
    """The statements without a test that says it proves them, save those that do not concern a server."""
    return [
        clause
        for clause, (sentence, tests) in rows().items()
        if not NOT_APPLICABLE.match(sentence) and not any(clause in proofs().get(test, ()) for test in tests)
    ]


def runs_under(test: str, version: str) -> bool:
    """Whether a proof is tried with this version; a test function says itself what it tries."""
    if not test.endswith(".txt"):
        return True
    text = (TESTS / test).read_text(encoding="utf-8")
    match = re.search(r"^versions (.+)$", text, re.MULTILINE)
    return match is None or version in match[1].split()


def test_the_list_of_statements_is_that_of_the_standards() -> None:
    numbers = statements()
    assert len(set(numbers)) == len(numbers) == sum(count for count, _ in STATEMENTS.values())
    for standard, (count, _) in STATEMENTS.items():
        assert sum(number.startswith(standard + "-") for number in numbers) == count


def test_every_statement_has_a_row_and_every_row_a_statement() -> None:
    with_row = [*rows(), *same_rows()]
    assert len(with_row) == len(set(with_row)), "a clause is in two tables"
    assert not set(statements()) - set(with_row), sorted(set(statements()) - set(with_row))
    assert not set(with_row) - set(statements()), sorted(set(with_row) - set(statements()))
    for clause, other in same_rows().items():
        assert other in rows(), f"{clause}: {other} has no row"


def test_every_row_names_tests_that_exist_and_say_so() -> None:
    wrong = []
    for clause, (_, tests) in rows().items():
        for test in tests:
            if test not in proofs():
                wrong.append(f"{clause}: there is no {test}")
            elif clause not in proofs()[test]:
                wrong.append(f"{clause}: {test} does not say that it proves it")
    assert not wrong, "\n".join(wrong)


def test_every_clause_that_a_test_proves_has_a_row() -> None:
    known = {*rows(), *same_rows()}
    wrong = [f"{test}: {clause}" for test, clauses in proofs().items() for clause in sorted(clauses - known)]
    assert not wrong, "\n".join(wrong)


def test_no_file_names_a_statement_that_the_standards_do_not_have() -> None:
    known = set(statements())
    suffixes = {".py", ".pyx", ".pxd", ".txt", ".md", ".toml"}
    wrong = [
        f"{path}: {clause}"
        for folder in ("broker", "router", "mesh", "analytics", "docs", "tests")
        for path in sorted((TESTS.parent / folder).rglob("*"))
        if path.suffix in suffixes
        for clause in re.findall(r"\bMQTT3?-\d[\d.]*(?:-\d+)?", path.read_text(encoding="utf-8"))
        if clause not in known
    ]
    assert not wrong, "\n".join(wrong)


def test_what_is_not_applicable_has_a_reason_and_no_proof() -> None:
    for clause, (sentence, tests) in rows().items():
        if match := NOT_APPLICABLE.match(sentence):
            assert match[1] is not None, f"{clause}: no reason"
            assert len(match[1]) >= SHORTEST_REASON, f"{clause}: no reason"
            assert not tests, f"{clause}: not applicable, and proved by {tests}"


def test_nothing_that_a_server_must_do_is_unproved() -> None:
    missing = unproved()
    print(f"{len(rows()) + len(same_rows())} statements, {len(missing)} unproved")
    for clause in missing:
        print(f"{clause}: {rows()[clause][0]}")
    assert not missing, missing


def test_a_proof_is_tried_under_the_version_whose_statement_it_proves() -> None:
    wrong = [
        clause
        for clause, (_, tests) in rows().items()
        if tests and not any(runs_under(test, "5.0" if clause.startswith("MQTT-") else "3.1.1") for test in tests)
    ]
    for clause, other in same_rows().items():
        tests = rows()[other][1]
        if tests and not any(runs_under(test, "3.1.1") for test in tests):
            wrong.append(f"{clause}, as {other}")
    assert not wrong, wrong


def test_no_row_holds_the_standards_own_words() -> None:
    # Their sentences say what the parties of a protocol MUST do; ours say what this server does.
    assert not re.search(r"\b(?:MUST|SHALL|SHOULD)\b", PAGE.read_text(encoding="utf-8"))
