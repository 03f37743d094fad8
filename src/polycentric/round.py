"""One round of federated learning, the same for every method.

    who -> receive -> learn -> keep -> protect -> mix -> step         (one exchange)

        start   = down @ centers           what every client receives
        local   = learn(start, data)       all clients of a block at once, as one stack
        centers = step(centers, up @ local)        what every center hears

A round is one exchange, or a few in a row. Everything is a stack of named rows: a name comes down, or is
kept by the client, or is sent up. `clients` is the seam: a simulation on one machine, ranks of a cluster and
a real federation differ only in how they answer.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

from .learn import Executor
from .method import Exchange, Method, State
from .parts.answer import Answer as Answer, Part as Part, joined
from .stacks import Cohort, Stacks
from .stacks.stack import Draft


class Clients(Protocol):
    """The seam between the round and whoever trains; who derives from it has `parts`, and may know a shorter way."""

    def everyone(self, round: int, turn: int) -> Cohort:
        """All clients that have data."""

    def answers(self, exchange: Exchange, state: State, cohort: Cohort) -> Iterable[Answer]:
        """Receive, learn, keep and protect at every client of the cohort, block by block."""

    def parts(self, exchange: Exchange, state: State, cohort: Cohort) -> Iterable[Part]:
        """The same, mixed: block by block, or all blocks as one where mixing must see the cohort at once."""
        answers, whole = self.answers(exchange, state, cohort), exchange.whole and not exchange.shares
        return map(mixer(exchange, state), joined(list(answers)) if whole else answers)


@dataclass(frozen=True, eq=False)
class Trip:
    """Who was asked in an exchange, and whose answer came."""

    exchange: Exchange
    before: State
    cohort: Cohort
    arrived: Cohort


def run_round(method: Method, state: State, clients: Clients) -> tuple[State, list[Trip]]:
    """The next state, and who took part; nothing is changed in place."""
    trips = []
    for turn, exchange in enumerate(method.at(state.round)):
        state, trip = run_exchange(exchange, state, clients, turn)
        trips.append(trip)
    return replace(state, round=state.round + 1), trips


def run_exchange(exchange: Exchange, state: State, clients: Clients, turn: int) -> tuple[State, Trip]:
    """One trip down and up."""
    select, topology, aggregate = exchange.select, exchange.topology, exchange.aggregate
    memory, centers = state.memory, state.centers

    everyone = clients.everyone(state.round, turn)
    cohort = select(memory, everyone)  # who
    parts = clients.parts(exchange, state, cohort)  # receive, learn, keep, protect, mix: a stream of blocks

    nobody, blocks, notes, kept = everyone[:0], [], Draft(memory), Draft(state.kept)
    heard = {name: aggregate.start(exchange.up(memory, nobody, name), centers[name]) for name in exchange.sends}
    for part in parts:
        notes.write(part.block.index, part.noted)
        for name in exchange.sends:
            aggregate.add(heard[name], part.sums[name])
        kept.write(part.block.index, part.kept)  # nothing of a block is held when the next one comes
        blocks.append(part.block)

    settled = {name: aggregate.settle(heard[name], centers[name]) for name in exchange.sends}
    arrived = nobody.join(blocks)
    settled = exchange.privacy.at_centers(settled, centers, partial(exchange.up, notes.stacks), everyone, arrived)
    centers = exchange.optimizer.step(centers, settled)  # step
    lost = cohort.without(arrived)
    notes.write(lost.index, select.missed(lost))
    memory, centers = topology.meet(notes.stacks, arrived, centers)
    after = replace(state, centers=centers, kept=kept.stacks, memory=memory)
    return after, Trip(exchange, state, cohort, arrived)


def mixer(exchange: Exchange, state: State) -> Callable[[Answer], Part]:
    """Says what a block comes to: where its clients belong now, and what every center hears of them."""
    notes = Draft(state.memory)

    def mixed(answer: Answer) -> Part:
        block, sent, found = answer.block, answer.sent, noted(exchange, state, answer)
        notes.write(block.index, found)
        up = {name: exchange.up(notes.stacks, block, name) for name in exchange.sends}
        sums = {name: exchange.aggregate.part(up[name], sent[name], block) for name in exchange.sends}
        return Part(block, found, sums, answer.kept)

    return mixed


def noted(exchange: Exchange, state: State, answer: Answer) -> Stacks:
    """What is remembered of a block's clients, (block, ...): what the selection asks for, and where they belong."""
    block, sent = answer.block, answer.sent
    return exchange.select.note(block, sent) | exchange.topology.place(state.memory, block, state.centers, sent)


def receive(exchange: Exchange, state: State, cohort: Cohort) -> Stacks:
    """What comes down to a cohort: one mixing for every name."""
    down = {name: exchange.topology.down(state.memory, cohort, name) for name in exchange.receives}
    return {name: mixing @ state.centers[mixing.of or name] for name, mixing in down.items()}


def visit(exchange: Exchange, received: Stacks, kept: Stacks, run: Executor, cohort: Cohort) -> tuple[Stacks, Stacks]:
    """What happens at the clients; in a real federation, on a stack of one. Returns (sent, kept)."""
    rows = opened(exchange, kept | received, run, cohort)
    rows |= {"start": rows["model"]} if "model" in rows else {}
    for learner in exchange.chain:
        rows = rows | run(learner, rows, cohort)  # learn
    passing = set(exchange.receives) - set(exchange.keeps)  # what comes down anew is nobody's own, unless it is to be
    mine = {name: rows[name] for name in kept if name not in passing}  # keep
    rows = exchange.privacy.at_clients(rows)  # protect
    return {name: rows[name] for name in exchange.sends + exchange.told}, mine


def opened(exchange: Exchange, rows: Stacks, run: Executor, cohort: Cohort) -> Stacks:
    """What clients hold once they have unpacked: a choice among several models, say."""
    for learner in exchange.unpack:
        rows = rows | run(learner, rows, cohort)
    return rows
