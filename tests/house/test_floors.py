"""The floors of the house: each room imports from below it, compiled modules too, and no modules import in a circle."""

from __future__ import annotations

import graphlib
import re
import tomllib
from pathlib import Path

import pytest

from tests.house.test_house import CODE, PACKAGES, ROOT, sources, without_strings_and_comments

ROOMS = ("broker", "router", "analytics")
STATEMENT = re.compile(
    r"^[ \t]*(?:from[ \t]+([\w.]+)[ \t]+c?import[ \t]+(\([^)]*\)|[^\n]*)"
    r"|c?import[ \t]+([\w., \t]+?)[ \t]*(?:\bas\b.*)?)$", re.MULTILINE)  # fmt: skip


def floors(package: str) -> dict[str, int]:
    """The rooms and modules of a package with their floors, 0 for the ground, as pyproject.toml has them."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]
    (contract,) = [one for one in settings["contracts"] if one.get("containers") == [package]]
    layers = [re.findall(r"\w+", layer) for layer in reversed(contract["layers"])]
    return {name: floor for floor, names in enumerate(layers) for name in names}


def module_of(path: Path) -> str:
    names = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(names[:-1] if names[-1] == "__init__" else names)


MODULES = {module_of(path) for path in sources(*CODE)}


def imported(text: str) -> set[str]:
    """The modules of ours that a text imports or cimports, wherever it does."""
    found = set()
    for module, names, modules in STATEMENT.findall(without_strings_and_comments(text)):
        if modules:
            found |= {name.strip() for name in modules.split(",")} & MODULES
        elif module in MODULES:
            inside = {f"{module}.{name.split()[0]}" for name in names.strip("()").split(",") if name.strip()} & MODULES
            found |= inside or {module}
    return found


def test_imports_are_found_in_every_form() -> None:
    text = '''"""from broker.logs import x"""
from router.core.message cimport (
    A, B)
from broker.reactor import turn, epoll as e
    import router.log.disk, os
cimport router.effects as effects
from broker import logs  # from broker.version import VERSION
'''
    assert imported(text) == {
        "router.core.message", "broker.reactor.turn", "broker.reactor.epoll", "router.log.disk", "router.effects",
        "broker.logs"}  # fmt: skip


@pytest.mark.parametrize("package", ROOMS)
def test_a_room_imports_only_from_the_floors_below_it(package: str) -> None:
    floor_of = floors(package)
    for path in sources(*CODE):
        names = module_of(path).split(".")
        if names[0] != package or len(names) == 1:
            continue
        assert names[1] in floor_of, f"{path}: {names[1]} is on no floor"
        for module in imported(path.read_text(encoding="utf-8")):
            other = module.split(".")
            if other[0] == package and len(other) > 1 and other[1] != names[1]:
                assert floor_of[other[1]] < floor_of[names[1]], f"{path}: {names[1]} imports {module} from above"


def test_no_modules_import_in_a_circle_not_for_their_types_either() -> None:
    graph: dict[str, set[str]] = {}
    for path in sources(*CODE):
        graph.setdefault(module_of(path), set()).update(imported(path.read_text(encoding="utf-8")) - {module_of(path)})
    graphlib.TopologicalSorter(graph).prepare()
    assert len(graph) > 200, "the modules are found"


def test_every_room_says_what_lives_there() -> None:
    for package in PACKAGES:
        for folder in sorted({path.parent for path in sources(".py", ".pyx")} - {ROOT / package}):
            if folder.is_relative_to(ROOT / package):
                text = (folder / "__init__.py").read_text(encoding="utf-8")
                assert re.fullmatch(r'"""(?:[^"]|"(?!""))+"""\n', text), f"{folder}: more, or less, than a docstring"
                assert "may import" in text or "imports no" in text, f"{folder}: what may it import?"
