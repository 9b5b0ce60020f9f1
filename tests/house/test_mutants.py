"""The mutants of `make mutants` as far as it costs nothing: their texts, their clauses and their tests."""

import re

from tests.house.test_conformance import NOT_APPLICABLE, PAGE, proofs, rows
from tests.tools.mutants.__main__ import built_from
from tests.tools.mutants.data import ROOT, mutants

FIFTY = 50


def groups() -> dict[str, set[str]]:
    """The headings of docs/conformance.md -> the clauses below them that a server can break."""
    found: dict[str, set[str]] = {}
    heading = ""
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        if line.startswith("## "):
            heading = line[3:]
            continue
        match = re.match(r"\| (MQTT3?-\S+) \|", line)
        if match is not None and match[1] in rows() and not NOT_APPLICABLE.match(rows()[match[1]][0]):
            found.setdefault(heading, set()).add(match[1])
    return found


def test_there_are_fifty_or_more_and_at_least_one_for_every_group_of_clauses() -> None:
    assert len({mutant.name for mutant in mutants()}) == len(mutants()) >= FIFTY
    broken = {mutant.clause for mutant in mutants()}
    assert not [heading for heading, clauses in groups().items() if not clauses & broken]


def test_the_text_of_every_mutant_occurs_once_in_its_file() -> None:
    for mutant in mutants():
        text = (ROOT / mutant.file).read_text(encoding="utf-8")
        assert text.count(mutant.find) == 1, f"{mutant.name}: {text.count(mutant.find)} times in {mutant.file}"
        assert mutant.find != mutant.replace, mutant.name


def test_what_was_built_of_every_mutants_module_is_found_and_comes_back() -> None:
    for mutant in mutants():
        if mutant.is_compiled:
            assert {".c", ".so"} <= {path.suffix for path in built_from(ROOT / mutant.file)}, mutant.file


def test_the_tests_of_every_mutant_prove_the_clause_that_it_breaks() -> None:
    for mutant in mutants():
        assert mutant.tests, mutant.name
        for test in mutant.tests:
            assert test in rows()[mutant.clause][1], f"{mutant.name}: {test} is no proof of {mutant.clause}"
            assert mutant.clause in proofs()[test], f"{mutant.name}: {test}"
