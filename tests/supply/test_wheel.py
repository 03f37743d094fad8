"""What is installed is whole: the wheel holds every file of the package, and runs without the repository."""

from __future__ import annotations

import os
import runpy
import shutil
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

from polycentric.learn.cpu.library import library

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "polycentric"
pytestmark = pytest.mark.xdist_group("wheel")  # one worker: it is built once


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    build = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "-q",
        "--no-deps",
        "--disable-pip-version-check",
        "-w",
        str(folder),
        ".",
    ]
    made = subprocess.run(build, cwd=ROOT, capture_output=True, text=True, timeout=200)
    if made.returncode and "hatchling" in made.stderr:
        pytest.skip("hatchling cannot be had here")
    assert made.returncode == 0, made.stderr
    (found,) = folder.glob("*.whl")
    return found


def test_the_wheel_holds_every_file_of_the_package(wheel: Path) -> None:
    compiled = "polycentric/learn/cpu/steps.compiled"  # where there is a compiler
    there = {name for name in zipfile.ZipFile(wheel).namelist() if name.startswith("polycentric/")}
    assert (compiled in there) == (library() is not None)
    tracked = subprocess.run(
        ["git", "ls-files", str(PACKAGE)], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split()
    assert there - {compiled} == {str(Path(name).relative_to("src")) for name in tracked}


def test_it_runs_without_the_repository(wheel: Path, tmp_path: Path) -> None:
    zipfile.ZipFile(wheel).extractall(tmp_path / "installed")
    env = {**os.environ, "PYTHONPATH": str(tmp_path / "installed"), "OMP_NUM_THREADS": "1"}
    for words in (["--version"], ["run", "fedavg", "--rounds", "1", "--clients", "3", "--quiet", "--out", "run"]):
        ended = subprocess.run(
            [sys.executable, "-m", "polycentric", *words],
            cwd=tmp_path,
            env=env,
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert ended.returncode == 0, ended.stderr
    where = "import importlib.util as u; print(u.find_spec('polycentric').origin)"  # whence it comes, without torch
    found = subprocess.run([sys.executable, "-c", where], cwd=tmp_path, env=env, capture_output=True, text=True)
    assert str(tmp_path) in found.stdout


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_the_demonstration_runs_in_an_environment_with_nothing_else(wheel: Path, tmp_path: Path) -> None:
    venv.create(tmp_path / "empty", with_pip=True)
    python = tmp_path / "empty" / "bin" / "python"
    subprocess.run([python, "-m", "pip", "install", "-q", str(wheel)], check=True, timeout=1500)
    env = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    command = [tmp_path / "empty" / "bin" / "polycentric", "demo", "--quiet"]
    ended = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, ended.stderr
    assert "fesem" in ended.stdout


def test_a_shell_completes_commands() -> None:
    env = {**os.environ, "_POLYCENTRIC_COMPLETE": "complete_bash", "COMP_WORDS": "polycentric fed", "COMP_CWORD": "1"}
    command = [
        sys.executable,
        "-c",
        "import sys; sys.argv[0] = 'polycentric'; from polycentric.cli import main; main()",
    ]
    ended = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60)
    assert ended.stdout.split() == ["federate"]


@pytest.mark.parametrize("compiler", ["", "'", "nothing-of-that-name", "true", "false"])
def test_a_compiler_that_is_none_leaves_nothing_behind(
    compiler: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    compile_ = runpy.run_path(str(ROOT / "supply" / "compile.py"))
    source = tmp_path / compile_["PLACE"] / "steps.c"
    source.parent.mkdir(parents=True)
    source.write_text("no C at all")
    monkeypatch.setenv("CC", compiler)
    assert not compile_["compiled"](tmp_path)
    assert [path.name for path in source.parent.iterdir()] == ["steps.c"]
    if compiler != "nothing-of-that-name" and sys.platform == "linux" and shutil.which(compiler or "cc"):
        assert "small models take longer" in capsys.readouterr().err
