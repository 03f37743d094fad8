"""Which one-operator changes of an equation no test notices: `make mutants`, some minutes; not part of the suite.

    python tests/mutants.py                      a sample of 60 of all mutants
    python tests/mutants.py --only select.py     those of one file
    python tests/mutants.py --list               how many there are in every file

A mutant is the source tree with one operator, comparison or constant of one equation changed: + to -, * to /, a
comparison to its negation, a constant to twice its value, min to max. Thresholds of memory and speed (whatever has a
name in capitals), tolerances, guards against dividing by zero, the sign of symmetric noise, the end of a loop where
nothing changes any more (a difference from `last`) and how many are done at once (`NAME // ...`) are left alone. It is
run in a copy, against the tests of its room only, until the first of them fails: a mutant that fails none survives. A
survivor is a test that is missing, or a change that changes nothing; reading it says which.
"""

import argparse
import ast
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src"
ROOMS = {  # file of the library: tests that ought to notice
    "parts/aggregate.py": ("parts/test_aggregate.py", "parts/test_before_rule.py"),
    "parts/attack.py": ("parts/test_attack.py", "parts/test_before_rule.py"),
    "parts/before_rule.py": ("parts/test_before_rule.py",),
    "parts/accountant.py": ("parts/test_accountant.py",),
    "parts/denoise.py": ("parts/test_denoise.py",),
    "parts/example_noise.py": ("parts/test_example_noise.py", "learn/test_hidden_examples.py"),
    "parts/inclusion.py": ("parts/test_active.py",),
    "parts/objective.py": (
        "parts/test_objective.py",
        "methods/test_fedcurv.py",
        "methods/test_one_center.py",
        "laws/test_closed_forms.py",
    ),
    "parts/optimizer.py": ("parts/test_optimizer.py",),
    "parts/privacy.py": ("parts/test_privacy.py", "methods/test_dp_fedavg.py"),
    "parts/select.py": ("parts/test_select.py", "parts/test_active.py"),
    "learn/half.py": ("learn/test_half.py", "topology/clusters/test_how_many.py"),
    "learn/train.py": (
        "learn/test_train.py",
        "laws/test_closed_forms.py",
        "learn/test_batches.py",
        "learn/test_hidden_examples.py",
    ),
    "stacks/mixing.py": ("stacks/test_mixing.py",),
    "simulate/clock/seconds.py": ("simulate/clock/test_seconds.py",),
    "topology/cells/anchored.py": ("methods/test_fedmes.py",),
    "topology/cells/consensus.py": ("methods/test_fedmes.py", "topology/cells"),
    "topology/cells/weights.py": ("topology/cells/test_weights.py", "topology/cells", "methods/test_fedmes.py"),
    "topology/clusters/anchor.py": ("topology/clusters/test_anchor.py", "topology/clusters/test_seeding.py"),
    "topology/clusters/assignment.py": (
        "topology/clusters/test_assignment.py",
        "topology/clusters",
        "methods/test_tkm.py",
    ),
    "topology/clusters/candidates.py": ("topology/clusters/test_candidates.py", "methods/test_ifca.py"),
    "topology/clusters/how_many.py": ("topology/clusters/test_how_many.py",),
    "topology/clusters/seeding.py": (
        "topology/clusters/test_seeding.py",
        "topology/clusters/test_anchor.py",
        "methods/test_tkm.py",
        "topology/clusters/test_how_many.py",
    ),
    "topology/clusters/splitting.py": ("methods/test_cfl.py",),
    "topology/graphs/gossip.py": ("topology/graphs/test_gossip.py", "topology/graphs", "methods/test_matcha.py"),
    "topology/heads/covariance.py": ("topology/heads", "methods/test_dpa_sgd.py"),
    "topology/heads/related.py": ("methods/test_dpa_sgd.py", "methods/test_mocha.py"),
}
EQUIVALENT = {  # changes that change nothing, and why
    ("parts/inclusion.py", "45.0  ->  90.0"): "a bound of a bisection, which has steps to spare",
    ("parts/before_rule.py", "1.0  ->  2.0"): "clamped to one in the same line",
    ("parts/example_noise.py", "0.0  ->  1.0"): "a weight of what is zero in the same line, or of no noise",
    ("topology/heads/covariance.py", "tasks.abs().max()  ->  tasks.abs().min()"): "a scale does not matter",
}
BINARY = {ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult}
COMPARE = {ast.Lt: ast.GtE, ast.LtE: ast.Gt, ast.Gt: ast.LtE, ast.GtE: ast.Lt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq}
CALLS = {"round": "int", "max": "min", "min": "max", "argmin": "argmax", "argmax": "argmin", "sqrt": "exp"}
TINY = 1e-3  # constants below are tolerances
MEMORY = 32 << 30  # bytes of addresses: a mutant that wants more fails its test, and not the machine
SKIPPED = (ast.Raise, ast.Assert, ast.JoinedStr, ast.AnnAssign)  # messages, and fields with their types


def mutants(text: str) -> Iterator[tuple[int, str, str]]:
    """(line, what was changed, the whole text) of every mutant of a source text."""
    for place in range(sum(1 for _ in equations(ast.parse(text)))):
        tree = ast.parse(text)
        node = next(node for k, node in enumerate(equations(tree)) if k == place)
        before = ast.unparse(node)
        changed(node)
        yield node.lineno, f"{before}  ->  {ast.unparse(node)}", ast.unparse(tree)


def equations(tree: ast.AST) -> Iterator[ast.expr]:
    """Places in functions that can be changed, in order; checks of settings and messages are left alone."""
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef) and function.name not in ("__post_init__", "words", "__str__"):
            yield from _inside(function.body)


def _inside(nodes: list[ast.stmt]) -> Iterator[ast.expr]:
    todo: list[ast.AST] = list(reversed(nodes))
    while todo:
        node = todo.pop()
        if isinstance(node, (*SKIPPED, ast.FunctionDef)) or _said(node):
            continue
        if isinstance(node, ast.expr) and changeable(node) and not left_alone(node):
            yield node
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.FloorDiv) and ast.unparse(node.left).isupper():
            continue
        divisor = "1.0" if _called(node) == "where" else ""  # where(x > 0, x, 1.0): what is divided by, if not by zero
        todo += reversed([part for part in ast.iter_child_nodes(node) if ast.unparse(part) != divisor])


def _said(node: ast.AST) -> bool:
    return _called(node) in ("require", "warn", "within", "unknown")


def _called(node: ast.AST) -> str:
    called = node.func if isinstance(node, ast.Call) else None
    return str(getattr(called, "id", getattr(called, "attr", "")))


def left_alone(node: ast.expr) -> bool:
    """Whether it is about memory and speed (a name in capitals), adds a tolerance or noise, or is max(1, ...)."""
    other = node.comparators[0] if isinstance(node, ast.Compare) else getattr(node, "right", None)
    if isinstance(other, ast.Name) and other.id == "last":
        return True  # a loop that ends where nothing changes any more could as well go on
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Sub):
        if any(_called(part) == "normal" for part in ast.walk(node.right)):  # symmetric: as good subtracted
            return True
    if any(isinstance(part, ast.Name) and part.id.isupper() and len(part.id) > 1 for part in ast.walk(node)):
        return True
    near = [node] if isinstance(node, ast.Compare) else [node, *ast.iter_child_nodes(node)]
    values = [part.value for part in near if isinstance(part, ast.Constant)]
    return any(isinstance(value, float) and 0 < value < TINY for value in values) or (
        isinstance(node, ast.Call) and ast.unparse(node).startswith("max(1, ")
    )


def changeable(node: ast.expr) -> bool:
    """Whether `changed` has something to do."""
    if isinstance(node, ast.BinOp):
        return type(node.op) in BINARY
    if isinstance(node, ast.Compare):
        return type(node.ops[0]) in COMPARE
    if isinstance(node, ast.Constant):
        return type(node.value) is float
    return _called(node) in CALLS


def changed(node: ast.expr) -> None:
    """One operator, comparison, constant or function is another one, in place."""
    if isinstance(node, ast.BinOp):
        node.op = BINARY[type(node.op)]()
    elif isinstance(node, ast.Compare):
        node.ops[0] = COMPARE[type(node.ops[0])]()
    elif isinstance(node, ast.Constant):
        node.value = 2 * node.value if node.value else 1.0
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        node.func.id = CALLS[node.func.id]
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        node.func.attr = CALLS[node.func.attr]


def outcome(name: str, text: str, copy: Path, seconds: float) -> str:
    """What the room's tests say about a mutant: noticed, SURVIVES, or too slow or large, which count as noticed."""
    target = copy / "polycentric" / name
    original = target.read_text(encoding="utf-8")
    target.write_text(text, encoding="utf-8")
    tests = [str(ROOT / "tests" / test) for test in ROOMS[name]]
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-n0", "-p", "no:cacheprovider", "-m", "not long", *tests]
    setting = os.environ | {"PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"}
    try:
        done = subprocess.run(command, cwd=ROOT, env=setting, capture_output=True, timeout=seconds)
    except subprocess.TimeoutExpired:
        return "too slow"
    finally:
        target.write_text(original, encoding="utf-8")
    if done.returncode == -signal.SIGKILL:  # by the system, which has no memory left
        return "too large"
    if done.returncode not in (0, 1, 2):  # 1: a test fails; 2: it cannot even be imported
        raise SystemExit(f"pytest says {done.returncode}:\n{done.stdout.decode()}{done.stderr.decode()}")
    return "noticed" if done.returncode else "SURVIVES"


def every_outcome(found: list[tuple[str, int, str, str]], folder: Path, jobs: int, seconds: float) -> list[str]:
    """What is said of every mutant, `jobs` at a time, each in a copy of its own."""
    copies: SimpleQueue[Path] = SimpleQueue()
    for job in range(jobs):
        skip = shutil.ignore_patterns("__pycache__")
        copies.put(Path(shutil.copytree(SOURCE, folder / str(job), ignore=skip)))

    def tried(name: str, text: str) -> str:
        copy = copies.get()
        try:
            return outcome(name, text, copy, seconds)
        finally:
            copies.put(copy)

    def whole(name: str) -> str:
        return tried(name, ast.unparse(ast.parse((SOURCE / "polycentric" / name).read_text(encoding="utf-8"))))

    def mutant(one: tuple[str, int, str, str]) -> str:
        said = tried(one[0], one[3])
        print(f"{said:9} {one[0]}:{one[1]}  {one[2]}", flush=True)
        return said

    with ThreadPoolExecutor(jobs) as pool:
        names = list(dict.fromkeys(one[0] for one in found))
        for name, said in zip(names, pool.map(whole, names), strict=True):  # tests that fail by themselves say nothing
            if said != "SURVIVES":
                raise SystemExit(f"the tests of {name} fail, or take longer than --timeout, without any mutant")
        return list(pool.map(mutant, found))


def main() -> None:
    """A sample of all mutants, or those of one file."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--only", default="", help="files whose path contains this")
    options.add_argument("--sample", type=int, default=60, help="so many, drawn evenly; 0: all")
    options.add_argument("--seed", type=int, default=0, help="of the sample")
    options.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="so many at a time")
    options.add_argument("--timeout", type=float, default=300.0, help="seconds for one mutant")
    options.add_argument("--list", action="store_true", help="how many there are in every file")
    given = options.parse_args()
    found = [
        (name, *mutant)
        for name in ROOMS
        if given.only in name
        for mutant in mutants((SOURCE / "polycentric" / name).read_text(encoding="utf-8"))
        if (name, mutant[1]) not in EQUIVALENT
    ]
    if given.list:
        for name in ROOMS:
            print(f"{sum(name == mutant[0] for mutant in found):5}  {name}")
        print(f"{len(found):5}  in all")
        return
    if 0 < given.sample < len(found):
        found = sorted(random.Random(given.seed).sample(found, given.sample))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))  # also of those that are started
    with tempfile.TemporaryDirectory() as folder:
        said = every_outcome(found, Path(folder), given.jobs, given.timeout)
    counts = ", ".join(f"{said.count(word)} {word}" for word in sorted(set(said)))
    print(f"{len(said)} mutants: {counts}")


if __name__ == "__main__":
    main()
