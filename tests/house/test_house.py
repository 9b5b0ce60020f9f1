"""The rules of the house that no other tool holds: what is compiled, who may cimport whom, and what is committed."""

import ast
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("broker", "mesh", "router", "analytics")
MAY_IMPORT = {
    "broker": {"broker", "mesh", "router"},
    "mesh": {"mesh", "router"},
    "router": {"router"},
    "analytics": {"analytics", "router"},
}
# What would bring waiting, a clock, chance or the world into the router, by Python name and by C header.
OUTSIDE_ROUTER = re.compile(
    r"^\s*(?:import|cimport|from|cdef extern from)\s+[\"<]?"
    r"(asyncio|datetime|os|posix|random|secrets|select|signal|socket|ssl|structlog|subprocess|sys/|threading|time|trio|"
    r"uuid|zmq|unistd|pthread|errno|libc\.(?:time|signal|errno))\b",
    re.MULTILINE,
)
# The shell of the commit log is the router's only door to the world, and what goes through it has a name here.
DOORS = {
    "log/disk.py": {"os", "errno"}, "log/log_writer.py": {"threading"},
    "retained/lmdb_environment.py": {"errno", "threading"}, "retained/pending_changes.py": {"threading"},
    "retained/resident_pages.pyx": {"libc.errno", "posix"}, "retained/page_check.pyx": {"libc.errno", "posix"},
}  # fmt: skip
TOP_LEVEL = {
    # pyspark_shoal.py: Spark looks for a source in top-level modules of this kind of name.
    "CHANGELOG.md", "CONTRIBUTING.md", "LICENSE", "Makefile", "README.md", "SECURITY.md", "pyproject.toml",
    "pyspark_shoal.py", "setup.py", "shoal.py", "shoal_packages.py",
    "analytics", "broker", "deploy", "docs", "mesh", "router", "tests",
}  # fmt: skip
CODE = {".py", ".pyx", ".pxd"}
LINES_MAX = 600
FUNCTION_LINES_MAX = 60

DOCS = ROOT / "docs"
GENERATED = {"changes"}  # folders of docs/ whose files are parts of another page, and no pages
# A Markdown link, and code that is a file's path or, with its parentheses, a function's or a class's name.
LINK = re.compile(r"\]\(([^)\s#]+)(?:#[^)]*)?\)")
CODE_SPAN = re.compile(r"`([^`\n]+)`")
FILE = re.compile(r"(?:broker|mesh|router|analytics|tests)/[\w/.-]+\.(?:pyx|pxd|py|toml)")
CALLED = re.compile(r"(?:(\w+)\.)?(\w+)\(\)")

# A cimport or import line, as far as the first package's name.
IMPORTED = re.compile(r"^\s*(?:from|import|cimport)\s+([A-Za-z_]\w*)", re.MULTILINE)


def sources(*suffixes: str) -> list[Path]:
    return sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*") if path.suffix in suffixes)


def tracked() -> list[Path]:
    """The files that are committed, or would be; without git, those that a release's folder holds."""
    if not (ROOT / ".git").exists() or shutil.which("git") is None:
        ignored = {".venv", ".cache", "build", "dist", "__pycache__"}
        found = [path for path in ROOT.rglob("*") if not ignored & set(path.relative_to(ROOT).parts)]
        return [path for path in found if path.is_file() and path.suffix not in {".so", ".pyc"}]
    command = ["git", "-c", f"safe.directory={ROOT}", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE).stdout.split(b"\0")
    return [path for name in names if name and (path := ROOT / os.fsdecode(name)).is_file()]


def without_strings_and_comments(text: str) -> str:
    return re.sub(r'"""(?:.|\n)*?"""|#[^\n]*', "", text)


def test_a_module_is_compiled_exactly_when_it_is_a_pyx_with_a_pxd_beside_it() -> None:
    for path in sources(".pyx"):
        assert path.with_suffix(".pxd").exists(), f"{path}: no .pxd beside it"
        assert not path.with_suffix(".py").exists(), f"{path}: a .py of the same name"
    for path in sources(".pxd"):
        # The package's own, which lets Cython find the others, is the one that belongs to a .py.
        belongs_to = path.with_suffix(".py" if path.name == "__init__.pxd" else ".pyx")
        assert belongs_to.exists(), f"{path}: no {belongs_to.name} beside it"
    for path in sources(".so"):
        assert path.with_name(path.name.partition(".")[0] + ".pyx").exists(), f"{path}: its source is gone"


def test_imports_and_cimports_point_from_broker_over_mesh_to_router() -> None:
    for path in sources(*CODE):
        package = path.relative_to(ROOT).parts[0]
        for name in IMPORTED.findall(without_strings_and_comments(path.read_text(encoding="utf-8"))):
            if name in PACKAGES:
                assert name in MAY_IMPORT[package], f"{path}: {package} imports {name}"


def test_the_router_knows_no_socket_no_waiting_no_clock_and_no_chance() -> None:
    for path in sources(*CODE):
        if path.is_relative_to(ROOT / "router"):
            text = without_strings_and_comments(path.read_text(encoding="utf-8"))
            found = set(OUTSIDE_ROUTER.findall(text)) - DOORS.get(str(path.relative_to(ROOT / "router")), set())
            assert not found, f"{path}: {found}"


def c_functions(text: str) -> list[str]:
    """The declarations of C functions in a .pxd, each on one line; those of C headers are not ours to declare."""
    declarations: list[str] = []
    open_line = ""
    in_header = False
    for line in without_strings_and_comments(text).splitlines():
        if line and not line[0].isspace():
            in_header = line.startswith("cdef extern")
        if in_header:
            continue
        open_line = f"{open_line} {line.strip()}".strip()
        if open_line.count("(") > open_line.count(")"):
            continue
        # The name comes before any "=": an initial value may call something too.
        if not open_line.startswith("cdef class") and re.match(r"(?:cdef|cpdef|ctypedef)\b[^=]*\w\s*\(", open_line):
            declarations.append(open_line)
        open_line = ""
    return declarations


RETURNS_AN_OBJECT = re.compile(
    r"cp?def (?:inline )?(?:(?:object|bytes|str|tuple|list|dict|set|int object|bytearray|memoryview|[A-Z]\w+) )?\w+\("
)


def test_every_c_return_type_says_except_or_noexcept() -> None:
    assert c_functions("cdef int f(self,\n             int a) except -1\ncdef class A:\n    cdef int x\n") == [
        "cdef int f(self, int a) except -1"
    ]
    for path in sources(".pxd"):
        for declaration in c_functions(path.read_text(encoding="utf-8")):
            # A Python object needs neither: NULL is its exception.
            if RETURNS_AN_OBJECT.match(declaration):
                continue
            assert re.search(r"\)\s*(?:noexcept|except)\b", declaration), f"{path}: {declaration}"


def test_no_file_is_too_long_for_one_head() -> None:
    for path in tracked():
        if path.suffix in CODE:
            length = len(path.read_text(encoding="utf-8").splitlines())
            assert length <= LINES_MAX, f"{path}: {length} lines"


def set_from_outside(text: str) -> set[str]:
    """The attributes that are assigned to and not those of `self`."""
    return {
        ast.unparse(node)
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and ast.unparse(node.value) != "self"
    }


@pytest.mark.parametrize("name", ["worker.py", "mesh_links.py"])
def test_what_a_worker_is_made_of_has_nothing_hung_onto_it_afterwards(name: str) -> None:
    text = "a.b = self.c = 1\nself.d.e: int = 1\nself.f = a.g\nh, i.j = 1, 2\nk.l += 1"
    assert set_from_outside(text) == {"a.b", "self.d.e", "i.j", "k.l"}
    # It comes by the constructor, or, where the object must be there first, by a method with a name.
    assert set_from_outside((ROOT / "broker/worker" / name).read_text(encoding="utf-8")) == set()


FUNCTION = re.compile(r"( *)(?:async def|cpdef|cdef|def)\b(?! class| enum| struct| extern)[^=]*?\b(\w+)\s*\(")


def lengths_of_functions(text: str) -> dict[str, int]:
    """The lines of each function of a .py or .pyx from its name on, without those of its docstring."""
    found = {}
    lines = text.splitlines()
    for first, line in enumerate(lines):
        beginning = FUNCTION.match(line)
        if beginning is None:
            continue
        end = first + 1
        while lines[first:end] and "".join(lines[first:end]).count("(") > "".join(lines[first:end]).count(")"):
            end += 1  # a signature's last line may be as little indented as its first
        last = end
        while end < len(lines) and (not lines[end].strip() or lines[end].startswith(f"{beginning[1]} ")):
            end += 1
            if lines[end - 1].strip():
                last = end
        body = re.sub(r'"""(?:.|\n)*?"""\n?', "", "\n".join(lines[first:last]), count=1)
        found[beginning[2]] = max(found.get(beginning[2], 0), len(body.splitlines()))
    return found


def test_no_function_is_too_long_for_one_look() -> None:
    text = 'def a(\n    b,\n) -> int:\n    """One.\n\n    Two.\n    """\n    return b\n\n'
    text += "cdef int c(int d) except -1:\n    return d\n"
    assert lengths_of_functions(text) == {"a": 4, "c": 2}
    for path in sources(".py", ".pyx", ".pxd"):
        for name, length in lengths_of_functions(path.read_text(encoding="utf-8")).items():
            assert length <= FUNCTION_LINES_MAX, f"{path}: {name}() has {length} lines"


def test_every_module_and_every_public_name_in_our_packages_says_what_it_is() -> None:
    for path in sources(".py"):
        module = ast.parse(path.read_text(encoding="utf-8"))
        assert ast.get_docstring(module), f"{path}: no docstring"
    for path in sources(".pyx"):
        assert re.match(r'(?:#[^\n]*\n)*\s*"""', path.read_text(encoding="utf-8")), f"{path}: no docstring"


def test_no_source_cites_a_text_that_is_not_in_this_tree() -> None:
    # There was a design before there was code; what holds of it is in docs/ARCHITECTURE.md and docs/decisions.
    for path in sources(*CODE):
        assert re.search(r"\bDESIGN\b", path.read_text(encoding="utf-8")) is None, path


def test_the_first_line_of_a_docstring_names_who_takes_part() -> None:
    # Client, peer, worker, operator, caller, publisher, ...: CONTRIBUTING.md, Comments.
    unnamed = re.compile(r"\b(?:whoever|somebody|nobody|anybody|everybody)\b", re.IGNORECASE)
    assert unnamed.search("Return who it is; None: nobody's.")
    for path in sources(*CODE):
        for line in re.findall(r'^[ \t]*"""([^"\n]+)', path.read_text(encoding="utf-8"), re.MULTILINE):
            assert unnamed.search(line) is None, f"{path}: {line}"


def test_the_top_level_is_what_was_agreed() -> None:
    entries = {path.relative_to(ROOT).parts[0] for path in tracked()}
    assert {entry for entry in entries if not entry.startswith(".")} == TOP_LEVEL


def test_nothing_committed_names_a_registry_host_or_a_path_of_one_machine() -> None:
    # Patterns, so that this file passes its own test.
    host = re.compile(r"\b(?:pypi[.]org|pythonhosted[.]org|npmjs[.]org|yarnpkg[.]com|deb[.]debian[.]org)\b")
    folder = re.compile(r"/(?:work/|tmp/wt|tmp/venv|home/\w|root/\w|Users/\w)")
    for path in tracked():
        text = path.read_text(encoding="utf-8", errors="replace")
        for pattern in (host, folder):
            found = pattern.search(text)
            assert found is None, f"{path}: {found.group()}"


def test_every_change_note_says_what_kind_it_is() -> None:
    for path in (DOCS / "changes").iterdir():
        if path.name not in {"README.md", "changelog.jinja"}:
            assert re.fullmatch(r"[a-z0-9-]+\.(?:feature|bugfix|removal)\.md", path.name), path


def test_the_newest_release_in_the_change_log_is_this_version() -> None:
    newest = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    version = re.search(r'VERSION = "(.+)"', (ROOT / "broker" / "version.py").read_text(encoding="utf-8"))
    assert newest is not None
    assert version is not None
    assert newest[1] == version[1], "make changelog"


# The pages ----------------------------------------------------------------------------------------------------------


def pages() -> list[Path]:
    return [path for path in tracked() if path.suffix == ".md" and path.parent != DOCS / "changes"]


def test_every_page_is_on_the_map() -> None:
    linked = {(DOCS / name).resolve() for name in LINK.findall((DOCS / "README.md").read_text(encoding="utf-8"))}
    missing = [
        str(path.relative_to(DOCS))
        for path in sorted(DOCS.rglob("*.md"))
        if path not in linked and path.name != "README.md" and not GENERATED & set(path.relative_to(DOCS).parts)
    ]
    assert not missing, f"not in docs/README.md: {missing}"


def test_every_link_of_a_page_leads_to_something() -> None:
    for path in pages():
        for target in LINK.findall(path.read_text(encoding="utf-8")):
            if "://" not in target and not target.startswith("mailto:"):
                assert (path.parent / target).exists(), f"{path}: {target}"


def test_a_page_names_a_module_by_a_path_that_exists() -> None:
    modules = {path.name for path in sources(".py", ".pyx")}
    for path in pages():
        for span in CODE_SPAN.findall(path.read_text(encoding="utf-8")):
            assert span not in modules, f"{path}: in which folder is {span}?"
            if FILE.fullmatch(span):
                assert (ROOT / span).is_file(), f"{path}: no file {span}"


def test_every_folder_of_tests_says_what_is_in_it() -> None:
    page = (ROOT / "tests" / "README.md").read_text(encoding="utf-8")
    folders = {
        path.relative_to(ROOT / "tests").parts[0]
        for path in tracked()
        if path.is_relative_to(ROOT / "tests") and path.parent != ROOT / "tests"
    }
    assert set(re.findall(r"^\| `(\w+)/` \|", page, re.MULTILINE)) == folders


def test_the_protocol_leaves_a_session_and_the_log_to_the_router() -> None:
    text = without_strings_and_comments((ROOT / "broker/reactor/protocol.pyx").read_text(encoding="utf-8"))
    for name in (r"\.incoming_(?!max)", r"\.outgoing\.on_", r"\.records\b", r"\.held_first", r"\.rests_on_record"):
        found = re.search(name, text)
        assert found is None, f"broker/reactor/protocol.pyx decides what is the router's: {found}"


def test_every_term_is_in_the_glossary_once_and_in_order() -> None:
    terms = re.findall(r"^\*\*(.+?)\*\*", (DOCS / "glossary.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert len(terms) >= 50
    assert terms == sorted(set(terms), key=str.casefold)


def defined(path: Path) -> dict[str, set[str]]:
    """The functions and classes that a module defines, by the class that they are in; "" has all of them."""
    found: dict[str, set[str]] = {"": set()}
    within = ""
    for line in path.read_text(encoding="utf-8").splitlines():
        statement = re.match(r"(\s*)(?:async def|def|class|cdef|cpdef)\b([^=#]*)", line)
        if statement is None:
            continue
        if not statement[1]:
            within = ""
        is_class = re.match(r"\s*(?:cdef )?class (\w+)", line)
        name = is_class or re.match(r"[^(]*?(\w+)\s*\(", statement[2])
        if name is not None:
            found[""].add(name[1])
            found.setdefault(within, set()).add(name[1])
        if is_class is not None and not statement[1]:
            within = is_class[1]
    return found


def named_in(text: str) -> list[tuple[str, str]]:
    """The files that a text names, and what each is said to define: a `path` is that of every `name()` behind it."""
    named: list[tuple[str, str]] = []
    file = ""
    for span in CODE_SPAN.findall(text):
        if FILE.fullmatch(span):
            file = span
            named.append((file, ""))
        elif CALLED.fullmatch(span):
            named.append((file, span))
    return named


@pytest.mark.parametrize("page", ["walks.md", "developing.md"])
def test_what_a_page_for_developers_names_is_where_it_says(page: str) -> None:
    assert named_in("`a()` in `router/a.py`: `B.c()`") == [("", "a()"), ("router/a.py", ""), ("router/a.py", "B.c()")]
    named = named_in((DOCS / page).read_text(encoding="utf-8"))
    assert len(named) > 60, "the page is read as it was meant to be"
    for file, name in named:
        path = ROOT / file
        assert path.is_file(), f"docs/{page}: {name or file}: no file {file}"
        if name:
            owner, function = CALLED.fullmatch(name).groups()
            assert function in defined(path).get(owner or "", set()), f"docs/{page}: {file} defines no {name}"


def test_the_table_of_behaviours_has_some_thirty_and_names_what_does_each() -> None:
    page = (DOCS / "developing.md").read_text(encoding="utf-8")
    table = page.partition("## Where is it?")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (?!behaviour|---)([^|]+) \| ([^|]+) \|", table, re.MULTILINE)
    assert len(rows) >= 30
    for behaviour, place in rows:
        assert any(name for _, name in named_in(place)), f"{behaviour}: which function or class?"


def test_the_public_module_only_re_exports() -> None:
    module = ast.parse((ROOT / "shoal.py").read_text(encoding="utf-8"))
    check = ["import shoal_packages", "shoal_packages.check('router', 'mesh', 'broker')"]  # what stands in the way
    assert [ast.unparse(statement) for statement in module.body[1:3]] == check
    for statement in module.body[3:]:
        is_all = isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == "__all__"
        assert isinstance(statement, ast.ImportFrom) or is_all, ast.unparse(statement)


@pytest.mark.parametrize(
    "name",
    [
        "run",
        "test",
        "lint",
        "test-checked",
        "mutants",
        "bench",
        "bench-check",
        "profile",
        "wheel",
        "fuzz",
        "test-leaks",
        "soak",
        "capacity",
        "demo",
        "bench-analytics",
        "test-lake-kills",
        "test-cluster",
        "changelog",
    ],
)
def test_the_makefile_has_the_targets_that_the_documentation_names(name: str) -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert re.search(rf"^(?:.* )?{name}(?: .*)?:", makefile, re.MULTILINE)
