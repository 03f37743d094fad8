"""MAML: the center follows the gradient of the clients' loss *after* they have adapted.

    client i:   theta_K  <-  K full-batch steps of rate beta on L_i, from theta
                g_i      =   J_1 J_2 ... J_K grad L_i(theta_K),   J_j = I - beta H_i(theta_{j-1})
    center:     theta    <-  theta - update( 1/T sum_i g_i )

Symbols:     K = `steps`, beta = `lr`; `center` is the outer optimizer.
Reduces to:  `fedsgd` with equal weights at beta = 0; `fomaml` where the losses are linear. On a quadratic,
             g = (I - beta H)^K H (I - beta H)^K (theta - c).
Held out:    `held_out=True` takes the outer loss on the half of a client's examples that it did not adapt on.
Reference:   Finn et al., Model-agnostic meta-learning, ICML 2017, https://arxiv.org/abs/1703.03400
"""

from ..learn import Maml
from ..method import Aggregate, Center, Everyone, Exchange, Mean, Method, NoPrivacy, Privacy, Select, Star, recipe
from ..parts.optimizer import SGD


@recipe
def maml(
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
    """MAML by Hessian-vector products; see `polycentric.learn.meta_gradient`."""
    learn = Maml(lr, steps, batch, held_out)
    return Method.of("maml", Exchange((learn,), Star(equal=True), select, aggregate, center, privacy))
