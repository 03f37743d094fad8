"""FOMAML: MAML without second derivatives; the gradient after adapting is taken as it is.

    client i:   theta_K  <-  K full-batch steps of rate beta on L_i, from theta;    g_i = grad L_i(theta_K)
    center:     theta    <-  theta - update( 1/T sum_i g_i )

Symbols:     K = `steps`, beta = `lr`; `center` is the outer optimizer.
Reduces to:  `fedsgd` with equal weights at beta = 0; `maml` where the losses are linear.
Reference:   Finn et al., ICML 2017, https://arxiv.org/abs/1703.03400; Nichol et al., 2018,
             https://arxiv.org/abs/1803.02999
"""

from ..learn import Maml
from ..method import Aggregate, Center, Everyone, Exchange, Mean, Method, NoPrivacy, Privacy, Select, Star, recipe
from ..parts.optimizer import SGD


@recipe
def fomaml(
    *,
    lr: float = 0.05,
    steps: int = 5,
    batch: int | None = None,
    held_out: bool = False,
    center: Center = SGD(0.1),
    select: Select = Everyone(),
    aggregate: Aggregate = Mean(),
    privacy: Privacy = NoPrivacy(),
) -> Method:
    """First-order MAML; see `polycentric.learn.meta_gradient`."""
    learn = Maml(lr, steps, batch, held_out, first_order=True)
    return Method.of("fomaml", Exchange((learn,), Star(equal=True), select, aggregate, center, privacy))
