"""Stacks: a row is a model, a layout names its slices, a cut gives every parameter one name."""

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import nn

from polycentric.errors import UsageError
from polycentric.stacks.stack import WHOLE, Cut, KeepPrivate, Layout, take, write

LAW = settings(max_examples=50)
shapes = st.lists(st.lists(st.integers(1, 3), max_size=3).map(tuple), max_size=5)


def layout_of(shapes):
    return Layout(tuple(f"t{i}" for i in range(len(shapes))), tuple(shapes))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 2, 3)
        self.frozen = nn.Linear(3, 3).requires_grad_(False)
        self.head = nn.Linear(4, 2)
        self.scale = nn.Parameter(torch.tensor(2.0))


# -- layout --------------------------------------------------------------------------------------------------


def test_a_layout_holds_the_trained_parameters_in_the_modules_order():
    layout = Layout.of(Net())
    assert layout.names == ("scale", "conv.weight", "conv.bias", "head.weight", "head.bias")
    assert layout.shapes == ((), (2, 1, 3, 3), (2,), (2, 4), (2,))
    assert layout.width == 1 + 18 + 2 + 8 + 2


@LAW
@given(shapes, st.integers(0, 10**6))
def test_a_row_and_its_views_are_the_same_numbers(shapes, seed):
    layout = layout_of(shapes)
    row = torch.randn(layout.width, generator=torch.Generator().manual_seed(seed))
    views = layout.views(row)
    assert {name: tuple(view.shape) for name, view in views.items()} == dict(
        zip(layout.names, layout.shapes, strict=True)
    )
    assert torch.equal(layout.row(views), row)


@LAW
@given(shapes, st.integers(0, 4))
def test_views_of_a_stack_are_the_views_of_its_rows(shapes, models):
    layout = layout_of(shapes)
    stack = torch.arange(models * layout.width).view(models, layout.width)
    whole = layout.views(stack)
    for k in range(models):
        one = layout.views(stack[k])
        assert all(torch.equal(whole[name][k], one[name]) for name in layout.names)


@LAW
@given(shapes.filter(bool))
def test_views_copy_nothing(shapes):
    layout = layout_of(shapes)
    stack = torch.zeros(3, layout.width)
    for view in layout.views(stack).values():
        assert view.untyped_storage().data_ptr() == stack.untyped_storage().data_ptr()
        view.fill_(1)
    assert bool((stack == 1).all())


def test_a_row_of_a_module_gives_the_module_back():
    module = Net()
    layout = Layout.of(module)
    row = layout.row(dict(module.named_parameters()))
    assert not row.requires_grad
    for name, view in layout.views(row).items():
        assert torch.equal(view, module.get_parameter(name))


def test_only_keeps_the_order_of_the_layout():
    layout = layout_of([(1,), (2,), (3,)])
    assert layout.only(["t2", "t0"]) == Layout(("t0", "t2"), ((1,), (3,)))


# -- cut -----------------------------------------------------------------------------------------------------

PARTS = ("conv1.weight", "conv1.bias", "conv2.weight", "head.weight", "head.bias")
LAYOUT = Layout(PARTS, ((2, 3), (2,), (3, 2), (4,), (1,)))
patterns = st.dictionaries(
    st.sampled_from(["private", "shared", "adapter"]),
    st.lists(
        st.sampled_from(["conv*", "*bias", "head.*", "conv1.weight", "*", "nothing", "CONV*", "[ch]*"]),
        min_size=1,
        max_size=2,
    ).map(tuple),
    max_size=3,
)


@LAW
@given(patterns)
def test_a_cut_covers_every_parameter_exactly_once(patterns):
    try:
        layouts = Cut(patterns).layouts(LAYOUT)
    except UsageError as wrong:  # a name with no parameters is refused, and nothing else
        assert str(wrong).startswith("no parameter matches ")
        return
    assert set(layouts) == {"model", *patterns}
    assert sorted(name for layout in layouts.values() for name in layout.names) == sorted(PARTS)
    assert sum(layout.width for layout in layouts.values()) == LAYOUT.width
    shape = dict(zip(LAYOUT.names, LAYOUT.shapes, strict=True))
    for layout in layouts.values():
        assert layout.shapes == tuple(shape[name] for name in layout.names)


def test_a_pattern_for_the_name_model_loses_no_parameter():
    try:
        layouts = Cut({"model": ("conv*",)}).layouts(LAYOUT)
    except UsageError:
        return
    assert sum(layout.width for layout in layouts.values()) == LAYOUT.width


def test_the_first_pattern_that_matches_takes_a_parameter():
    layouts = Cut({"a": ("conv1*",), "b": ("*bias",)}).layouts(LAYOUT)
    assert layouts["a"].names == ("conv1.weight", "conv1.bias")
    assert layouts["b"].names == ("head.bias",)
    assert layouts["model"].names == ("conv2.weight", "head.weight")


def test_nothing_is_cut_from_the_whole():
    assert WHOLE.layouts(LAYOUT) == {"model": LAYOUT}


def test_what_is_private_is_not_in_the_model():
    layouts = KeepPrivate("conv*", "head.bias").layouts(LAYOUT)
    assert layouts["private"].names == ("conv1.weight", "conv1.bias", "conv2.weight", "head.bias")
    assert layouts["model"].names == ("head.weight",)
    assert KeepPrivate("*").layouts(LAYOUT)["model"].width == 0


def test_a_private_pattern_that_matches_nothing_is_refused():
    with pytest.raises(UsageError) as wrong:
        KeepPrivate("convolution*", "x").layouts(LAYOUT)
    assert str(wrong.value) == (
        "no parameter matches 'convolution*' or 'x' for 'private'; the model has "
        "conv1.weight, conv1.bias, conv2.weight, head.weight, head.bias"
    )


def test_private_without_a_pattern_is_refused():
    with pytest.raises(UsageError) as wrong:
        KeepPrivate()
    assert str(wrong.value) == ("KeepPrivate needs a pattern of parameter names, for example KeepPrivate('conv*')")


# -- take and write ------------------------------------------------------------------------------------------


@LAW
@given(st.lists(st.lists(st.integers(0, 5), unique=True, max_size=6), max_size=4))
def test_write_replaces_rows_and_leaves_the_given_stacks_alone(blocks):
    given_ = {"a": torch.zeros(6, 2), "b": torch.arange(6), "c": torch.ones(6, 1)}
    before = {name: rows.clone() for name, rows in given_.items()}
    expected = {name: rows.clone() for name, rows in given_.items()}
    changes = []
    for number, block in enumerate(blocks):
        rows = {"a": torch.full((len(block), 2), float(number + 1)), "b": torch.full((len(block),), -number - 1)}
        changes.append((torch.tensor(block, dtype=torch.int64), rows))
        for name, new in rows.items():
            for i, row in zip(block, new, strict=True):
                expected[name][i] = row
    out = write(given_, changes)
    for name in given_:
        assert torch.equal(given_[name], before[name])
        assert torch.equal(out[name], expected[name])
    assert out["c"] is given_["c"]  # what nobody writes to is not copied


def test_what_was_written_can_be_taken():
    stacks, index = {"a": torch.zeros(4, 2)}, torch.tensor([3, 1])
    rows = {"a": torch.tensor([[1.0, 2.0], [3.0, 4.0]])}
    assert torch.equal(take(write(stacks, [(index, rows)]), index)["a"], rows["a"])
    assert torch.equal(take(rows, torch.tensor([False, True]))["a"], rows["a"][1:])


def test_write_keeps_the_type_of_the_stack():
    out = write({"a": torch.zeros(2, 1, dtype=torch.float32)}, [(torch.tensor([0]), {"a": torch.ones(1, 1).double()})])
    assert out["a"].dtype == torch.float32
