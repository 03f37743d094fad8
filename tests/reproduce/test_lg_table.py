"""The table of LG-FedAvg: what its claims ask of three seeds."""

from __future__ import annotations

from polycentric.reproduce import lg_fedavg as lg

VALUES = {
    (lg.ALONE, lg.LOCAL): 80.0, (lg.FEDAVG, lg.LOCAL): 60.0, (lg.LG, lg.LOCAL): 90.0,
    (lg.FEDAVG, lg.COST): 10.0, (lg.LG, lg.COST): 5.0,
    **{(line, new): 60.0 for line in (lg.FEDAVG, lg.LG) for new in lg.NEW.values()},
}  # fmt: skip
FAIR = {"accuracy": (78.0, 77.5, 77.0, 76.5, 60.0), "AUC, logistic": (70.0, 66.0, 62.0, 58.0, 50.0)}


def verdicts(words: str, changes: dict[str, list[float]]) -> list[bool | None]:
    seeds = {lg._name(lg.CIFAR, *key): [value] * 3 for key, value in VALUES.items()}
    for column, numbers in (FAIR | {"AUC, net": FAIR["AUC, logistic"]}).items():
        of = zip(lg.LAMBDAS, numbers, strict=True)
        seeds |= {lg.FOUND[strength, column]: [x, x + 1, x - 1] for strength, x in of}
    return [claim.judge(seeds | changes)[0] for claim in lg.LG_FEDAVG.claims if words in claim.text]


def test_a_seed_that_never_learned_leaves_claims_open() -> None:
    assert verdicts(lg.CIFAR, {}) == [True, True, True]
    stuck = {lg._name(lg.CIFAR, line, new): [60.0, 10.0, 60.0] for line in (lg.FEDAVG,) for new in lg.NEW.values()}
    assert verdicts(lg.CIFAR, stuck) == [True, None, None]
    assert verdicts(lg.CIFAR, {lg._name(lg.CIFAR, lg.LG, lg.COST): [7.0] * 3}) == [True, True, False]
    assert verdicts(lg.CIFAR, {lg._name(lg.CIFAR, lg.ALONE, lg.LOCAL): [80.0] * 2}) == [None, True, True]


def test_hiding_is_cheap_where_both_probes_find_less_and_accuracy_is_clearly_kept() -> None:
    assert verdicts(lg.FACES, {}) == [True, True]
    unsure = {lg.FOUND[strength, "accuracy"]: [70.0, 85.0, 78.0] for strength in lg.LAMBDAS[1:]}
    assert verdicts(lg.FACES, unsure) == [True, None]
    one = {lg.FOUND[strength, "AUC, net"]: [80.0, 81.0, 79.0] for strength in lg.LAMBDAS[1:]}
    assert verdicts(lg.FACES, one) == [False, False]
