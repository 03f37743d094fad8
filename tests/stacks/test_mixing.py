"""Mixing: rows are receivers, columns are senders, and what a row lacks is shared, kept or left."""

import subprocess
import sys

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch.testing import assert_close

from polycentric.errors import UsageError
from polycentric.stacks.mixing import Mixing

LAW = settings(max_examples=50)
FORMS = ("dense", "sparse", "gather", "scatter")


def close(a, b, tolerance=1e-10):
    assert_close(a, b, rtol=tolerance, atol=tolerance)


def a_mixing(form, receivers, senders, rest, seed, of_one=False):
    """A random mixing of this form; every receiver hears somebody, rows of a `keep` sum to one."""
    r = torch.Generator().manual_seed(seed)
    if form == "gather":
        return Mixing.gather(torch.randint(senders, (receivers,), generator=r), senders, rest)
    if form == "scatter":
        index = torch.cat([torch.arange(receivers), torch.randint(receivers, (senders,), generator=r)])
        weight = torch.rand(len(index), generator=r, dtype=torch.float64) + 0.1
        if rest == "keep":
            weight /= torch.zeros(receivers, dtype=torch.float64).index_add_(0, index, weight)[index]
        return Mixing.scatter(index, receivers, weight, rest)
    weight = torch.rand(receivers, senders, generator=r, dtype=torch.float64)
    weight[torch.rand(receivers, senders, generator=r) < 0.5] = 0
    weight[:, 0] += 0.1
    if rest == "keep":
        weight /= weight.sum(1, keepdim=True)
    if form == "dense":
        return Mixing.dense(weight, rest)
    receiver, sender = weight.nonzero(as_tuple=True)
    return Mixing.sparse(receiver, sender, weight[receiver, sender], (receivers, senders), rest)


def normalised(mixing):
    """The matrix a mixing stands for, rows divided where it shares."""
    matrix = mixing.to_dense()
    return matrix / matrix.sum(1, keepdim=True) if mixing.rest == "share" else matrix


def rows_of(mixing, width, seed, dtype=torch.float64):
    return torch.randn(
        mixing.shape[1], width, generator=torch.Generator().manual_seed(seed + 1), dtype=torch.float64
    ).to(dtype)


mixings = st.builds(
    a_mixing,
    st.sampled_from(FORMS),
    st.integers(1, 6),
    st.integers(1, 6),
    st.sampled_from(["share", "keep", "none"]),
    st.integers(0, 10**6),
)
means = st.builds(
    a_mixing,
    st.sampled_from(FORMS),
    st.integers(1, 6),
    st.integers(1, 6),
    st.sampled_from(["share", "keep"]),
    st.integers(0, 10**6),
)


# -- laws ----------------------------------------------------------------------------------------------------


@LAW
@given(mixings)
def test_every_form_is_the_product_with_its_matrix(mixing):
    rows = rows_of(mixing, 3, 0)
    close(mixing @ rows, normalised(mixing) @ rows)
    close(mixing.product(rows), mixing.to_dense() @ rows)
    close(mixing.total, mixing.to_dense().sum(1))


@pytest.mark.parametrize("rest", ["share", "keep", "none"])
def test_the_four_forms_of_one_matrix_agree(rest):
    one_hot = torch.tensor([2, 0, 1])  # a permutation has all four forms
    matrix = torch.nn.functional.one_hot(one_hot, 3).double()
    rows = torch.randn(3, 4, dtype=torch.float64)
    forms = (
        Mixing.dense(matrix, rest),
        Mixing.sparse(torch.arange(3), one_hot, torch.ones(3), (3, 3), rest),
        Mixing.gather(one_hot, 3, rest),
        Mixing.scatter(torch.tensor([1, 2, 0]), 3, rest=rest),
    )
    for mixing in forms:
        assert torch.equal(mixing.to_dense(), matrix)
        assert torch.equal(mixing @ rows, rows[one_hot])


@LAW
@given(means, st.floats(-1e3, 1e3))
def test_a_mean_preserves_constants(mixing, constant):
    rows = torch.full((mixing.shape[1], 2), constant, dtype=torch.float64)
    close(mixing @ rows, torch.full((mixing.shape[0], 2), constant, dtype=torch.float64))


@LAW
@given(means)
def test_a_mean_stays_inside_the_convex_hull(mixing):
    rows = rows_of(mixing, 5, 1)
    out = mixing @ rows
    assert bool((out >= rows.min(0).values - 1e-12).all())
    assert bool((out <= rows.max(0).values + 1e-12).all())


@LAW
@given(mixings, st.floats(-10, 10), st.floats(-10, 10))
def test_mixing_is_linear(mixing, a, b):
    x, y = rows_of(mixing, 3, 2), rows_of(mixing, 3, 3)
    close(mixing @ (a * x + b * y), a * (mixing @ x) + b * (mixing @ y))


@LAW
@given(mixings, st.integers(1, 4))
def test_streamed_over_blocks_equals_at_once(mixing, block):
    rows, matrix = rows_of(mixing, 3, 4), mixing.to_dense()
    out = torch.zeros(mixing.shape[0], 3, dtype=torch.float64)
    for first in range(0, mixing.shape[1], block):
        piece = slice(first, first + block)
        out += Mixing.dense(matrix[:, piece], mixing.rest).product(rows[piece])
    close(out, mixing.product(rows))


@pytest.mark.filterwarnings("ignore:Sparse")
@LAW
@given(
    st.sampled_from(FORMS),
    st.sampled_from(FORMS),
    st.sampled_from(["share", "keep", "none"]),
    st.sampled_from(["share", "keep", "none"]),
    st.integers(0, 10**6),
)
def test_composition_is_the_product_of_the_matrices(cloud_form, edge_form, cloud_rest, edge_rest, seed):
    edge = a_mixing(edge_form, 3, 5, edge_rest, seed)
    cloud = a_mixing(cloud_form, 2, 3, cloud_rest, seed + 7)
    if cloud.shape[1] != 3:  # a random scatter has more senders: cut its matrix to three
        cloud = Mixing.dense(torch.eye(2, 3), cloud_rest)
    both, rows = cloud @ edge, rows_of(edge, 2, seed)
    assert both.shape == (2, edge.shape[1])
    close(both @ rows, normalised(cloud) @ (normalised(edge) @ rows))
    close(both @ rows, cloud @ (edge @ rows))


@pytest.mark.filterwarnings("ignore:Sparse")
def test_composition_keeps_rows_even_where_they_sum_to_one_with_negative_entries():
    gossip = Mixing.dense(torch.tensor([[1.5, -0.5], [-0.5, 1.5]]), "keep")
    mean = Mixing.dense(torch.tensor([[3.0, 1.0], [1.0, 1.0]]))
    close((gossip @ mean).to_dense(), gossip.to_dense() @ normalised(mean))
    close((mean @ gossip).to_dense(), normalised(mean) @ gossip.to_dense())
    close((gossip @ mean).total, torch.ones(2, dtype=torch.float64))
    close((gossip @ Mixing.gather(torch.tensor([1, 0]), 2)).to_dense(), gossip.to_dense().flip(1))


@pytest.mark.filterwarnings("ignore:Sparse")
def test_composition_of_sums_is_a_sum_whatever_their_signs():
    sums = Mixing.dense(torch.tensor([[2.0, -1.0], [0.0, 3.0]]), "none")
    both = sums @ sums
    close(both.to_dense(), sums.to_dense() @ sums.to_dense())
    assert both.rest == "none"


@pytest.mark.filterwarnings("ignore:Sparse")
def test_a_receiver_above_one_that_heard_nobody_leaves_it_out():
    edge = Mixing.dense(torch.tensor([[1.0, 3.0], [0.0, 0.0]]))
    cloud = Mixing.dense(torch.tensor([[1.0, 1.0]]))
    close((cloud @ edge) @ torch.tensor([[0.0], [4.0]]).double(), torch.tensor([[3.0]]).double())


@pytest.mark.filterwarnings("ignore:Sparse")
@pytest.mark.parametrize(
    "form",
    [
        "dense",
        "scatter",
        "sparse",
    ],
)
def test_float32_sums_over_many_senders_are_as_good_as_float64(form):
    n = 100_000
    r = torch.Generator().manual_seed(0)
    rows, weight = torch.rand(n, 2, generator=r) + 100, torch.rand(n, generator=r, dtype=torch.float64)
    one = torch.zeros(n, dtype=torch.int64)
    mixing = {
        "dense": lambda: Mixing.dense(weight[None]),
        "scatter": lambda: Mixing.scatter(one, 1, weight),
        "sparse": lambda: Mixing.sparse(one, torch.arange(n), weight, (1, n)),
    }[form]()
    exact = weight[None] @ rows.double() / weight.sum()
    out = mixing @ rows
    assert out.dtype == torch.float32
    assert float((out.double() / exact - 1).abs().max()) < 1.5 * torch.finfo(torch.float32).eps


def test_links_in_any_order_are_the_same_mixing():
    receiver, sender, weight = torch.tensor([0, 0, 2]), torch.tensor([1, 2, 0]), torch.tensor([0.5, 0.25, 1.0])
    rising = Mixing.sparse(receiver, sender, weight, (3, 3), "none")
    for order in ([2, 0, 1], [1, 0, 2]):
        other = Mixing.sparse(receiver[order], sender[order], weight[order], (3, 3), "none")
        assert all(torch.equal(a, b) for a, b in zip(rising.links, other.links, strict=True))


def test_a_pair_named_twice_adds_up():
    twice = Mixing.sparse(torch.tensor([0, 0]), torch.tensor([0, 0]), torch.tensor([0.5, 0.5]), (1, 1), "keep")
    assert float(twice.to_dense()) == 1


def test_nobody_sends_nothing():
    nothing = Mixing.dense(torch.zeros(2, 0), "none")
    assert torch.equal(nothing @ torch.zeros(0, 3), torch.zeros(2, 3))


@LAW
@given(mixings)
def test_links_are_the_entries_that_are_not_zero(mixing):
    receiver, sender, weight = mixing.links
    matrix = torch.zeros(mixing.shape, dtype=torch.float64)
    matrix.index_put_((receiver, sender), weight, accumulate=True)
    assert bool((weight != 0).all())
    close(matrix, mixing.to_dense(), 0)


def test_gathering_from_one_center_copies_nothing():
    center = torch.randn(1, 5)
    received = Mixing.gather(torch.zeros(1000, dtype=torch.int64), 1) @ center
    assert received.shape == (1000, 5)
    assert received.untyped_storage().data_ptr() == center.untyped_storage().data_ptr()


# -- what the rest means -------------------------------------------------------------------------------------


def test_share_divides_none_does_not_and_keep_wants_complete_rows():
    rows = torch.tensor([[1.0], [4.0]], dtype=torch.float64)
    half = torch.tensor([[0.25, 0.25]])
    assert float(Mixing.dense(half, "share") @ rows) == 2.5
    assert float(Mixing.dense(half, "none") @ rows) == 1.25
    assert float(Mixing.dense(2 * half, "keep") @ rows) == 2.5
    with pytest.raises(UsageError) as wrong:
        Mixing.dense(half, "keep") @ rows
    assert str(wrong.value) == (
        "row 0 of a Mixing sums to 0.5, not to 1, and receiver 0 has no model of its own to keep: "
        "use rest='share' to divide by the row's sum"
    )


@pytest.mark.parametrize(("totals", "row"), [([1.0, 0.5, 1.2], 1), ([1.2, 0.9, 1.3], 2)])
def test_the_row_that_is_named_is_the_one_farthest_from_one(totals, row):
    with pytest.raises(UsageError, match=f"row {row} of a Mixing sums to {totals[row]}, not to 1"):
        Mixing.dense(torch.tensor(totals).diag(), "keep") @ torch.ones(3, 1)


def test_keep_and_none_take_negative_weights():
    rows = torch.tensor([[1.0], [4.0]], dtype=torch.float64)
    weight = torch.tensor([[1.5, -0.5]])
    assert float(Mixing.dense(weight, "keep") @ rows) == -0.5
    assert float(Mixing.dense(weight, "none") @ rows) == -0.5


# -- mistakes, when built ------------------------------------------------------------------------------------


def index(*numbers):
    return torch.tensor(numbers, dtype=torch.int64)


NEGATIVE = (
    "a Mixing that shares has a negative weight, so its rows are not means; "
    "use rest='keep' if the weights are meant (MATCHA's are)"
)
INFINITE = "a Mixing has a weight that is NaN or infinite: check the weights for a division by zero"
MISTAKES = {
    "three dimensions": (
        lambda: Mixing.dense(torch.ones(2, 3, 4)),
        "a Mixing is receivers x senders, got a tensor of shape (2, 3, 4)",
    ),
    "one dimension": (
        lambda: Mixing.dense(torch.ones(3)),
        "a Mixing is receivers x senders, got a tensor of shape (3,)",
    ),
    "nan": (lambda: Mixing.dense(torch.tensor([[1.0, float("nan")]])), INFINITE),
    "infinite": (lambda: Mixing.scatter(index(0), 1, torch.tensor([float("inf")])), INFINITE),
    "negative share": (lambda: Mixing.dense(torch.tensor([[1.0, -1.0]])), NEGATIVE),
    "rest": (
        lambda: Mixing.dense(torch.ones(1, 1), "shared"),
        "Mixing.rest must be share, keep or none, got 'shared'",
    ),
    "sender too large": (
        lambda: Mixing.gather(index(0, 3), 3),
        "a Mixing names sender 3, but there are only 3 (0 to 2)",
    ),
    "receiver negative": (
        lambda: Mixing.scatter(index(0, -1), 2),
        "a Mixing names receiver -1, but there are only 2 (0 to 1)",
    ),
    "sparse receiver": (
        lambda: Mixing.sparse(index(2), index(0), torch.ones(1), (2, 1)),
        "a Mixing names receiver 2, but there are only 2 (0 to 1)",
    ),
    "hears nobody": (
        lambda: Mixing.dense(torch.tensor([[1.0], [0.0]])) @ torch.ones(1, 1),
        "receiver 1 of a Mixing hears nobody",
    ),
    "rows of the stack": (
        lambda: Mixing.dense(torch.ones(1, 2)) @ torch.ones(3, 1),
        "a Mixing of 2 senders cannot mix a stack of 3 rows",
    ),
    "rows of a mixing": (
        lambda: Mixing.dense(torch.ones(1, 2)) @ Mixing.dense(torch.ones(3, 1)),
        "a Mixing of 2 senders cannot follow one of 3 receivers",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_named_by(mistake):
    build, text = MISTAKES[mistake]
    with pytest.raises(UsageError) as wrong:
        build()
    assert str(wrong.value) == text


@pytest.mark.parametrize("form", ["scatter", "sparse"])
def test_one_weight_for_every_link_is_demanded_when_built(form):
    with pytest.raises(UsageError):
        if form == "scatter":
            Mixing.scatter(index(0, 0, 0), 1, torch.ones(2))
        else:
            Mixing.sparse(index(0, 0, 0), index(0, 1, 2), torch.ones(2), (1, 3))


# -- printing ------------------------------------------------------------------------------------------------


def test_a_small_mixing_prints_its_matrix():
    assert str(Mixing.gather(index(1, 0), 2)).splitlines() == [
        "Mixing 2 receivers x 2 senders, gather, rest: share",
        "      0       1",
        "      1       0",
    ]


def test_a_large_mixing_prints_its_size():
    large = Mixing.gather(torch.arange(5000) % 7, 7, "keep")
    assert str(large) == "Mixing 5000 receivers x 7 senders, gather, rest: keep, 5000 links"


QUIET = "import torch; from polycentric.stacks.mixing import Mixing; i = torch.arange(2);"


def test_a_sparse_mixing_makes_no_noise():
    program = f"{QUIET} m = Mixing.sparse(i, i, torch.ones(2), (2, 2)); m @ torch.ones(2, 1); m @ m"
    subprocess.run([sys.executable, "-W", "error", "-c", program], check=True, capture_output=True)


@pytest.mark.parametrize("form", ["scatter", "dense", "sparse"])
@pytest.mark.parametrize("n", [3, 200])
def test_senders_that_are_some_rows_of_a_stack_are_those_rows_bit_for_bit(form: str, n: int) -> None:
    """With 200, a receiver hears more senders than are added up in one piece; with 3, nobody shares a receiver."""
    generator = torch.Generator().manual_seed(n)
    rows, who = torch.randn(2 * n, 5, generator=generator), torch.randperm(2 * n, generator=generator)[:n]
    place, weight = torch.arange(n) % 3, torch.rand(n, generator=generator)
    up = Mixing.scatter(place, 3, weight)
    if form == "dense":
        up = Mixing.dense(up.to_dense())
    elif form == "sparse":
        up = Mixing.sparse(place, torch.arange(n), weight, (3, n))
    assert torch.equal(up.product(rows, who), up.product(rows[who]))


def test_a_permutation_of_many_is_weighed_as_one_of_few():
    order, weight, rows = torch.arange(200).flip(0), torch.arange(1.0, 201.0), torch.full((200, 2), 3.0)
    assert torch.equal(Mixing.scatter(order, 200, weight, "none") @ rows, 3 * weight.flip(0)[:, None].expand(200, 2))
