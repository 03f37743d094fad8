"""Tasks that are related: what a client learns pulls at the tasks beside it, as strongly as a covariance says.

    pull       =  sum_{i != k} Q_ki w_i      of the stack `task`, frozen while a client trains
    stiffness  =  Q_kk

`covariance` and `precision` in the memory hold every set's matrices, flat and in float64 (`heads.covariance`). Only
tasks that have been heard count: a client that never came changes nothing, and before its first exchange a client is a
set of one, with Omega = [1].
"""

import math
import warnings
from abc import abstractmethod
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Literal

import torch
from torch import Tensor

from ...errors import require, within
from ...stacks import Cohort, Links, Mixing, Stacks, View
from ..base import Direction, Picture, Topology, Wires, nothing
from ..graphs.gossip import Gossip, present, weights_for
from ..graphs.networks import Disconnected, Network
from ..star import Star
from .covariance import TaskSets, correlations, cov_and_prec_of, steepest

MOST_PAIRS = 1 << 25  # of tasks in all covariances: some 10 GB in all that is made of them
LARGE = 2000  # tasks in one covariance beyond which its eigenvectors take long
CUBE = 4e-10  # seconds of one core by the cube of that number: 10 for 3,000 tasks and 49 for 5,000 were measured


class Tasks(Topology):
    """What topologies with related tasks have in common."""

    reads_updates = True  # how tasks are related is found from what clients send
    relayed = False  # and it takes neighbours' neighbours
    beta: float | None  # weight of the fresh covariance beside the neighbours'; 1: nobody is asked
    eps: float  # floor of the spectra
    per_n: bool  # divide the penalty of set j by n_j
    own_terms: bool  # keep j = k only; cheaper, and not the gradient of the objective
    limit: float  # largest eigenvalue of Q that the clients' steps allow; beyond it a warning

    @abstractmethod
    def sets(self, n: int) -> TaskSets:
        """Whose tasks stand in one covariance."""

    @abstractmethod
    def heard(self, seen: Tensor) -> Links:
        """Whose covariances set k averages with its own, among the tasks that were seen."""

    def remembers(self, n_clients: int) -> Stacks:
        """Examples of every client that came (0: it has not yet), and the matrices."""
        sets = self.sets(n_clients)
        shorter = len(sets.sizes) == 1 and self.beta == 1
        check_pairs(int(sets.sizes.square().sum()), int(sets.sizes.max()) if n_clients else 0, shorter)
        flat = sets.alone() if len(sets.sizes) == n_clients else torch.zeros(int(sets.place[-1]), dtype=torch.float64)
        return {
            "examples": torch.zeros(n_clients, dtype=torch.float64),
            "covariance": flat,
            "precision": flat.clone(),
            "condition": torch.ones(1, dtype=torch.float64),
        }

    def place(self, memory: Stacks, cohort: Cohort, centers: Stacks, sent: Stacks) -> Stacks:
        """Who came, with how many examples."""
        return {"examples": cohort.sizes.double()}

    def scale(self, examples: Tensor) -> Tensor:
        """What a set's penalty counts: 1/n_j or one; nothing where the client has not come."""
        seen = examples > 0
        if not self.per_n:
            return seen.double()
        return torch.where(seen, 1 / examples.clamp(min=1), 0.0)

    def curvature(self, memory: Stacks, tasks: Tensor | None = None, name: str = "") -> Links:
        """Q, entry by entry; entries of one place add up.

        At least the rows of these tasks, and of them what `name` needs: their diagonal for `stiffness`.
        """
        examples = memory["examples"].cpu()
        sets, scale = self.sets(len(examples)), self.scale(examples)
        return Links(*sets.penalty(memory["precision"].cpu(), scale, self.own_terms))

    def related(self, memory: Stacks, cohort: Cohort, name: str) -> Mixing:
        """Rows of Q: off the diagonal for `pull`, on it for `stiffness`."""
        row, column, weight = self.curvature(memory, cohort.index, name)
        at = torch.full((cohort.n_clients,), -1)
        at[cohort.index] = torch.arange(len(cohort))
        there = (at[row] >= 0) & ((row == column) if name == "stiffness" else (row != column))
        row, column, weight = at[row[there]], column[there], weight[there]
        if name == "stiffness":  # a client knows itself before anybody else does
            new = ((memory["examples"].cpu()[cohort.index] == 0) & (cohort.sizes > 0)).nonzero()[:, 0]
            row, column = torch.cat([row, new]), torch.cat([column, cohort.index[new]])
            weight = torch.cat([weight, self.scale(cohort.sizes[new].double())])
        mixing = Mixing.sparse(row, column, weight, (len(cohort), cohort.n_clients), "none")
        return replace(mixing, of="task") if name == "pull" else mixing

    def meet(self, memory: Stacks, arrived: Cohort, centers: Stacks) -> tuple[Stacks, Stacks]:
        """New covariances at those who came, from the tasks as they stand now."""
        if not len(arrived):
            return memory, centers
        seen, n = memory["examples"].cpu() > 0, arrived.n_clients
        sets, (fewer, mask) = self.sets(n), self.sets(n).within(seen)
        alone = 1 / (fewer.sizes + 1.0).double()
        beta = alone if self.beta is None else torch.full_like(alone, self.beta)
        tasks = centers["task"].cpu().double()
        tasks = tasks / tasks.abs().max().clamp(min=1e-300)  # a scale does not matter, and squares overflow
        new = fewer.renewed(memory["covariance"].cpu()[mask], tasks, self.heard(seen), beta, self.eps)
        came = torch.zeros(n, dtype=torch.bool)
        came[arrived.index] = True
        mine = came[sets.pairs[0]] if len(sets.sizes) == n else torch.ones(len(mask), dtype=torch.bool)
        after = {"condition": torch.full((1,), new.condition, dtype=torch.float64)}
        for name, found in (("covariance", new.cov), ("precision", new.prec)):
            whole = torch.zeros(len(mask), dtype=torch.float64)
            whole[mask] = found
            after[name] = torch.where(mine, whole, memory[name].cpu())
        memory = memory | after
        self.check(memory)
        return memory, centers

    def check(self, memory: Stacks) -> None:
        """Warn where Q is too steep for the clients' steps."""
        if math.isinf(self.limit):
            return
        found = steepest(*self.curvature(memory), len(memory["examples"]))
        if found >= self.limit:
            warnings.warn(
                f"lr * strength * (largest eigenvalue of Q) = {2 * found / self.limit:.1g} is not below 2, so the "
                f"steps on the multi-task penalty diverge: divide strength, or lr, by {found / self.limit:.1g} or more",
                stacklevel=2,
            )

    def shows(self, view: View) -> dict[str, float]:
        """The worst condition number among the covariances."""
        return {"condition": float(view.memory["condition"])}


def check_pairs(pairs: int, largest: int, shorter: bool) -> None:
    """Refuse covariances that memory or patience have no room for; say it where a round may take minutes.

    `shorter`: tasks of few numbers need fewer eigenvectors (`cov_and_prec_of`).
    """
    advice = "with more clients use a sparse graph, such as dpa-sgd with graph=ring, or methods such as fesem"
    require(
        pairs <= MOST_PAIRS,
        f"covariances of {pairs:,} pairs of tasks do not fit: there is room for {MOST_PAIRS:,}, which are "
        f"{math.isqrt(MOST_PAIRS):,} clients where all are related; {advice}",
    )
    if largest > LARGE:
        where = f" where tasks have more than {largest // 2:,} numbers each, less otherwise" if shorter else ""
        seconds = CUBE * largest**3 * (1 if shorter else 2)  # once before the floor and once for it
        warnings.warn(
            f"eigenvectors of a covariance of {largest:,} tasks take some {seconds:.0f} seconds of one core every time"
            f"{where}; {advice}",
            stacklevel=2,
        )


@dataclass(frozen=True)
class TaskGraph(Tasks, Gossip):
    """Neighbours mix their models with Metropolis weights and keep a covariance over their tasks (DPA-SGD).

        Q  =  sum_j 1/n_j E_j Omega_j^-1 E_j^T        over the closed neighbourhoods N(j)

    `graph`, `only_own` and `disconnected` as in `Gossip`; beta is 1 / (|N(k)| + 1) where it is None.
    """

    beta: float | None = None
    eps: float = 1e-3
    per_n: bool = True
    own_terms: bool = False
    limit: float = math.inf
    line = "no center: neighbours average their models, and learn how their tasks are related"

    def __post_init__(self) -> None:
        super().__post_init__()
        within(self, beta="(0, 1]; leave it out for 1 / (neighbours + 1)", eps="(0, 0.5]; try 0.001")

    def sets(self, n: int) -> TaskSets:
        """The closed neighbourhoods."""
        return _neighbourhoods(self.graph, n, self.disconnected)

    def relations(self, memory: Stacks) -> Tensor:
        """Row k from the covariance that client k keeps."""
        n, cov = len(memory["examples"]), memory["covariance"].cpu()
        sets, out = self.sets(n), torch.full((n, n), math.nan, dtype=torch.float64)
        for k in range(n):
            who = sets.members[sets.offset[k] : sets.offset[k + 1]]
            mine = cov[sets.place[k] : sets.place[k + 1]].view(len(who), len(who))
            out[k, who] = correlations(mine)[int((who == k).nonzero())]
        return out

    def heard(self, seen: Tensor) -> Links:
        """Metropolis weights; what belongs to a neighbour nobody has heard goes to the diagonal."""
        n, there = len(seen), seen.nonzero()[:, 0]
        ones = torch.ones(len(there))
        some = Cohort(there, ones, ones, n, 0, 0)
        receiver, sender, weight = present(self.mixing({}, some), some).links
        return Links(receiver, there[sender], weight)

    def down(self, memory: Stacks, cohort: Cohort, name: str) -> Mixing:
        """Rows of the identity, or of Q."""
        return (self.related if name in ("pull", "stiffness") else super().down)(memory, cohort, name)

    @property
    def wires(self) -> Wires:
        """Neighbours send more than a row."""
        return Relays(at_home=True, of=self)


@dataclass(frozen=True)
class Relays(Wires):
    """Neighbours who send each other tasks, covariances and what others pull."""

    of: TaskGraph = field(kw_only=True)

    def messages(self, way: Direction, memory: Stacks, cohort: Cohort, name: str, mixing: Mixing, width: int) -> Links:
        """A neighbour sends its task, its covariance and the pull it relays: 2 q + |N|^2 numbers an edge."""
        if name in ("pull", "stiffness"):  # they came with the exchange before
            return nothing(mixing)
        if name != "task" or way == "down":
            return super().messages(way, memory, cohort, name, mixing, width)
        receiver, sender, _ = present(self.of.mixing(memory, cohort), cohort).links
        numbers = 2 * width + self.of.sets(cohort.n_clients).sizes[cohort.index[sender]].square()
        return Links(receiver, sender, numbers.double())


@lru_cache(maxsize=16)
def _neighbourhoods(network: Network, n: int, disconnected: Disconnected) -> TaskSets:
    receiver, sender, _ = weights_for(network, n, disconnected).links
    return TaskSets.closed(receiver, sender, n)


@dataclass(frozen=True)
class TaskStar(Tasks):
    """One center averages the models; it also holds every client's task and one covariance over all of them (MTL).

    The models are weighted by examples, or `equal`; tasks are kept apart, a row for each client.
    """

    equal: bool = False
    beta: float | None = 1.0
    eps: float = 1e-3
    limit: float = math.inf
    per_n = False
    own_terms = False
    line = "one center averages the models; tasks are kept apart, related by a covariance learned during the run"

    def __post_init__(self) -> None:
        within(self, beta="(0, 1]; try 1", eps="(0, 0.5]; try 0.001")

    def n_rows(self, n_clients: int, name: str) -> int:
        """One model; a task, and what belongs to it, for each client."""
        return n_clients if name in ("task", "stiffness") else 1

    def sets(self, n: int) -> TaskSets:
        """One, of all tasks."""
        return TaskSets.everyone(n)

    def relations(self, memory: Stacks) -> Tensor:
        """Of the one covariance."""
        n = len(memory["examples"])
        return correlations(memory["covariance"].cpu().view(n, n))

    def curvature(self, memory: Stacks, tasks: Tensor | None = None, name: str = "") -> Links:
        """The precision, of tasks that have been heard."""
        examples, n = memory["examples"].cpu(), len(memory["examples"])
        at, precision = torch.arange(n) if tasks is None else tasks, memory["precision"].cpu().view(n, n)
        at = at[examples[at] > 0]
        if name == "stiffness":
            own = precision.diagonal()[at]
            return Links(at[own != 0], at[own != 0], own[own != 0])
        rows = precision[at]
        row, column = rows.nonzero(as_tuple=True)
        return Links(at[row], column, rows[row, column])

    def heard(self, seen: Tensor) -> Links:
        """The one covariance as it was."""
        return Links(torch.zeros(1, dtype=torch.int64), torch.zeros(1, dtype=torch.int64), torch.ones(1).double())

    def down(self, memory: Stacks, cohort: Cohort, name: str) -> Mixing:
        """The one model, the client's own task, rows of the precision."""
        if name in ("pull", "stiffness"):
            return self.related(memory, cohort, name)
        if name == "task":
            return Mixing.gather(cohort.index, cohort.n_clients)
        return super().down(memory, cohort, name)

    def up(self, memory: Stacks, cohort: Cohort, name: str) -> Mixing:
        """One row for the models; every task to its own."""
        if name == "task":
            return Mixing.scatter(cohort.index, cohort.n_clients, rest="keep")
        return Star(self.equal).up(memory, cohort, name)

    @property
    def wires(self) -> Wires:
        """The center adds up the pull before it sends it."""
        return AddsUp(names=("pull",))


@dataclass(frozen=True)
class AddsUp(Wires):
    """A center that adds up before it sends: one row for each client, however many rows it is made of."""

    names: tuple[str, ...] | None = field(default=None, kw_only=True)  # None: whatever comes down

    def messages(self, way: Direction, memory: Stacks, cohort: Cohort, name: str, mixing: Mixing, width: int) -> Links:
        """One row for each client."""
        if way == "down" and (self.names is None or name in self.names):
            return Links(torch.arange(len(cohort)), cohort.index, torch.full((len(cohort),), width).double())
        return super().messages(way, memory, cohort, name, mixing, width)


@dataclass(frozen=True)
class Duals(Topology):
    """The center holds every task's dual sum; a client's model mixes them by how tasks are related (MOCHA).

        down   w_t = 1/lambda sum_t' Sigma_tt' b_t'          up   the identity: b_t = 1/n_t X_t^T alpha_t
        meet   every so many rounds  Sigma <- (W W^T)^(1/2) / tr(.)

    So W = W(alpha) always, also right after Sigma has changed. `stiffness` = sum_t' |Sigma_tt'| / lambda is the
    curvature that bounds all tasks' moves at once: the paper's sigma'_t Sigma_tt / lambda, with a sigma' of its own for
    each task instead of their maximum. `relation`: "learned", "none" (Sigma = I/m, every task alone) or "same"
    (Sigma = 1 1^T/m, one model for all).
    """

    strength: float = 1e-2
    relation: Literal["learned", "none", "same"] = "learned"
    every: int = 10
    eps: float = 1e-3
    reads_updates = True

    def __post_init__(self) -> None:
        within(self, strength="(0, inf); try 0.01", relation=("learned", "none", "same"))
        within(self, every=">= 1; try 10", eps="(0, 0.5]; try 0.001")

    def n_centers(self, n_clients: int) -> int:
        """A dual sum for each task."""
        return n_clients

    def remembers(self, n_clients: int) -> Stacks:
        """Sigma (zero where a task has not come), and what every task told of its share of the two objectives."""
        check_pairs(n_clients**2, n_clients, True)
        told = {name: torch.zeros(n_clients, dtype=torch.float64) for name in ("examples", "primal", "dual")}
        sigma = torch.zeros(n_clients, n_clients, dtype=torch.float64)
        return told | {"covariance": sigma, "condition": torch.ones(1, dtype=torch.float64)}

    def down(self, memory: Stacks, cohort: Cohort, name: str) -> Mixing:
        """Rows of Sigma / lambda; for `stiffness` their sums."""
        rows = memory["covariance"].cpu()[cohort.index] / self.strength
        if name != "stiffness":
            return Mixing.dense(rows, "none")
        sums = rows.abs().sum(1)
        sums = torch.where(sums > 0, sums, 1 / self.strength)  # a task before its first exchange: Sigma = [1]
        every = torch.arange(len(cohort))
        return Mixing.sparse(every, cohort.index, sums, (len(cohort), cohort.n_clients), "none")

    def up(self, memory: Stacks, cohort: Cohort, name: str) -> Mixing:
        """Columns of the identity."""
        return Mixing.scatter(cohort.index, cohort.n_clients, rest="keep")

    def place(self, memory: Stacks, cohort: Cohort, centers: Stacks, sent: Stacks) -> Stacks:
        """Who came, and what they told."""
        told = {name: sent[name][:, 0].double().cpu() for name in ("primal", "dual")}
        return told | {"examples": cohort.sizes.double()}

    def meet(self, memory: Stacks, arrived: Cohort, centers: Stacks) -> tuple[Stacks, Stacks]:
        """Tasks that are new get a variance; then, when it is time, Sigma is found anew."""
        seen, sigma = memory["examples"].cpu() > 0, memory["covariance"].cpu()
        m, known = int(seen.sum()), int((sigma.diagonal() > 0).sum())
        if m > known:
            sigma = self.widened(sigma, seen, known, m)
        if self.relation == "learned" and len(arrived) and (arrived.round + 1) % self.every == 0:
            duals = centers["model"].cpu().double()[seen]
            found = cov_and_prec_of(sigma[seen][:, seen] @ duals / self.strength, self.eps)
            sigma = torch.zeros_like(sigma)
            sigma[seen.nonzero(), seen.nonzero()[:, 0]] = found.cov
            memory = memory | {"condition": torch.full((1,), found.condition, dtype=torch.float64)}
        return memory | {"covariance": sigma}, centers

    def widened(self, sigma: Tensor, seen: Tensor, known: int, m: int) -> Tensor:
        """Sigma with a variance of 1/m for every task that is new, and trace one."""
        if self.relation == "same":
            return torch.outer(seen.double(), seen.double()) / m
        new = seen & (sigma.diagonal() == 0)
        return sigma * (known / m) + torch.diag(new.double() / m)

    @property
    def wires(self) -> Wires:
        """The center adds up before it sends: one row for each client."""
        return AddsUp()

    def relations(self, memory: Stacks) -> Tensor:
        """Of Sigma."""
        return correlations(memory["covariance"].cpu())

    def picture(self, memory: Stacks, everyone: Cohort) -> Picture:
        """One center, whatever it holds."""
        return Star().picture(memory, everyone)

    def words(self, n_clients: int) -> str:
        """Tasks of their own, related."""
        how = {"none": "not at all", "same": "as one model"}
        related = how.get(self.relation, "by a covariance learned during the run")
        return f"one center holds every client's task; they are related {related}"

    def shows(self, view: View) -> dict[str, float]:
        """The two objectives at the models of the round before, and how far they are apart."""
        memory = view.memory
        if not bool(memory["examples"].any()):
            return {}
        primal, dual = (float(memory[name].sum()) for name in ("primal", "dual"))
        return {"primal": primal, "dual": dual, "gap": primal - dual, "condition": float(memory["condition"])}
