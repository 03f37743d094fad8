"""Simulated seconds: laws of the clock (methods.md 9.6, 15, 16, 20)."""

import json
import math
from dataclasses import dataclass, replace

import networkx
import numpy
import pytest
import torch
from hypothesis import given, settings, strategies as st

import polycentric as pc
from polycentric.errors import UsageError
from polycentric.learn import Gradient, Maml, Train, Value
from polycentric.method import Exchange, Method
from polycentric.round import Trip, run_round
from polycentric.runs.checkpoint import Tally
from polycentric.runs.folder import Folder
from polycentric.runs.settings import Settings
from polycentric.runs.start import built_clock, prepare
from polycentric.simulate.clock import Hops, Load, Pairs, Punctual, Traffic, load_of, traffic
from polycentric.stacks.cohort import Cohort
from polycentric.stacks.draw import uniform
from polycentric.topology import CellClusters, Wires
from polycentric.topology.cells.coverage import covered
from polycentric.topology.cells.shapes import Attached
from support import recorded, small, went_on

LAW = settings(max_examples=20)
D, N = 10, 6
STILL = {"frequency_spread": 0.0, "distance_spread": 0.0}


def some(*index, sizes=None, effort=None, n=N, round=0, seed=0):
    index = torch.tensor(index, dtype=torch.int64)
    sizes = index + 1 if sizes is None else torch.tensor(sizes)
    effort = torch.ones(len(index), dtype=torch.float64) if effort is None else torch.tensor(effort)
    return Cohort(index, sizes, effort, n, seed=seed, round=round)


def load(topology, asked=None, parameters=D, dtype=torch.float32, **exchange):
    exchange = Exchange(**{"learn": (Train(batch=1),), "topology": topology} | exchange)
    asked = some(*range(N)) if asked is None else asked
    state = Method.of("made", exchange).begin({"model": torch.zeros(1, D, dtype=dtype)}, asked.n_clients)
    return Load(exchange, state, asked, parameters)


def seconds(clock, topology, asked=None, **exchange):
    """Of one exchange that everybody begins together."""
    one = load(topology, asked, **exchange)
    return float(clock.advance(torch.zeros(one.cohort.n_clients, dtype=torch.float64), one).max())


def over(clock, topology, rounds):
    """After several rounds with everybody there."""
    times = torch.zeros(N, dtype=torch.float64)
    for round in range(rounds):
        times = clock.advance(times, load(topology, some(*range(N), round=round)))
    return times


CELLS = pc.Cells(torch.tensor([[1, 1, 1, 0, 0, 0], [0, 0, 1, 1, 1, 1]]))
RING = pc.Graph(pc.metropolis(networkx.cycle_graph(N)))
COMPLETE = pc.Graph(pc.metropolis(networkx.complete_graph(N)))
TOPOLOGIES = {
    "star": pc.Star(),
    "clusters": pc.Clusters(3),
    "cells": CELLS,
    "two": pc.TwoLevel(CELLS.geometry, every=1),
    "ring": RING,
    "complete": COMPLETE,
    "alone": pc.Alone(),
}
every_topology = pytest.mark.parametrize("topology", TOPOLOGIES.values(), ids=TOPOLOGIES)


# -- FedMes's numbers ----------------------------------------------------------------------------------------


def test_a_round_with_edges_takes_1_1_and_one_with_the_cloud_10_1():
    clock = pc.Normalised()
    assert seconds(clock, CELLS) == pytest.approx(1.1, abs=1e-12)
    assert seconds(clock, pc.Star()) == pytest.approx(10.1, abs=1e-12)
    assert seconds(clock, pc.Clusters(2)) == pytest.approx(10.1, abs=1e-12)


@pytest.mark.parametrize(("every", "mean"), [(1, 10.1), (2, 5.6), (5, 2.9), (10, 2.0), (0, 1.1)])
def test_a_hierarchy_pays_for_the_cloud_when_it_meets(every, mean):
    times = over(pc.Normalised(), pc.TwoLevel(CELLS.geometry, every=every), 10)
    assert float(times.max()) / 10 == pytest.approx(mean, abs=1e-12)


@LAW
@given(st.floats(0, 10), st.floats(0, 10), st.floats(0, 100), st.integers(1, 6))
def test_the_mean_round_of_a_hierarchy_is_the_papers_formula(t_edge, t_comp, t_c, every):
    times = over(pc.Normalised(t_edge, t_comp, t_c), pc.TwoLevel(CELLS.geometry, every=every), every)
    expected = (t_comp + t_edge) * (every - 1) + t_comp + t_c * t_edge
    assert float(times.max()) == pytest.approx(expected, rel=1e-12)


def test_who_moves_more_models_needs_as_much_longer():
    clock, far = pc.Normalised(t_comp=0.0), pc.Star()
    assert seconds(clock, far) == 10
    three = ("model", "fisher", "pull")
    held = {"fisher": pc.method.Held(D), "pull": pc.method.Held(D)}
    assert seconds(clock, far, receives=three, sends=three, holds=held) == pytest.approx(30)
    assert seconds(clock, far, parameters=2 * D) == 5  # half of the model stays at home
    assert seconds(clock, far, sends=()) == 5


def test_exchanges_in_a_row_add_up(blobs):  # FedDANE: five models a round, in two trips
    prepared = prepare(pc.feddane(), blobs(), model=small, rounds=3, clock=pc.Normalised(t_comp=0.5))
    assert prepared.go().tally.seconds == pytest.approx(3 * (2 * 0.5 + 10 * 5 / 2))


# -- one center: the slowest ---------------------------------------------------------------------------------


@LAW
@given(st.lists(st.integers(0, N - 1), unique=True, min_size=1), st.integers(0, 99))
def test_a_star_takes_as_long_as_the_slowest_of_its_cohort(index, seed):
    clock = pc.Physical(fading=True)
    together = seconds(clock, pc.Star(), some(*index, seed=seed))
    alone = [seconds(clock, pc.Star(), some(k, seed=seed)) for k in index]
    assert together == max(alone)


def test_nobody_asked_no_time_passed():
    for topology in TOPOLOGIES.values():
        assert seconds(pc.Physical(), topology, some()) == 0


@pytest.mark.parametrize("method", [pc.fedavg, pc.feddane, pc.dpsgd, pc.fedmes], ids=lambda recipe: recipe.__name__)
def test_a_round_for_which_nobody_is_drawn_takes_time(method, blobs):
    """As long as the median client needs; the state stays as it is, and the round is counted."""
    how = {"model": small, "rounds": 3, "evaluate_every": 1, "fine_tune": 0, "clock": pc.Physical()}
    run = prepare(method(select=pc.Poisson(1e-9)), blobs(), **how).go()
    assert run.state.round == 3 and run.tally.bytes_up == 0
    seconds = [row["simulated_seconds"] for row in run.history]
    assert seconds[0] == 0 and seconds[1] > 0
    assert seconds == pytest.approx([k * seconds[1] for k in range(4)], rel=1e-12)


def test_a_round_for_nobody_takes_what_the_median_client_needs_or_the_deadline(blobs):
    nobody, clock = pc.fedavg(select=pc.Poisson(1e-9)), pc.Physical(**STILL, frequency=(1e6, 2e6, 3e6, 4e6, 5e6))
    run = prepare(nobody, blobs(), model=small, rounds=1, clock=clock, fine_tune=0)
    everyone = Load(nobody.at(0)[0], run.state, run.clients.everyone(0), run.clients.task.width)
    expected = float(clock.needs(everyone).median())
    assert run.go().tally.seconds == pytest.approx(expected, rel=1e-12)
    hurried = replace(clock, deadline=expected / 2)
    assert (
        prepare(nobody, blobs(), model=small, rounds=1, clock=hurried, fine_tune=0).go().tally.seconds == expected / 2
    )


def test_a_round_for_nobody_takes_as_long_as_the_longest_of_its_exchanges():
    clock, times = pc.Normalised(), torch.arange(float(N))
    near, far = load(CELLS), load(pc.Star())  # 1.1 and 10.1 seconds
    for loads in ([near, far], [far, near]):
        assert clock.pause(times, loads).tolist() == pytest.approx((times + 10.1).tolist(), abs=1e-5)
    assert clock.pause(times, [load(pc.Star(), some())]).tolist() == times.tolist()  # nobody could be drawn


def test_compute_is_cycles_times_examples_over_frequency():
    clock = pc.Physical(cycles=100.0, frequency=50.0, **STILL)
    cohort = some(0, 1, sizes=[7, 12])
    one = load(pc.Star(), cohort, learn=(Train(batch=5, epochs=3),))
    assert clock.at_client(one).tolist() == [2.0 * 21, 2.0 * 36]
    assert pc.Physical(frequency=50.0, **STILL).at_client(one).tolist() == [21 * 6 * D / 50, 36 * 6 * D / 50]


@LAW
@given(
    st.lists(st.integers(1, 40), min_size=1, max_size=5),
    st.integers(1, 4),
    st.one_of(st.none(), st.integers(1, 12)),
    st.one_of(st.none(), st.integers(1, 50)),
    st.floats(0.01, 1),
)
def test_examples_are_those_that_batches_hold(sizes, epochs, batch, steps, effort):
    from polycentric.data import Split
    from polycentric.learn import BatchSchedule as Batches

    n = len(sizes)
    cohort = some(*range(n), sizes=sizes, effort=[effort] * n, n=n)
    one = load(pc.Star(), cohort, learn=(Train(epochs=epochs, batch=batch, steps=steps),))
    offsets = torch.tensor([0, *sizes]).cumsum(0)
    total = int(offsets[-1])
    split = Split(torch.zeros(total, 1), torch.zeros(total, dtype=torch.int64), offsets)
    plan = one.exchange.learn[0].plan(cohort)
    batches = Batches(split, cohort, plan)
    done = torch.arange(batches.n_steps)[:, None] < plan.steps
    assert one.examples.tolist() == (batches.counts * done).sum(0).tolist()
    assert one.steps.tolist() == plan.steps.tolist()


def test_a_straggler_is_done_sooner():
    for clock in (pc.Physical(cycles=1e9), pc.Normalised(), pc.Delays()):
        slow, whole = ([effort] * 2 for effort in (0.2, 1.0))
        took = [seconds(clock, pc.Star(), some(0, 1, effort=e), learn=(Train(epochs=10),)) for e in (slow, whole)]
        assert took[0] < took[1]


def test_looking_is_cheaper_than_a_gradient_and_meta_gradients_are_dearer():
    cohort = some(0, sizes=[30])
    one = {name: load(pc.Star(), cohort, learn=(learner,)).examples.item() for name, learner in LEARNERS.items()}
    assert one == {"gradient": 30, "value": 10, "fomaml": 30 * 6, "maml": 30 * 16}


LEARNERS = {"gradient": Gradient(), "value": Value(), "fomaml": Maml(first_order=True), "maml": Maml()}


# -- radio ---------------------------------------------------------------------------------------------------


def test_shannons_rate_by_hand():
    # h = 0.5 / 4^2 = 1/32; h p / (B N0) = (3 / 32) / (8 * 2^-8) = 3, so rate = 8 log2(4) = 16 bits a second
    clock = pc.Physical(
        gain=0.5, exponent=2.0, distance=4.0, bandwidth_up=8.0, power_up=3.0, noise=2.0**-8, **STILL,
        bandwidth_down=2.0, power_down=0.75, cycles=1e-9, latency=0.5, wire=320.0,
    )  # fmt: skip
    assert clock.rate("up", torch.tensor([4.0])).item() == pytest.approx(16.0, rel=1e-12)
    assert clock.rate("down", torch.tensor([4.0])).item() == pytest.approx(4.0, rel=1e-12)
    bits = 8 * 4 * D  # 320: 20 s up, 80 s down, and each way 0.5 s + 1 s of wire
    assert bits == 320
    assert seconds(clock, CELLS) == pytest.approx(20 + 80, rel=1e-9)
    assert seconds(clock, pc.Star()) == pytest.approx(20 + 80 + 2 * 1.5, rel=1e-9)
    assert seconds(clock, pc.TwoLevel(CELLS.geometry)) == pytest.approx(20 + 80 + 2 * 1.5, rel=1e-9)
    assert seconds(clock, RING) == pytest.approx(20 + 1.5 + 80, rel=1e-9)


def test_a_cloud_by_radio_is_the_same_formula_with_its_distance():
    near, far = pc.Physical(distance=900.0, **STILL), pc.Physical(distance=50.0, cloud_distance=900.0, **STILL)
    alike = seconds(near, CELLS)
    assert seconds(far, pc.Star()) == pytest.approx(alike, rel=1e-12)
    assert seconds(far, pc.TwoLevel(CELLS.geometry, every=1)) == pytest.approx(alike, rel=1e-12)
    assert seconds(far, pc.TwoLevel(CELLS.geometry, every=2)) == seconds(far, CELLS) < alike


@LAW
@given(st.floats(1e-2, 1e3), st.floats(1, 5000))
def test_twice_the_band_with_twice_the_power_is_twice_the_rate(times, metres):
    metres = torch.tensor([metres], dtype=torch.float64)
    one = pc.Physical()
    two = replace(one, bandwidth_up=one.bandwidth_up * times, power_up=one.power_up * times)
    assert two.rate("up", metres).item() == pytest.approx(times * one.rate("up", metres).item(), rel=1e-9)
    same = replace(one, noise=one.noise * times, power_up=one.power_up * times)  # only their ratio matters
    assert same.rate("up", metres).item() == pytest.approx(one.rate("up", metres).item(), rel=1e-9)
    there = replace(one, gain=one.gain * times**one.exponent)
    assert there.rate("up", metres * times).item() == pytest.approx(one.rate("up", metres).item(), rel=1e-9)


def test_a_faint_signal_has_the_rate_of_a_straight_line():  # log2(1 + x) ~ x / ln 2: no digits are lost
    clock = pc.Physical(power_up=1e-20)
    metres = torch.tensor([500.0], dtype=torch.float64)
    expected = clock.gain / 500**clock.exponent * clock.power_up / clock.noise / math.log(2)
    assert clock.rate("up", metres).item() == pytest.approx(expected, rel=1e-9)


SLOWER = {  # field: times 2 makes it slower (1), faster (-1)
    pc.Physical: {
        "cycles": 1, "frequency": -1, "bandwidth_up": -1, "bandwidth_down": -1, "power_up": -1, "power_down": -1,
        "noise": 1, "gain": -1, "exponent": 1, "distance": 1, "wire": -1, "latency": 1,
    },
    pc.Normalised: {"t_edge": 1, "t_comp": 1, "t_c": 1},
    pc.Delays: {"compute": 1, "link": 1},
}  # fmt: skip


@every_topology
@pytest.mark.parametrize(
    ("kind", "field"), [(k, f) for k, fields in SLOWER.items() for f in fields], ids=lambda x: getattr(x, "__name__", x)
)
def test_seconds_are_monotone_in_everything(kind, field, topology):
    clock = pc.Physical(cycles=1e5) if kind is pc.Physical else kind()
    more = replace(clock, **{field: 2 * getattr(clock, field)})
    before, after = over(clock, topology, 2), over(more, topology, 2)
    assert bool(((after - before) * SLOWER[kind][field] >= -1e-12).all())


def test_every_delay_counts_somewhere():  # or the law above would hold for a clock that stands
    for kind, fields in SLOWER.items():
        clock = pc.Physical(cycles=1e5) if kind is pc.Physical else kind()
        for field in fields:
            more = replace(clock, **{field: 2 * getattr(clock, field)})
            assert any(seconds(clock, t) != seconds(more, t) for t in TOPOLOGIES.values()), field


def test_clients_differ_and_stay_as_they_are():
    clock = pc.Physical()
    first, later = (clock.needs(load(pc.Star(), some(*range(N), sizes=[9] * N, round=r))) for r in (0, 7))
    assert len(set(first.tolist())) == N
    assert torch.equal(first, later)
    assert not torch.equal(first, clock.needs(load(pc.Star(), some(*range(N), sizes=[9] * N, seed=1))))
    still = pc.Physical(**STILL).needs(load(pc.Star(), some(*range(N), sizes=[9] * N)))
    assert len(set(still.tolist())) == 1


def test_speeds_are_lognormal_about_the_number_given():
    n = 4000
    cohort = some(*range(n), sizes=[1] * n, n=n)
    took = pc.Physical(cycles=1e9, frequency=1e9, frequency_spread=0.7).at_client(load(pc.Star(), cohort))
    logs = took.log()
    assert logs.mean().item() == pytest.approx(0, abs=0.05)
    assert logs.std().item() == pytest.approx(0.7, abs=0.03)


def test_a_table_says_how_fast_and_how_far_everybody_is():
    far = (100.0, 200.0, 300.0, 400.0, 500.0, 600.0)
    clock = pc.Physical(cycles=1.0, frequency=(1.0, 2.0, 4.0, 8.0, 16.0, 32.0), distance=far)
    cohort = some(5, 1, sizes=[64, 64])
    assert clock.at_client(load(pc.Star(), cohort)).tolist() == [2.0, 32.0]
    metres = torch.tensor([600.0, 200.0])
    expected = 8 * 4 * D / clock.rate("up", metres)
    one = load(CELLS, cohort)
    torch.testing.assert_close(clock.on_link(one, "up", one.up()), expected[one.up().client], rtol=1e-12, atol=0)
    with pytest.raises(UsageError, match=r"Physical.distance has 2 numbers, but the federation has 6 clients"):
        seconds(pc.Physical(distance=(1.0, 2.0)), pc.Star())


def test_a_bridge_waits_for_the_farther_of_its_edges():
    table = tuple((100.0, 900.0) for _ in range(N))
    clock = pc.Physical(distance=table, cycles=1e-9, frequency_spread=0)
    times = clock.needs(load(CELLS, some(0, 2, 3)))
    assert times[0] < times[1]
    assert times[1].item() == pytest.approx(times[2].item(), rel=1e-9)


def test_a_far_center_is_behind_the_nearest_edge():
    table = ((100.0, 9e4), (9e4, 100.0), (100.0, 9e4), (9e4, 100.0), (100.0, 9e4), (9e4, 100.0))
    clock, near = pc.Physical(distance=table), pc.Physical(distance=100.0, **STILL)
    assert seconds(clock, pc.Star()) == pytest.approx(seconds(replace(near, frequency_spread=0.5), pc.Star()))
    with pytest.raises(UsageError, match=r"Physical\.distance has 1 columns, but there are 2 edges"):
        seconds(pc.Physical(distance=((100.0,),) * N), CELLS)
    with pytest.raises(UsageError, match=r"Physical.frequency is one number, or one for each client$"):
        pc.Physical(frequency=((1e9, 2e9),) * N)


def test_models_of_one_edge_are_equally_far():
    table = tuple((100.0 * (k + 1), 1e4 * (k + 1)) for k in range(N))
    several = CellClusters(CELLS.geometry, k=3)
    one, many = (load(topology) for topology in (CELLS, several))
    clock = pc.Physical(distance=table, **STILL)
    for way in ("down", "up"):
        near, far = (clock.on_link(of, way, getattr(of, way)()) for of in (one, many))
        assert torch.equal(near, far)


@pytest.mark.parametrize("k", [1, 2, 5])
def test_models_of_one_machine_come_down_one_after_another(k):
    """IFCA asks every client for the best of K models: K times the bytes, and K times as long on the way down."""
    method, asked = pc.ifca(k=k), some(*range(N))
    exchange = method.exchanges[-1]
    state = method.begin({"model": torch.zeros(k, D)}, N)
    clock = pc.Normalised(t_edge=2.0, t_comp=0.0, t_c=10)
    assert clock.needs(Load(exchange, state, asked, D)).tolist() == pytest.approx([10.0 * k + 10.0] * N, rel=0.05)


def places(path, clients, metres=""):
    rows = ["kind,x,y,radius", "edge,0,0,9000", "edge,1000,0,9000", *(f"client,{x},{y}," for x, y in clients)]
    path.write_text("\n".join(rows))
    return pc.Cells(pc.CellMap(places=str(path), metres=metres or None))


def test_on_a_map_clients_are_as_far_as_they_stand(tmp_path):
    near = places(tmp_path / "near.csv", [(0, 100 + k) for k in range(N)], 1.0)
    far = places(tmp_path / "far.csv", [(0, 3000 + k) for k in range(N)], 1.0)
    clock = pc.Physical(**STILL)
    assert seconds(clock, near) < seconds(clock, far)
    one = load(near)
    pairs = one.up()
    metres = torch.hypot(1000.0 * pairs.edge, 100.0 + pairs.client)
    assert torch.allclose(clock.on_link(one, "up", pairs), 8 * pairs.size / clock.rate("up", metres))
    hierarchy = load(pc.TwoLevel(Attached(near.geometry), every=0))
    client, edge, size = pairs = hierarchy.up()
    metres = torch.hypot(1000.0 * edge, 100.0 + client)
    assert torch.allclose(clock.on_link(hierarchy, "up", pairs), 8 * size / clock.rate("up", metres))
    # A table that is given is what the user measured: it wins.
    assert seconds(pc.Physical(distance=(500.0,) * N, **STILL), near) == seconds(
        pc.Physical(distance=(500.0,) * N, **STILL), far
    )


def test_on_a_map_models_of_one_edge_are_equally_far(tmp_path):
    cells, clock = places(tmp_path / "map.csv", [(0, 100 + k) for k in range(N)], 1.0), pc.Physical(**STILL)
    each = [load(topology) for topology in (cells, CellClusters(cells.geometry, k=2))]
    assert torch.equal(*(clock.on_link(one, "up", one.up()).sort().values for one in each))


def test_nobody_is_nearer_than_the_metre_at_which_the_gain_is_given(tmp_path):
    cells, clock = places(tmp_path / "map.csv", [(0, k / 4) for k in range(N)], 1.0), pc.Physical(**STILL)
    one = load(cells)
    client, edge, size = pairs = one.up()
    metres = torch.where(edge == 0, torch.tensor([1, 1, 1, 1, 1, 1.25])[client], torch.hypot(1000.0 * edge, client / 4))
    assert torch.allclose(clock.on_link(one, "up", pairs), 8 * size / clock.rate("up", metres))


def test_a_map_without_metres_has_the_clocks_distance_on_average():
    geometry, n = pc.CellMap(4, nearest=True), 4000
    every = torch.arange(n)
    edge, client = covered(geometry, n).links(every)
    metres = geometry.metres_to(edge, client, n, 0, 0, 500.0)
    away = metres * (2 / 3 * geometry.radii.mean()) / 500.0  # back in the map's units
    assert bool((away <= geometry.radii.max() + 1e-9).all())
    assert float(metres.mean()) == pytest.approx(500, rel=0.1)  # not all of a disc is on the map
    assert torch.allclose(geometry.metres_to(edge, client, n, 0, 0, 1000.0), 2 * metres)


def test_walkers_are_near_and_far_in_turn():
    cells = pc.Cells(pc.CellMap(4, speed=0.2, nearest=True))
    clock = pc.Physical(**STILL)
    took = [float(clock.needs(load(cells, some(*range(N), round=r)))[0]) for r in range(6)]
    assert len(set(took)) > 3


def test_fading_is_rayleigh_and_drawn_anew():
    n = 4000
    clock = pc.Physical(fading=True, **STILL)
    draws = []
    for round in (0, 1):
        cohort = some(*range(n), sizes=[1] * n, n=n, round=round)
        one = load(pc.Star(), cohort)
        took = clock.on_link(one, "up", one.up()) - clock._by_wire(one.up().size)
        rate = 8 * one.up().size / took
        per_hertz = 2 ** (rate / clock.bandwidth_up) - 1
        draws.append(per_hertz * clock.bandwidth_up * clock.noise / clock.power_up / clock.gain * 500**clock.exponent)
    for fade in draws:
        assert fade.mean().item() == pytest.approx(1, abs=0.06)
        assert (fade > 1).double().mean().item() == pytest.approx(math.exp(-1), abs=0.03)
    assert abs(numpy.corrcoef(draws[0], draws[1])[0, 1]) < 0.06
    one = load(pc.Star(), some(*range(5)))
    down = clock._fade(one, "down", torch.arange(5), torch.zeros(5, dtype=torch.int64))
    assert not torch.equal(down, clock._fade(one, "up", torch.arange(5), torch.zeros(5, dtype=torch.int64)))


# -- neighbours ----------------------------------------------------------------------------------------------


def costs(*numbers):
    """A clock whose clients compute for so many seconds."""

    @dataclass(frozen=True)
    class Costs(pc.Delays):
        def at_client(self, load):
            return torch.tensor(numbers, dtype=torch.float64)[load.cohort.index]

    return Costs


def test_the_recursion_on_a_path_by_hand():
    path = pc.Graph(pc.metropolis(networkx.path_graph(4)))
    clock = costs(1, 5, 2, 3)(link=10)
    times = torch.zeros(4, dtype=torch.float64)
    expected = [[15, 15, 15, 13], [30, 30, 30, 27], [45, 45, 45, 42]]
    for row in expected:
        times = clock.advance(times, load(path, some(0, 1, 2, 3, n=4)))
        assert times.tolist() == row


@LAW
@given(st.integers(0, 10**6), st.integers(1, 4), st.floats(0, 3))
def test_the_recursion_is_that_of_the_formula(seed, rounds, spread):
    graph = networkx.gnp_random_graph(N, 0.4, seed=seed)
    topology = pc.Graph(pc.metropolis(graph, disconnected="allow"))
    clock = pc.Delays(compute=0.3, link=0.7, spread=spread)
    every, times, t = load(topology), torch.zeros(N, dtype=torch.float64), [0.0] * N
    c = clock.at_client(every).tolist()

    def delta(i, k):
        nothing = torch.zeros(1, dtype=torch.float64)
        return clock.to_peer(every, Hops(torch.tensor([k]), torch.tensor([i]), nothing)).item()

    for round in range(rounds):
        times = clock.advance(times, load(topology, some(*range(N), round=round)))
        near = [[*graph.neighbors(k)] for k in range(N)]
        t = [max(t[i] + c[i] for i in [k, *near[k]]) + max([0.0, *(delta(i, k) for i in near[k])]) for k in range(N)]
    assert times.tolist() == pytest.approx(t, rel=1e-12)
    assert delta(0, 1) == delta(1, 0)


@LAW
@given(st.lists(st.floats(0, 100), min_size=N, max_size=N), st.floats(0, 100), st.integers(1, 5))
def test_on_a_complete_graph_neighbours_are_a_synchronous_star(numbers, link, rounds):
    clock = costs(*numbers)(link=link)
    star, everybody = over(clock, pc.Star(), rounds), over(clock, COMPLETE, rounds)
    torch.testing.assert_close(star, everybody, rtol=1e-12, atol=1e-12)
    assert float(star.max()) == pytest.approx(rounds * (max(numbers) + link))


@LAW
@given(st.integers(0, 10**6), st.floats(0, 2))
def test_more_neighbours_never_save_time_and_the_star_is_the_slowest(seed, spread):
    clock = pc.Delays(compute=0.2, link=0.5, spread=spread)
    small_graph = networkx.gnp_random_graph(N, 0.3, seed=seed)
    larger = networkx.compose(small_graph, networkx.gnp_random_graph(N, 0.3, seed=seed + 1))
    alone, some_, more, all_ = (
        over(clock, pc.Graph(pc.metropolis(g, disconnected="allow")), 4)
        for g in (networkx.empty_graph(N), small_graph, larger, networkx.complete_graph(N))
    )
    torch.testing.assert_close(alone, over(clock, pc.Alone(), 4))
    assert bool((alone <= some_ + 1e-12).all() and (some_ <= more + 1e-12).all() and (more <= all_ + 1e-12).all())


def test_jitter_costs_a_star_more_than_a_ring_and_a_slow_client_costs_both_the_same():
    """Max-plus: the pace of a graph is that of its slowest cycle, and a slow machine is a cycle of its own."""
    n, rounds = 12, 60
    ring = pc.Graph(pc.metropolis(networkx.cycle_graph(n)))

    def pace(topology, clock):
        times = torch.zeros(n, dtype=torch.float64)
        for round in range(rounds):
            times = clock.advance(times, load(topology, some(*range(n), sizes=[5] * n, n=n, round=round)))
        return float(times.max()) / rounds

    jitter, slow = pc.Delays(compute=0.1, link=0.0, jitter=0.7), costs(1, 1, 9, *[1] * 9)(link=1.0)
    assert pace(ring, jitter) < 0.9 * pace(pc.Star(), jitter)
    assert pace(ring, slow) == pytest.approx(pace(pc.Star(), slow)) == pytest.approx(10)
    assert len({pace(pc.Star(), pc.Delays(jitter=0.5)) for _ in range(2)}) == 1


def test_who_is_away_stays_behind_and_is_not_waited_for():
    clock = costs(1, 1, 1000, 1, 1, 1)(link=10)
    times = clock.advance(torch.zeros(N, dtype=torch.float64), load(RING, some(0, 1, 3, 4, 5)))
    assert times.tolist() == [11, 11, 0, 11, 11, 11]


# -- matchings in a row --------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Drawn(pc.Graph):
    """A graph in matchings, each active with its probability."""

    matchings: tuple = ()
    chance: tuple = ()

    def active(self, cohort):
        draw = uniform(cohort.seed, cohort.round, "matching", torch.arange(len(self.matchings)))
        return [pairs for pairs, coin, p in zip(self.matchings, draw.tolist(), self.chance, strict=True) if coin < p]

    def mixing(self, memory, cohort):
        graph = networkx.empty_graph(cohort.n_clients)
        graph.add_edges_from(pair for pairs in self.active(cohort) for pair in pairs)
        return pc.metropolis(graph, disconnected="allow")

    @property
    def wires(self):
        return InTurns(at_home=True, of=self)


@dataclass(frozen=True)
class InTurns(Wires):
    of: Drawn = None

    def turns(self, memory, cohort):
        return len(self.of.active(cohort))


MATCHINGS = (((1, 5), (6, 7), (0, 4), (2, 3)), ((1, 7), (3, 6)), ((1, 0), (3, 7), (5, 6)), ((1, 2), (7, 0)), ((3, 1),))


def test_sums_travel_as_means_do():
    for clock in (pc.Normalised(), pc.Delays(), pc.Physical()):
        assert seconds(clock, pc.Star(), sums=("model",)) == seconds(clock, pc.Star())


def drawn(chance):
    graph = networkx.Graph([pair for pairs in MATCHINGS for pair in pairs])
    return Drawn(pc.metropolis(graph), matchings=MATCHINGS, chance=chance)


def test_all_matchings_take_one_link_each():
    eight = some(*range(8), sizes=[3] * 8, n=8)
    assert seconds(pc.Delays(compute=0.5, link=2.0), drawn((1,) * 5), eight) == 3 * 0.5 + 5 * 2.0
    assert seconds(pc.Delays(compute=0.5, link=2.0), drawn((0,) * 5), eight) == 3 * 0.5


def test_half_of_the_matchings_on_average_take_half_of_the_time():
    chance = (0.984, 0.0, 0.758, 0.758, 0.0)  # a budget of one half: they sum to 2.5 of 5
    clock, rounds = pc.Delays(compute=0.0, link=1.0), 250
    topology, times, expected = drawn(chance), torch.zeros(8, dtype=torch.float64), 0
    for round in range(rounds):
        cohort = some(*range(8), n=8, round=round)
        times = clock.advance(times, load(topology, cohort))
        expected += len(topology.active(cohort))
    assert float(times.max()) == expected
    assert expected / rounds / len(MATCHINGS) == pytest.approx(sum(chance) / len(MATCHINGS), abs=0.02)
    assert sum(chance) / len(MATCHINGS) == 0.5


# -- deadlines -----------------------------------------------------------------------------------------------


class Square(torch.nn.Module):
    def forward(self, x):
        return x * x


def linear(shape, n_outputs):
    return torch.nn.Sequential(torch.nn.Linear(*shape, n_outputs), Square())


@LAW
@given(st.floats(0.001, 0.3))
def test_a_deadline_leaves_out_exactly_those_who_need_longer(deadline):
    free, bound = pc.Physical(cycles=1e7), pc.Physical(cycles=1e7, deadline=deadline)
    one = load(pc.Star())
    needs = free.needs(one)
    assert bound.late(one).tolist() == (needs > deadline).tolist()
    assert not free.late(one).any()
    assert seconds(bound, pc.Star()) == min(float(needs.max()), deadline)


@given(st.integers(1, 400), st.integers(1, 400))
def test_whoever_needs_exactly_so_long_makes_the_deadline(edge, compute):
    """Two numbers with two digits: their sum is rounded one way here and another way there."""
    clock = pc.Normalised(t_edge=edge / 100, t_comp=compute / 100, deadline=(edge + compute) / 100)
    one = load(pc.Cells(pc.RingCells(2, 1, 1)))
    assert not clock.late(one).any()


@pytest.mark.parametrize("every", [1, 2])
def test_a_deadline_is_for_clients_and_the_cloud_may_take_longer(every):
    clock = pc.Normalised(deadline=2.0)
    one = load(pc.TwoLevel(CELLS.geometry, every=every), some(*range(N), round=every - 1))
    assert one.cloud and not bool(clock.late(one).any())
    assert float(over(clock, pc.TwoLevel(CELLS.geometry, every=every), every).max()) == pytest.approx(
        10.1 + 1.1 * (every - 1)
    )
    strict = pc.Normalised(deadline=0.5)  # nobody makes it, and edges that heard nobody have nothing to tell the cloud
    assert bool(strict.late(one).all())
    assert seconds(strict, pc.TwoLevel(CELLS.geometry, every=1)) == pytest.approx(0.5)


@LAW
@given(st.floats(50, 5000), st.floats(50, 5000), st.integers(0, N), st.floats(0, 1), st.integers(0, 99))
def test_a_deadline_never_turns_time_back_and_one_that_all_make_changes_nothing(metres, cloud, made, spread, seed):
    """Also where the cloud is nearer than the edge, and for clients that differ."""
    free = pc.Physical(distance=metres, cloud_distance=cloud, distance_spread=spread)
    asked, topology = some(*range(N), seed=seed), pc.TwoLevel(CELLS.geometry, every=1)
    edges, all_the_way = (free.needs(load(pc.TwoLevel(CELLS.geometry, every=every), asked)) for every in (0, 1))
    deadline = float(edges.sort().values[made - 1]) if made else float(edges.min()) / 2
    one, bound = load(topology, asked), replace(free, deadline=deadline)
    late, took = bound.late(one), seconds(bound, topology, asked)
    assert int(late.sum()) == N - made
    assert seconds(replace(free, deadline=1e9), topology, asked) == seconds(free, topology, asked)
    if not bool(late.any()):
        assert took == seconds(free, topology, asked)
    elif bool(late.all()):
        assert took == deadline
    else:  # the cloud's part comes after all have been waited for
        assert took == pytest.approx(deadline + max(0.0, float((all_the_way - edges)[~late].max())), rel=1e-12)


@pytest.mark.parametrize("cloud", [None, 100.0, 900.0])
def test_edges_go_to_the_cloud_when_the_deadline_is_over(cloud):
    """One client of six is too slow, all are 500 metres from their edge."""
    clock = pc.Physical(frequency=(1e9,) * 5 + (1.0,), cloud_distance=cloud, deadline=2.0, **STILL)
    bits = 8 * 4 * D

    def radio(metres):
        return sum(bits / clock.rate(way, torch.tensor([metres])).item() for way in ("up", "down"))

    beyond = {None: 2 * (clock.latency + bits / clock.wire), 100.0: 0.0, 900.0: radio(900.0) - radio(500.0)}[cloud]
    assert seconds(clock, pc.TwoLevel(CELLS.geometry, every=1)) == pytest.approx(2.0 + beyond, rel=1e-12)


def test_who_is_late_is_asked_and_does_not_arrive(blobs):
    federation = blobs((23, 7, 12, 1, 30))
    clock = costs(1, 2, 3, 4, 5)(link=1, deadline=4.5)
    method = pc.fedavg(lr=0.1)
    prepared = prepare(method, federation, model=small, clock=clock, dtype="float64", rounds=2)
    heard = Punctual(prepared.clients, clock, prepared.clients.task.width)
    after, (trip,) = run_round(method, prepared.state, heard)
    assert trip.cohort.index.tolist() == [0, 1, 2, 3, 4]
    assert sorted(trip.arrived.index.tolist()) == [0, 1, 2]
    row = prepared.clients.task.width * 8
    assert traffic(trip) == Traffic(5 * row, 3 * row)
    few = prepare(method, blobs((23, 7, 12)), model=small, dtype="float64")
    alone, _ = run_round(method, few.state, few.clients)
    torch.testing.assert_close(after.centers["model"], alone.centers["model"])
    done = prepared.go()
    assert (done.tally.late, done.tally.dropped, done.tally.seconds) == (4, 0, 9.0)
    assert done.summary()["late"] == 4


def test_everybody_may_be_late_and_nothing_moves(blobs):
    clock = pc.Physical(deadline=1e-9)
    done = prepare(pc.fedavg(), blobs(), model=small, clock=clock, rounds=3).go()
    start = prepare(pc.fedavg(), blobs(), model=small).state
    assert torch.equal(done.state.centers["model"], start.centers["model"])
    assert done.tally.late == 15
    assert done.tally.seconds == pytest.approx(3e-9)


def test_a_deadline_that_all_make_changes_nothing(blobs):
    free, bound = (
        prepare(pc.fesem(k=2), blobs(), model=small, clock=pc.Physical(deadline=d), rounds=4).go() for d in (None, 1e6)
    )
    assert free.history == bound.history
    assert torch.equal(free.state.centers["model"], bound.state.centers["model"])


def test_a_client_lost_in_training_is_not_one_who_was_late(blobs):
    federation = blobs((9, 8, 7, 6, 5))
    huge = torch.where((federation.train.owner == 0)[:, None], 1e300, federation.train.x)
    federation = replace(federation, train=replace(federation.train, x=huge))
    clock = costs(1, 9, 9, 1, 1)(link=1, deadline=5)
    done = prepare(pc.fedavg(), federation, model=linear, clock=clock, dtype="float64", rounds=1).go()
    assert (done.tally.dropped, done.tally.late) == (1, 2)


def test_a_deadline_needs_somebody_who_waits(blobs):
    with pytest.raises(UsageError, match="a deadline needs a center that waits, and nofed has none"):
        prepare(pc.nofed(), blobs(), model=small, clock=pc.Physical(deadline=1.0))


# -- runs ----------------------------------------------------------------------------------------------------


@pytest.fixture
def gossip():
    graph = pc.Graph(pc.metropolis(networkx.path_graph(5)))
    return Method.of("gossip", Exchange(learn=(Train(lr=0.05),), topology=graph))


def test_seconds_do_not_know_the_executor_or_the_block(blobs, gossip):
    for method in (pc.fedavg(select=pc.Uniform(3)), pc.nofed(), gossip, pc.feddane(lr=0.01)):
        found = {
            json.dumps(prepare(method, blobs(), model=small, rounds=3, **how).go().tally.to_json())
            for how in ({"executor": "looped"}, {"executor": "stacked"}, {"executor": "stacked", "block": 2})
        }
        assert len(found) == 1


def test_times_of_clients_that_are_apart_are_resumed_bit_for_bit(blobs, gossip, tmp_path):
    def begin(rounds):
        return prepare(gossip, blobs(), model=small, rounds=rounds, checkpoint_every=1)

    def kept(prepared, where):
        recorded(prepared, tmp_path / where)
        return prepared

    whole = kept(begin(6), "whole").go()
    assert len(set(whole.tally.times)) > 1
    kept(begin(3), "parts").go()
    resumed, problems = went_on(begin(6), Folder.open(tmp_path / "parts"))
    assert problems == []
    assert resumed.tally == whole.tally
    assert (tmp_path / "parts/metrics.jsonl").read_bytes() == (tmp_path / "whole/metrics.jsonl").read_bytes()


def test_another_clock_is_refused_on_resume(blobs, tmp_path):
    prepared = prepare(pc.fedavg(), blobs(), model=small, rounds=1)
    recorded(prepared, tmp_path / "run")
    other = prepare(pc.fedavg(), blobs(), model=small, rounds=2, clock=pc.Normalised())
    with pytest.raises(UsageError, match="not the clock that the run was started with"):
        went_on(other, prepared.folder)


def test_the_tally_of_an_older_checkpoint_is_read(tmp_path):
    assert Tally.from_json({"bytes_up": 3}) == Tally(bytes_up=3)


def test_every_row_tells_the_time_and_time_only_grows(blobs):
    done = pc.run(pc.fedavg(), blobs(), model=small, rounds=5)
    times = [row["simulated_seconds"] for row in done.history]
    assert times[0] == 0 and times == sorted(times) and times[-1] == done.summary()["simulated_seconds"] > 0


@every_topology
@pytest.mark.parametrize("arrived", [range(N), (0, 2, 5), ()])
@pytest.mark.parametrize("broadcast", [False, True])
def test_bytes_by_link_add_up_to_the_totals(topology, arrived, broadcast):
    one = load(topology, tells=("loss",))
    trip = Trip(one.exchange, one.state, one.cohort, some(*arrived))
    moved = traffic(trip, broadcast)
    assert traffic(trip, broadcast, load_of(trip, 3)) == moved  # known already, or read once more
    turned = replace(trip, arrived=trip.arrived[torch.arange(len(arrived)).flip(0)])
    assert traffic(turned, broadcast) == moved  # in whatever order they come
    assert sum(moved.links.values()) == moved.up + moved.down
    assert all(n >= 0 for n in moved.links.values())
    assert load_of(trip, 3).parameters == 3
    assert (moved + moved).links == {name: 2 * n for name, n in moved.links.items()}


def test_a_link_has_its_kind():
    row = D * 4

    def links(topology, arrived=range(N), broadcast=False):
        one = load(topology)
        found = traffic(Trip(one.exchange, one.state, one.cohort, some(*arrived)), broadcast).links
        return {name: n // row for name, n in found.items() if n}

    assert links(pc.Star()) == {"client_to_center": 6, "center_to_client": 6}
    assert links(pc.Star(), broadcast=True) == {"client_to_center": 6, "center_to_client": 1}
    assert links(CELLS) == {"client_to_center": 6, "center_to_client": 7}
    assert links(CELLS, broadcast=True) == {"client_to_center": 6, "center_to_client": 2}  # L d
    assert links(RING) == {"client_to_client": 12}
    assert links(pc.Alone()) == {}
    cloud = {"edge_to_cloud": 2, "cloud_to_edge": 2}
    assert links(pc.TwoLevel(CELLS.geometry, every=1)) == {"client_to_center": 6, "center_to_client": 7} | cloud
    assert links(pc.TwoLevel(CELLS.geometry, every=2)) == {"client_to_center": 6, "center_to_client": 7}
    assert links(pc.TwoLevel(CELLS.geometry, every=1), arrived=()) == {"center_to_client": 7}  # nothing to average


def test_the_clock_of_a_command():
    assert built_clock(Settings(method="fedavg")) == pc.Physical()
    assert built_clock(Settings(method="fedavg", clock="normalised(t_c=20)")) == pc.Normalised(t_c=20)
    asked = "physical(distance=100, fading=true, deadline=2.5, cloud_distance=9000)"
    assert built_clock(Settings(method="fedavg", clock=asked)) == pc.Physical(
        distance=100.0, fading=True, deadline=2.5, cloud_distance=9000.0
    )
    assert built_clock(Settings(method="fedavg", clock="delays(0.1, 3)")) == pc.Delays(0.1, 3.0)
    with pytest.raises(UsageError, match="unknown clock 'phisical': did you mean 'physical'"):
        built_clock(Settings(method="fedavg", clock="phisical"))
    with pytest.raises(UsageError, match="unknown setting of delays 'lnk'"):
        built_clock(Settings(method="fedavg", clock="delays(lnk=3)"))


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: pc.Normalised(t_comp=-1), "Normalised.t_comp must be >= 0 and finite, got -1; try 0.1"),
        (lambda: pc.Delays(link=-0.3), "Delays.link must be >= 0 and finite, got -0.3"),
        (lambda: pc.Physical(noise=0), "Physical.noise must be positive and finite, got 0; try"),
        (lambda: pc.Physical(distance=(1.0, 0.0)), "Physical.distance must be positive"),
        (lambda: pc.Physical(cycles=0.0), "Physical.cycles must be positive and finite, got 0"),
        (lambda: pc.Physical(frequency=math.inf), "Physical.frequency must be positive and finite, got inf; try"),
        (lambda: pc.Delays(deadline=0), "Delays.deadline must be a positive number of seconds, got 0"),
    ],
)
def test_a_clock_that_cannot_be_is_refused(build, message):
    with pytest.raises(UsageError) as wrong:
        build()
    assert message in str(wrong.value)


def test_pairs_of_several_names_are_one_message_each():
    held = {"fisher": pc.method.Held(3)}
    one = load(CELLS, receives=("model", "fisher"), sends=("model",), holds=held)
    down = one.down()
    assert isinstance(down, Pairs) and len(down.client) == 7
    assert set(down.size.tolist()) == {(D + 3) * 4.0}


def test_a_center_begins_when_the_last_is_done():
    after = pc.Normalised().advance(torch.arange(float(N)), load(pc.Star()))
    assert after.tolist() == pytest.approx([N - 1 + 10.1] * N, abs=1e-5)
