"""What polycentric is built from, of what is installed here: licences, a bill of materials, a lock file, the floors.

    python supply/bill.py sbom        a bill of materials as JSON, CycloneDX 1.5, of what a user installs
    python supply/bill.py licences    docs/licences.md: a table of name, version, licence
    python supply/bill.py lock        supply/lock.txt: every tested version with the digest of its file; needs an index
    python supply/bill.py floors      the lowest versions that pyproject.toml allows, as pip takes them

All of it is read from the packages' own metadata; no address of an index is written anywhere.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tomllib
from collections.abc import Iterable
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parents[1]
SPDX = {  # what packages call a licence that SPDX has a name for; "BSD License" may be one of several
    "apache 2.0": "Apache-2.0",
    "apache software license": "Apache-2.0",
    "apache license 2.0": "Apache-2.0",
    "apache license, version 2.0": "Apache-2.0",
    "bsd-3-clause": "BSD-3-Clause",
    "isc license (iscl)": "ISC",
    "mit": "MIT",
    "mit license": "MIT",
    "python software foundation license": "PSF-2.0",
    "3-clause bsd license": "BSD-3-Clause",
    "mozilla public license 2.0 (mpl 2.0)": "MPL-2.0",
}


def project() -> dict[str, Any]:
    """The [project] table."""
    found: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return found


def needed(extras: Iterable[str] = ()) -> list[Requirement]:
    """What pyproject.toml asks for, itself and in some extras."""
    own = project()
    lines = [*own["dependencies"], *(line for extra in extras for line in own["optional-dependencies"][extra])]
    return [one for one in map(Requirement, lines) if canonicalize_name(one.name) != own["name"]]


def installed(extras: Iterable[str] = ()) -> dict[str, Distribution]:
    """Everything that is installed here because of it, by name, sorted; what is not here is left out."""
    found: dict[str, Distribution] = {}
    todo = [(one, "") for one in needed(extras)]
    while todo:
        one, extra = todo.pop()
        if one.marker is not None and not one.marker.evaluate({"extra": extra}):
            continue
        name = canonicalize_name(one.name)
        try:
            there = distribution(name)
        except PackageNotFoundError:
            continue
        wanted = [(Requirement(line), extra) for extra in ("", *one.extras) for line in there.requires or ()]
        if name not in found:
            found[name] = there
            todo += wanted
    return dict(sorted(found.items()))


def licence(there: Distribution) -> tuple[str, bool]:
    """What a package says of its licence, in a few words; and whether that is an SPDX expression."""
    if said := there.metadata.get("License-Expression"):
        return said, True
    marks = [line.rpartition(" :: ")[2] for line in there.metadata.get_all("Classifier") or () if line[:7] == "License"]
    words = (there.metadata.get("License") or "").strip().splitlines()
    for text in (*marks, *(words[:1] if len(words) == 1 else ())):
        if text.lower() not in ("osi approved", "unknown", ""):
            return SPDX.get(text.lower(), text[:60]), text.lower() in SPDX
    return "see its files" if words else "not said", False


def version(there: Distribution) -> str:
    """The public version: +cpu and the like say where it was built."""
    return Version(there.version).public


def sbom() -> dict[str, Any]:
    """A bill of materials of what a user installs (CycloneDX 1.5); the same bytes for the same packages."""
    own, parts = project(), installed()
    me = f"pkg:pypi/{own['name']}@{own['version']}"

    def refers(name: str) -> str:
        return f"pkg:pypi/{name}@{version(parts[name])}"

    def component(name: str, there: Distribution) -> dict[str, Any]:
        called, known = licence(there)
        held = [{"expression": called}] if known else [{"license": {"name": called}}]
        base = {"type": "library", "name": name, "version": version(there), "bom-ref": refers(name)}
        return base | {"purl": refers(name), "licenses": held}

    def asks(there: Distribution) -> list[str]:
        lines = [
            one
            for one in map(Requirement, there.requires or ())
            if not one.marker or one.marker.evaluate({"extra": ""})
        ]
        return sorted({refers(name) for one in lines if (name := canonicalize_name(one.name)) in parts})

    direct = sorted({refers(canonicalize_name(one.name)) for one in needed() if canonicalize_name(one.name) in parts})
    root = {"type": "library", "name": own["name"], "version": own["version"], "bom-ref": me, "purl": me}
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"component": root | {"licenses": [{"expression": own["license"]}]}},
        "components": [component(name, there) for name, there in parts.items()],
        "dependencies": [
            {"ref": me, "dependsOn": direct},
            *({"ref": refers(name), "dependsOn": asks(there)} for name, there in parts.items()),
        ],
    }


def licences() -> str:
    """The page docs/licences.md."""
    rows = [f"| {name} | {version(there)} | {licence(there)[0]} |" for name, there in installed().items()]
    head = (
        "# Licences of what is installed with polycentric\n\n"
        "polycentric itself is under Apache-2.0. Made by `make licences` from the metadata of the packages that the\n"
        "tests were run with, and of what those need in turn; optional packages are not among them.\n"
    )
    return "\n".join([head, "| package | version | licence, as it says itself |", "|---|---|---|", *rows]) + "\n"


def lock() -> str:
    """The lock file: every version that is installed here for development, with the digest of the file it came from."""
    pins = {name: there.version for name, there in installed(["dev", "tensorboard", "deploy"]).items()}
    wanted = [f"{name}=={pin}" for name, pin in pins.items()]
    asked = ["install", "-q", "--dry-run", "--ignore-installed", "--no-deps", "--only-binary", ":all:", "--report", "-"]
    report = subprocess.run([sys.executable, "-m", "pip", *asked, *wanted], check=True, capture_output=True, text=True)
    files: dict[str, str] = {}
    for one in json.loads(report.stdout)["install"]:
        files[canonicalize_name(one["metadata"]["name"])] = one["download_info"]["archive_info"]["hashes"]["sha256"]
    python = ".".join(map(str, sys.version_info[:2]))
    head = [
        f"# The versions that the tests were run with, on Linux x86-64 with Python {python};",
        "# made by `python supply/bill.py lock`. To install exactly these files:",
        "#   pip install --require-hashes --no-deps -r supply/lock.txt && pip install --no-deps -e .",
        "# torch is the build for CPUs (+cpu), which its authors offer on an index of their own.",
    ]
    return "\n".join([*head, *(f"{name}=={pin} --hash=sha256:{files[name]}" for name, pin in pins.items())]) + "\n"


def floors() -> list[str]:
    """The lowest version of everything that a user installs: numpy>=1.26 is numpy==1.26."""
    out = []
    for one in needed():
        least = [part.version for part in one.specifier if part.operator == ">="]
        assert len(least) == 1, f"{one} has no floor"
        out.append(f"{one.name}=={least[0]}")
    return out


def main() -> None:
    """One of the four."""
    parser = argparse.ArgumentParser(description="What polycentric is built from.")
    parser.add_argument("what", choices=["sbom", "licences", "lock", "floors"])
    what = parser.parse_args().what
    if what == "sbom":
        print(json.dumps(sbom(), indent=2))
    elif what == "floors":
        print("\n".join(floors()))
    else:
        path = ROOT / ("docs/licences.md" if what == "licences" else "supply/lock.txt")
        path.write_text(licences() if what == "licences" else lock(), encoding="utf-8")
        print(f"wrote {path.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
