"""Build the compiled modules: each .pyx beside its .pxd, nothing else."""

import os
from pathlib import Path

from Cython.Build import cythonize
from setuptools import Extension, setup

CHECKED = bool(os.environ.get("SHOAL_CHECKED"))

DIRECTIVES = {
    "language_level": "3",
    "boundscheck": CHECKED,
    "wraparound": False,
    "cdivision": True,
    "initializedcheck": CHECKED,
    "overflowcheck": False,
    "embedsignature": True,
}

extensions = [
    Extension(
        f"{path.parent.name}.{path.stem}",
        [f"{path.parent.name}/{path.name}"],
        extra_compile_args=["-O2", "-fno-strict-aliasing"],
    )
    for package in ("router", "broker", "mesh")
    for path in sorted((Path(__file__).parent / package).glob("*.pyx"))
]

setup(ext_modules=cythonize(extensions, compiler_directives=DIRECTIVES, nthreads=os.cpu_count() or 1, quiet=True))
