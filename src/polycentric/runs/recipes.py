"""Methods by their words: `build_method("fedavg", {"lr": 0.1, "select": "uniform(n=10)"})`, and back again.

A setting is reached by its name wherever it lives: `lr` of the clients' training, `select` of the method, `select.n` of
the selection. Parts are written as the language has them.
"""

import dataclasses
import inspect
import math
import typing
from collections.abc import Callable, Mapping
from typing import Any

from ..errors import UsageError, require, unknown
from ..language import NoWords, kinds, spell, value_of
from ..language.own_code import is_own, own_function
from ..learn import Train
from ..method import Method, Recipe
from ..methods import METHODS

BY_METHODS = ("trains", "rates", "part")  # arguments of `Train` that name a method's own parts: it sets them itself


def recipe_of(method: str) -> Callable[..., Method]:
    """What makes a method: one of ours by name, or a function of yours as `module:attribute`."""
    if is_own(method):
        found: Callable[..., Method] = own_function(method, "method")
        return found
    if method not in METHODS:
        raise unknown("method", method, METHODS)
    return METHODS[method]


def parameters(method: str) -> dict[str, inspect.Parameter]:
    """Every setting a method has, its own and those of its clients' training."""
    recipe = recipe_of(method)
    found = {name: _typed(p) for name, p in inspect.signature(recipe, eval_str=True).parameters.items()}
    if any(p.kind is p.VAR_KEYWORD for p in found.values()):
        found = {name: p for name, p in found.items() if p.kind is not p.VAR_KEYWORD}
        own = inspect.signature(Train, eval_str=True).parameters
        found |= {name: p for name, p in own.items() if name not in found and name not in BY_METHODS}
    return found


def _typed(parameter: inspect.Parameter) -> inspect.Parameter:
    """A setting whose type nobody wrote down has that of its default: a number, a text, a kind of part."""
    default = parameter.default
    if parameter.annotation is not parameter.empty or parameter.kind is parameter.VAR_KEYWORD:
        return parameter
    if default is parameter.empty or default is None:
        return parameter.replace(annotation=int | float | str | None)
    of_part = (kind for kind, parts in kinds().items() if any(part.builds is type(default) for part in parts.values()))
    return parameter.replace(annotation=next(of_part, type(default)))


def build_method(name: str, settings: Mapping[str, Any]) -> Method:
    """A method with some of its settings changed, all checked."""
    known = parameters(name)
    own, inner = _sorted_out(settings)
    values: dict[str, Any] = {}
    for key in own | inner:
        if key not in known:
            sums = f"{name} takes no aggregate: what its clients send is added up, related or kept, and not averaged"
            require(key != "aggregate", f"{sums}, so that no rule could take the place of a mean; leave it out")
            raise unknown(f"setting of {name}", key, known)
        wanted, fields = known[key].annotation, inner.get(key, {})
        if key in own:
            values[key] = value_of(key, own[key], wanted, fields)
        elif dataclasses.is_dataclass(part := known[key].default) and not isinstance(part, type):
            values[key] = _changed(key, part, fields)
        else:
            raise UsageError(
                f"{key} of {name} has no settings of its own, so '{key}.{next(iter(fields))}' cannot be set"
            )
    made = recipe_of(name)(**values)
    require(isinstance(made, Method), f"method '{name}' gives a {type(made).__name__}; return a polycentric.Method")
    return made if not is_own(name) else dataclasses.replace(made, recipe=Recipe(name, values))


def _sorted_out(settings: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """Settings of the method, and settings of its parts: `select.n=5`, or a table {name, n}."""
    own: dict[str, Any] = {}
    inner: dict[str, dict[str, Any]] = {}
    for key, value in settings.items():
        head, dot, field = str(key).partition(".")
        if dot:
            inner.setdefault(head, {})[field] = value
        elif isinstance(value, Mapping):
            table = dict(value)
            if "name" in table:
                own[head] = table.pop("name")
            if table:
                inner.setdefault(head, {}).update(table)
        else:
            own[head] = value
    return own, inner


def _changed(key: str, part: Any, fields: Mapping[str, Any]) -> Any:
    """A part with some of its fields replaced."""
    hints, name = typing.get_type_hints(type(part)), type(part).__name__.lower()
    known = {field.name: hints[field.name] for field in dataclasses.fields(part)}
    for field in fields:
        if not known:
            raise UsageError(
                f"{key}={name} has no settings, so '{key}.{field}' cannot be set; choose another {key} first"
            )
        if field not in known:
            raise unknown(f"setting of {key}={name}", str(field), known)
    return dataclasses.replace(part, **{f: value_of(f"{key}.{f}", v, known[f]) for f, v in fields.items()})


def words_of(recipe: Recipe) -> tuple[dict[str, Any], list[str]]:
    """The words that build a method again, and the names of the arguments that have none.

    >>> from polycentric import Uniform, fedavg
    >>> words_of(fedavg(lr=0.5, select=Uniform(10)).recipe)
    ({'lr': 0.5, 'select': 'uniform(n=10)'}, [])
    """
    known = parameters(recipe.name) if recipe.name in METHODS or is_own(recipe.name) else {}
    words: dict[str, Any] = {}
    silent = []
    for name, value in recipe.arguments.items():
        try:
            wanted = known[name].annotation if name in known else Any
            plain = isinstance(value, bool | int) or (isinstance(value, float) and math.isfinite(value))
            words[name] = value if plain else spell(value, wanted)  # JSON has no infinity
        except NoWords:
            silent.append(name)
    return words, silent
