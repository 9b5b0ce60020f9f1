"""The mutants of mutants.toml, and the tests that each has to be caught by."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path

from tests.support.script import load

ROOT = Path(__file__).resolve().parents[3]
FILE = Path(__file__).with_name("mutants.toml")


@dataclass(frozen=True)
class Mutant:
    """One text of the source and what stands in its place.

    Attributes:
        name: what the mutant does, as a sentence.
        clause: the statement that it disables, a row of docs/conformance.md.
        tests: proofs of that clause, as the page names them.
        file: the source, relative to the root of the tree.
        find: the text, which occurs once in it.
        replace: the other text.
    """

    name: str
    clause: str
    tests: tuple[str, ...]
    file: str
    find: str
    replace: str

    @property
    def is_compiled(self) -> bool:
        """Whether the module has to be built before the mutant lives."""
        return self.file.endswith(".pyx")

    def nodes(self) -> list[str]:
        """The tests for pytest's command line; a conversation is run whole, in every version, in memory."""
        found = []
        for test in self.tests:
            if not test.endswith(".txt"):
                found.append(f"tests/{test}")
                continue
            script = load(ROOT / "tests" / test)
            function = "tests/conversations/test_conversations.py::test_a_conversation_goes_as_written"
            found += [f"{function}[{script.path.stem}-{version}-whole]" for version in script.versions]
        return found


def mutants() -> list[Mutant]:
    """Read the file; a key that is missing or not known fails here."""
    entries = tomllib.loads(FILE.read_text(encoding="utf-8"))["mutant"]
    return [Mutant(**{**entry, "tests": tuple(entry["tests"])}) for entry in entries]
