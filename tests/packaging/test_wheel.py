"""The distributions: what is in them, and that the wheel serves clients from a fresh environment in an empty folder."""

import os
import re
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

from tests.support.process import ROOT

# All of them in one process: the distributions are built once.
pytestmark = [pytest.mark.packaging, pytest.mark.xdist_group("packaging")]

SOURCES = (
    "LICENSE", "README.md", "analytics", "broker", "mesh", "pyproject.toml", "pyspark_shoal.py", "router", "setup.py",
    "shoal.py", "shoal_packages.py",
)  # fmt: skip
ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith(("SHOAL_", "PYTHON"))}


# Whether everything needed is there shows without optimising it, in a third of the time.
COMPILER = f"""#!/bin/sh
exec {os.environ.get("CC", "cc")} "$@" -O0
"""


@pytest.fixture(scope="module")
def distributions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the sdist and the wheel, built from a copy of the tree that knows nothing of git."""
    tree = tmp_path_factory.mktemp("tree")
    for name in (*SOURCES, "tests", "docs", "deploy", "Makefile"):
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, tree / name, ignore=shutil.ignore_patterns("*.so", "__pycache__"))
        else:
            shutil.copy(ROOT / name, tree / name)
    out = tmp_path_factory.mktemp("dist")
    compiler = tmp_path_factory.mktemp("compiler") / "cc"
    compiler.write_text(COMPILER, encoding="utf-8")
    compiler.chmod(0o755)
    # The wheel is built from the sdist, so that nothing needed is missing from it.
    build(tree, out, "--sdist", compiler)
    unpacked = tmp_path_factory.mktemp("sdist")
    with tarfile.open(next(out.glob("*.tar.gz"))) as archive:
        archive.extractall(unpacked, filter="data")
    build(next(unpacked.iterdir()), out, "--wheel", compiler)
    return out


def build(source: Path, out: Path, kind: str, compiler: Path) -> None:
    # The environment that runs the tests has what the build needs.
    command = [sys.executable, "-m", "build", "--no-isolation", kind, "--outdir", str(out), str(source)]
    built = subprocess.run(
        command, env={**ENVIRONMENT, "CC": str(compiler)}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False
    )
    assert built.returncode == 0, built.stdout.decode()[-5000:]


def test_the_sdist_has_the_sources_and_neither_tests_nor_documents(distributions: Path) -> None:
    with tarfile.open(next(distributions.glob("*.tar.gz"))) as archive:
        names = [name.split("/", 1)[1] for name in archive.getnames() if "/" in name]
    tops = {name.split("/")[0] for name in names}
    assert tops - {"PKG-INFO", "setup.cfg", "shoal_mqtt.egg-info"} == set(SOURCES)
    assert not [name for name in names if name.endswith((".so", ".c"))]
    for suffix in (".pyx", ".pxd", ".py"):
        expected = {
            str(path.relative_to(ROOT))
            for top in ("analytics", "broker", "mesh", "router")
            for path in (ROOT / top).glob(f"*{suffix}")
        }
        assert expected <= set(names)


def test_the_wheel_has_compiled_modules_and_no_sources_of_them(distributions: Path) -> None:
    with zipfile.ZipFile(next(distributions.glob("*.whl"))) as archive:
        names = archive.namelist()
    tops = {name.split("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {
        "broker",
        "mesh",
        "router",
        "analytics",
        "pyspark_shoal.py",
        "shoal.py",
        "shoal_packages.py",
    }
    compiled = {re.sub(r"\..*", "", name) for name in names if name.endswith(".so")}
    assert compiled == {
        str(path.relative_to(ROOT).with_suffix(""))
        for top in ("analytics", "broker", "router", "mesh")
        for path in (ROOT / top).rglob("*.pyx")
    }
    assert not [name for name in names if name.endswith((".pyx", ".pxd", ".c"))]


def test_the_wheel_says_under_which_licence_it_may_be_used_and_has_its_text(distributions: Path) -> None:
    with zipfile.ZipFile(next(distributions.glob("*.whl"))) as archive:
        folder = next(name.split("/")[0] for name in archive.namelist() if ".dist-info/" in name)
        metadata = archive.read(f"{folder}/METADATA").decode().partition("\n\n")[0].splitlines()
        text = archive.read(f"{folder}/licenses/LICENSE")
    assert "License-Expression: Apache-2.0" in metadata
    assert "License-File: LICENSE" in metadata
    assert "Author: Shoal maintainers" in metadata
    assert text == (ROOT / "LICENSE").read_bytes()


def test_nothing_is_compiled_for_this_machine_alone() -> None:
    for name in ("setup.py", "Makefile", "pyproject.toml"):
        assert not re.search(r"-m(?:arch|tune|cpu)=", (ROOT / name).read_text(encoding="utf-8")), name


def test_the_wheel_serves_clients_from_a_fresh_environment_in_an_empty_folder(
    distributions: Path, tmp_path: Path
) -> None:
    venv.create(tmp_path / "venv", with_pip=True)
    binaries = tmp_path / "venv" / "bin"
    folder = tmp_path / "empty"
    folder.mkdir()

    def run(*command: str | Path) -> str:
        ran = subprocess.run(
            command,
            cwd=folder,
            env=ENVIRONMENT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=300,
            check=False,
        )
        assert ran.returncode == 0, ran.stdout.decode()
        return ran.stdout.decode()

    run(binaries / "pip", "install", "-q", "--disable-pip-version-check", next(distributions.glob("*.whl")))
    assert re.fullmatch(r"shoal \d+\.\d+\.\d+\n", run(binaries / "shoal", "--version"))
    serving = [binaries / "shoal", "serve", "--listen", "tcp://127.0.0.1:0"]
    with subprocess.Popen(
        serving, cwd=folder, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as broker:
        assert broker.stdout is not None
        url = next(found[0] for line in broker.stdout if (found := re.search(r"tcp://127\.0\.0\.1:\d+", line)))
        # Retained, so that who comes later gets it too.
        run(binaries / "shoal", "pub", "--url", url, "-t", "hello/world", "-m", "hi", "-q", "1", "-r")
        got = run(binaries / "shoal", "sub", "--url", url, "-t", "hello/#", "-v", "-C", "1", "-W", "60")
        assert "hello/world hi" in got
        broker.terminate()
        broker.communicate(timeout=30)
    assert broker.returncode == 0
    assert (folder / "shoal-data" / "lock").exists()
