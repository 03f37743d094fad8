"""Compile the C of polycentric when it is built or installed, by hatchling; by hand: `python supply/compile.py`.

Where there is no C compiler, or no Linux on an x86, nothing is compiled and the package is pure Python:
`polycentric.learn.cpu.library` looks for what was compiled, goes without, and `polycentric doctor` says so. `CC` names
another compiler.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

try:
    from hatchling.builders.hooks.plugin.interface import BuildHookInterface
except ImportError:  # by hand, where nothing is built
    BuildHookInterface = object

PLACE = Path("src", "polycentric", "learn", "cpu")


class Compile(BuildHookInterface):
    """`steps.c` to `steps.compiled`, beside it."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Before a wheel is made, or an editable installation."""
        if self.target_name != "wheel" or not compiled(Path(self.root)):
            return
        build_data["artifacts"].append(str(PLACE / "steps.compiled"))
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{sys.platform}_{platform.machine()}"


def compiled(root: Path) -> bool:
    """Whether there is a `steps.compiled` of the present source now."""
    source, made = root / PLACE / "steps.c", root / PLACE / "steps.compiled"
    name = hashlib.sha256(source.read_bytes()).hexdigest()
    if made.exists() and name.encode() in made.read_bytes():
        return True
    try:
        made.unlink(missing_ok=True)
        compiler = shlex.split(os.environ.get("CC") or "cc")
        if (sys.platform, platform.machine()) != ("linux", "x86_64") or not shutil.which(compiler[0]):
            return False
        _compile(compiler, source, made, name)
    except (OSError, ValueError) as error:
        print(f"{source.name} could not be compiled, so small models take longer:\n{error}", file=sys.stderr)
    return made.exists()


def _compile(compiler: list[str], source: Path, made: Path, name: str) -> None:
    new = made.with_name(f"steps.{os.getpid()}.compiled")
    flags = [*"-O2 -mavx512f -fPIC -shared".split(), f'-DPOLYCENTRIC_SOURCE="{name}"']
    try:
        done = subprocess.run([*compiler, *flags, source, "-lm", "-o", new], capture_output=True, text=True)
        if done.returncode or not new.exists():
            raise OSError(done.stderr or f"{shlex.join(compiler)} wrote nothing")
        new.replace(made)  # whoever looks meanwhile finds nothing, or all of it
    finally:
        new.unlink(missing_ok=True)


if __name__ == "__main__":
    here = Path(__file__).resolve().parents[1]
    (here / PLACE / "steps.compiled").unlink(missing_ok=True)
    sys.exit(not compiled(here))
