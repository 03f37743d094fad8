"""Gradients without torch's compiler, and the compiler for who asks for it."""

import subprocess
import sys

import torch

from polycentric.learn.gradient import grad
from polycentric.tasks.classification import class_error


def ran(code: str) -> list[str]:
    """What a fresh interpreter prints, a word each."""
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()


def test_a_gradient_does_not_load_the_compiler_and_a_second_derivative_does_not() -> None:
    code = """
import sys, torch
from polycentric.learn.gradient import grad, vmap
cube = lambda x: (x ** 3).sum()
print(*vmap(grad(lambda x: grad(cube)(x).sum()))(torch.tensor([[1.0], [2.0]])).flatten().int().tolist())
print("torch._dynamo" in sys.modules)
"""
    assert ran(code) == ["6", "12", "False"]


def test_who_asks_for_the_compiler_has_it() -> None:
    code = """
import torch, polycentric.learn.gradient
print(torch._dynamo.config.__name__, torch._dynamo.compiled_autograd.__name__, torch._dynamo.__name__)
@torch.compile(backend="eager")
def twice(x):
    return 2 * x
print(int(twice(torch.tensor(3))))
"""
    assert ran(code) == ["torch._dynamo.config", "torch._dynamo.compiled_autograd", "torch._dynamo", "6"]


def test_a_compiler_that_is_there_before_us_stays() -> None:
    code = (
        "import torch._dynamo, polycentric.learn.gradient; print(torch._dynamo.__name__, type(torch._dynamo).__name__)"
    )
    assert ran(code) == ["torch._dynamo", "module"]


def test_the_error_of_classes_is_cross_entropy_and_so_is_its_gradient() -> None:
    outputs = 30 * torch.randn(7, 5, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    targets = torch.tensor([0, 1, 2, 3, 4, 0, 0])

    def theirs(z: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(z, targets, reduction="none")

    assert torch.equal(class_error(outputs, targets), theirs(outputs))
    mine, other = (
        grad(lambda z, f=f: f(z).square().sum())(outputs) for f in (lambda z: class_error(z, targets), theirs)
    )
    assert torch.equal(mine, other)
