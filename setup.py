"""Build the compiled modules: each .pyx with a .pxd beside it, in parallel, and nothing else.

Two switches, for builds in a tree of their own (see the Makefile): SHOAL_CHECKED=1 compiles with bounds checks and
gcc's sanitizers and defines SHOAL_CHECKED, SHOAL_LINETRACE=1 compiles for line coverage of .pyx files.
"""

import os
import sys
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.sdist import sdist
from setuptools.modified import newer_group

PACKAGES = ("router", "mesh", "broker", "analytics")
CHECKED = bool(os.environ.get("SHOAL_CHECKED"))
LINETRACE = bool(os.environ.get("SHOAL_LINETRACE"))
JOBS = len(os.sched_getaffinity(0))

DIRECTIVES = {
    "language_level": "3",
    "boundscheck": CHECKED,
    "wraparound": False,
    "cdivision": True,
    "initializedcheck": CHECKED,
    "nonecheck": CHECKED,
    "overflowcheck": False,
    "embedsignature": True,
    "linetrace": LINETRACE,
    "profile": False,
}
MACROS = [("SHOAL_CHECKED", "1")] if CHECKED else []
COMPILE = ["-O2", "-fno-strict-aliasing"]
LINK = []
OPENSSL = ["-l:libssl.so.3", "-l:libcrypto.so.3"]  # the libraries themselves: their headers are not needed
if LINETRACE:
    MACROS += [("CYTHON_TRACE", "1"), ("CYTHON_TRACE_NOGIL", "1"), ("CYTHON_USE_SYS_MONITORING", "0")]
if CHECKED:
    # Undefined behaviour ends the process; -O1 keeps the stack of a report readable.
    SANITIZE = ["-fsanitize=address,undefined", "-fno-sanitize-recover=undefined"]
    COMPILE = ["-O1", "-g", "-fno-omit-frame-pointer", "-fno-strict-aliasing", *SANITIZE]
    LINK = SANITIZE


class BuildCompiledModules(build_ext):
    """Cython first, all modules at once; then the C compiler, as many at a time as there are cores."""

    def run(self) -> None:
        from Cython.Build import cythonize

        described = [Extension(module.name, list(module.sources)) for module in self.extensions]
        generated = cythonize(
            described,
            # Beside the sources it would mix the C of a checked build with that of a plain one. Cython's plugin for
            # coverage looks for it there and nowhere else: without, a report has no line of any .pyx.
            build_dir=None if LINETRACE else "build/cython",
            compiler_directives=DIRECTIVES,
            # More processes than modules to translate only cost their start.
            nthreads=JOBS if len(described) > 1 else 0,
            quiet=True,
        )
        sources = {module.name: module.sources for module in generated}
        for module in self.extensions:
            module.sources = sources[module.name]
            # For the sdist. What follows from a changed .pxd Cython knows better: it has just translated that anew.
            module.depends = []
        self.parallel = self.parallel or JOBS
        super().run()

    def build_extension(self, module: Extension) -> None:
        if self.force or newer_group(module.sources, self.get_ext_fullpath(module.name), "newer"):
            sys.stdout.write(f"  compiling {module.name}\n")  # in one piece, as several threads do it at once
        super().build_extension(module)


class Sources(sdist):
    """What is needed to build and nothing else; setuptools would add tests/test*.py unasked."""

    def make_distribution(self) -> None:
        self.filelist.files = [name for name in self.filelist.files if not name.startswith("tests/")]
        super().make_distribution()


def uses_openssl(source: Path) -> bool:
    return source.stem == "openssl" or "broker.transport.openssl cimport" in source.read_text("utf-8")


def compiled_modules() -> list[Extension]:
    # Paths stay relative, as sdist and build_ext want them; both run in this folder.
    here = Path(__file__).resolve().parent
    return [
        Extension(
            ".".join(path.relative_to(here).with_suffix("").parts),
            [str(path.relative_to(here))],
            # Packages stand in the order of who may cimport whom.
            depends=[
                str(header.relative_to(here))
                for other in PACKAGES[: PACKAGES.index(package) + 1]
                for header in (here / other).rglob("*.pxd")
            ],
            define_macros=MACROS,
            extra_compile_args=COMPILE,
            extra_link_args=LINK + (OPENSSL if uses_openssl(path) else []),
        )
        for package in PACKAGES
        for path in sorted((here / package).rglob("*.pyx"))
    ]


setup(ext_modules=compiled_modules(), cmdclass={"build_ext": BuildCompiledModules, "sdist": Sources})
