"""What the program is built from is written down, whole, and as it is."""

from __future__ import annotations

import importlib.util
import json
import re
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import ModuleType

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parents[2]
LINE = re.compile(r"([a-z0-9-]+)==(\S+) --hash=sha256:[0-9a-f]{64}")
TYPES = {  # of a component, in CycloneDX 1.5
    *("application", "framework", "library", "container", "platform", "operating-system", "device", "device-driver"),
    *("firmware", "file", "machine-learning-model", "data"),
}


@pytest.fixture(scope="module")
def bill() -> ModuleType:
    spec = importlib.util.spec_from_file_location("bill", ROOT / "supply" / "bill.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def locked() -> dict[str, str]:
    """Versions by name, of the lock file."""
    lines = [line for line in (ROOT / "supply" / "lock.txt").read_text().splitlines() if line[:1] != "#"]
    found = [LINE.fullmatch(line) for line in lines]
    assert all(found), "every line is a name, a version and a digest, and nothing else: no address"
    return {match[1]: match[2] for match in found if match}


def as_locked(locked: dict[str, str]) -> None:
    """Skip where other versions are installed than those that were tested."""
    for name, pin in locked.items():
        try:
            other = version(name) != pin
        except PackageNotFoundError:
            other = True
        if other:
            pytest.skip(f"{name} is not the version of the lock file")


def test_the_lock_file_has_what_pyproject_asks_for(bill: ModuleType, locked: dict[str, str]) -> None:
    for one in bill.needed(["dev", "tensorboard", "deploy"]):
        pin = locked[canonicalize_name(one.name)]
        assert one.specifier.contains(Version(pin).public), f"{one} is not met by {pin}"


def test_the_lock_file_is_whole(bill: ModuleType, locked: dict[str, str]) -> None:
    as_locked(locked)
    assert {name: there.version for name, there in bill.installed(["dev", "tensorboard", "deploy"]).items()} == locked


def test_floors_are_below_what_is_tested(bill: ModuleType, locked: dict[str, str]) -> None:
    floors = [Requirement(line) for line in bill.floors()]
    assert [one.name for one in floors] == [one.name for one in bill.needed()]
    for one in floors:
        (only,) = one.specifier
        assert Version(only.version) <= Version(locked[canonicalize_name(one.name)])


def test_what_is_imported_is_asked_for(bill: ModuleType) -> None:
    """Modules of others that our source imports, outside of the optional ones, have a line in pyproject.toml."""
    modules = {"scikit-learn": "sklearn", "pillow": "PIL", "dp-accounting": "dp_accounting"}
    asked = {modules.get(one.name, one.name) for one in bill.needed()}
    optional = {"tensorboard", "mlflow", "wandb", "onnx", "onnxscript", "onnxruntime", "pyarrow", "pandas", "triton"}
    optional |= {"cryptography", "flwr", "httpx", "starlette", "uvicorn"}
    import sys

    names = {
        match[1]
        for path in (ROOT / "src").rglob("*.py")
        for match in re.finditer(r"^\s*(?:import|from) ([a-zA-Z_]\w*)", path.read_text(), re.MULTILINE)
    }
    others = names - set(sys.stdlib_module_names) - {"polycentric", "__future__"} - asked - optional
    assert {name for name in others if importlib.util.find_spec(name) is not None} == set()


def test_the_page_of_licences_is_current(bill: ModuleType, locked: dict[str, str]) -> None:
    as_locked(locked)
    assert (ROOT / "docs" / "licences.md").read_text("utf-8") == bill.licences(), "make licences"


def test_the_bill_of_materials_has_what_its_specification_requires(bill: ModuleType) -> None:
    found = json.loads(json.dumps(bill.sbom()))
    assert found["bomFormat"] == "CycloneDX" and found["specVersion"] == "1.5"
    assert isinstance(found["version"], int) and found["version"] >= 1
    parts = [found["metadata"]["component"], *found["components"]]
    refs = [part["bom-ref"] for part in parts]
    assert len(set(refs)) == len(refs) > 10
    for part in parts:
        assert part["type"] in TYPES and part["name"] and part["version"]
        assert re.fullmatch(r"pkg:pypi/[a-z0-9-]+@[^/@]+", part["purl"])
        (held,) = part["licenses"]  # an expression alone, or a licence by its name
        assert held.keys() == {"expression"} or held["license"].keys() == {"name"}
    assert sorted(one["ref"] for one in found["dependencies"]) == sorted(refs)
    assert {ref for one in found["dependencies"] for ref in one["dependsOn"]} <= set(refs)
    direct = {ref.split("/")[1].split("@")[0] for ref in found["dependencies"][0]["dependsOn"]}
    assert direct == {canonicalize_name(one.name) for one in bill.needed()}


def test_a_licence_is_what_the_package_says(bill: ModuleType) -> None:
    for there in bill.installed().values():
        said, known = bill.licence(there)
        assert said and (not known or "License" not in said)
