"""What a module must not have if many copies of it are to be stacked and averaged.

    stack of parameters (models, ...)  ->  vmap(module)  ->  outputs (models, batch, n_outputs)

Everything a model learns must be a parameter of known shape. BatchNorm also learns running statistics,
which it changes in place while it reads; it is refused, with the GroupNorm to write instead.
"""

import math

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase
from torch.nn.parameter import is_lazy

from ..errors import UsageError


def check(module: nn.Module) -> None:
    """Refuse a module that cannot be stacked, naming the part that is in the way.

    >>> check(nn.Sequential(nn.Conv2d(3, 64, 3), nn.BatchNorm2d(64)))
    Traceback (most recent call last):
    ...
    polycentric.errors.UsageError: the model has BatchNorm2d at '1': its running statistics are neither \
parameters that can be averaged nor allowed in a stack of models; write nn.GroupNorm(groups, channels) \
instead, here nn.GroupNorm(8, 64)
    """
    for name, part in module.named_modules():
        if isinstance(part, _NormBase) and (isinstance(part, _BatchNorm) or part.track_running_stats):
            raise UsageError(_norm_refused(name, part))
    for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
        if is_lazy(tensor):
            raise UsageError(
                f"the model's '{name}' has no shape yet: it comes from a lazy module, and a stack of models "
                "needs every shape when it is built; run one batch through the model first, or write the "
                "sizes out (nn.Linear(in_features, out_features) instead of nn.LazyLinear(out_features))"
            )
    if not any(parameter.requires_grad for parameter in module.parameters()):
        raise UsageError(
            f"the model {type(module).__name__} has no trainable parameters, so there is nothing to learn or "
            "average; give it at least one layer whose parameters have requires_grad=True"
        )


def n_parameters(module: nn.Module) -> int:
    """How many numbers the module learns.

    >>> n_parameters(nn.Linear(784, 10))
    7850
    """
    return sum(parameter.numel() for parameter in module.parameters() if parameter.requires_grad)


def _norm_refused(name: str, part: _NormBase) -> str:
    reason = (
        "its running statistics are neither parameters that can be averaged nor allowed in a stack of models"
        if part.track_running_stats
        else "what it gives for an example depends on the others in the batch, so that clients disagree"
    )
    channels = part.num_features
    # One group for each channel is what InstanceNorm does.
    groups = math.gcd(8, channels) if isinstance(part, _BatchNorm) else channels
    here = f", here nn.GroupNorm({groups}, {channels})" if channels else ""  # a lazy one does not know yet
    where = f" at '{name}'" if name else ""
    return f"the model has {type(part).__name__}{where}: {reason}; write nn.GroupNorm(groups, channels) instead{here}"
