"""From a torch module to a chain of secure layers.

    module --torch.fx--> graph --node by node, on a few rows of zeros--> steps --branches joined--> Chain

Every node is matched with a secure layer and run in torch; the layer's output shape must be torch's. (Not on torch's
meta device: its first use imports torch's compiler, more than a second and 80 MB at every party.) A region of two
branches that an addition joins becomes a `Residual`. Whatever has no secure layer is a `ModelError` that names it and
what to use instead.
"""

from __future__ import annotations

import copy
import inspect
import warnings
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx, nn

from mpcpipe.errors import ModelError
from mpcpipe.nn import match
from mpcpipe.nn.advice import advice
from mpcpipe.nn.chain import Chain, state_dict
from mpcpipe.nn.layers import Layer, MaxPool2d, ReLU, Residual, walk
from mpcpipe.ring.bilinear import Shape

__all__ = ["Chain", "convert", "state_dict"]

# A prime batch size: a reshape that mixes rows of the batch does not come out at it again by chance.
BATCH = 7


def convert(module: nn.Module, input_shape: Shape, seed: int = 0) -> Chain:
    """The chain of secure layers that computes what `module` computes in training, starting from its weights.

    input_shape: of one row, without the batch. seed: of the public dropout masks. The module is left as it is.
    A layer without a secure form, control flow that depends on data, and shapes that do not fit are a ModelError.
    """
    _check_state(module)
    layers = tuple(_Builder(_traced(module), set(dict(module.named_modules())), seed).build(input_shape))
    state = module.state_dict()
    learned = {f"{layer.name}.{key}" for layer in walk(layers) for key in layer.initial}
    for name, _ in module.named_parameters():
        if name not in learned:
            raise ModelError(f"{name}: the model's forward never uses this parameter; remove it")
    for layer in walk(layers):
        layer.initial = {key: state[f"{layer.name}.{key}"].detach().cpu().float().clone() for key in layer.initial}
    shapes = []
    shape: Shape = (BATCH, *input_shape)
    for layer in layers:
        shape = tuple(layer.output_shape(shape))
        shapes.append(shape[1:])
    return Chain(
        layers,
        tuple(input_shape),
        tuple(shapes),
        template={key: value.detach().to("meta") for key, value in state.items()},
        kept={key: value.detach().cpu().clone() for key, value in state.items() if key not in learned},
    )


def _check_state(module: nn.Module) -> None:
    if match.maker_of(module) is not None:
        kind = type(module).__name__
        raise ModelError(f"the model is a single {kind}; put it into nn.Sequential, so that it has a name")
    owner: dict[int, str] = {}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        if isinstance(parameter, nn.parameter.UninitializedParameter):
            raise ModelError(f"{name} has no shape yet; {advice('lazylinear')}")
        if id(parameter) in owner:
            raise ModelError(f"{name} and {owner[id(parameter)]} are one parameter; sharing weights is not supported")
        if not parameter.requires_grad:
            raise ModelError(f"{name} is frozen (requires_grad is False), but all weights are trained; unfreeze it")
        owner[id(parameter)] = name
    for name, inner in module.named_modules():
        if inner._forward_hooks or inner._forward_pre_hooks or nn.utils.parametrize.is_parametrized(inner):
            where = f"{name or 'the model'} ({type(inner).__name__})"
            raise ModelError(f"{where} has hooks or parametrizations, which cannot run on shares; remove them")


class _Tracer(fx.Tracer):
    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        # Subclasses of supported layers, too: their type lies outside torch.nn.
        return super().is_leaf_module(m, module_qualified_name) or match.maker_of(m) is not None


def _traced(module: nn.Module) -> fx.GraphModule:
    """The graph of the module in training, over a twin of the module, whose running statistics may change."""
    takes = list(inspect.signature(module.forward).parameters)
    if len(takes) != 1:
        raise ModelError(
            f"the model's forward takes {', '.join(takes) or 'nothing'}; it must take the batch, and only that"
        )
    try:
        twin = copy.deepcopy(module).train().cpu().float()
        traced = fx.GraphModule(twin, _Tracer().trace(twin))
    except Exception as error:
        _blame_module(module, error)
        raise ModelError(
            f"the model cannot be traced by torch.fx: {_first_line(error)}. Its forward must do the same for every "
            f"input: no if, loop or conversion that depends on the values of a tensor"
        ) from error
    traced.graph.eliminate_dead_code()
    return traced


def _blame_module(module: nn.Module, error: Exception) -> None:
    """Where a model cannot be traced, a layer that has no secure form anyway (an LSTM, say) is the better message."""
    for name, inner in module.named_modules():
        kind = type(inner).__name__
        if not list(inner.children()) and type(inner).__module__.startswith("torch.nn") and not match.maker_of(inner):
            raise ModelError(f"{name} ({kind}) cannot be trained securely: {advice(kind)}") from error


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n")[0].rstrip(".") or type(error).__name__


@dataclass(frozen=True)
class _Step:
    """A node of the graph: the layer that computes it (None: it is its input), or the addition of its two inputs."""

    name: str
    inputs: tuple[fx.Node, ...]
    layer: Layer | None = None


class _Builder(fx.Interpreter):
    """Runs the graph on a small batch of zeros and collects a step for each node that holds a tensor."""

    def __init__(self, module: fx.GraphModule, names: set[str], seed: int) -> None:
        super().__init__(module, garbage_collect_values=False)
        self.extra_traceback = False  # it would be added to our messages
        self.names, self.seed = names, seed
        self.steps: dict[fx.Node, _Step] = {}
        self.called: set[str] = set()
        self.joined: set[fx.Node] = set()
        self.ends: list[fx.Node] = []
        # The immediate dominator of each node (all ways to it lead through it), and its depth in that tree.
        self.above: dict[fx.Node, tuple[fx.Node, int]] = {}

    def build(self, input_shape: Shape) -> list[Layer]:
        """The layers of the whole graph."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch's remarks on how it would compute, which it does not
            with torch.no_grad(), torch.random.fork_rng(devices=[]):  # dropout draws
                self.run(torch.zeros(BATCH, *input_shape))
        layers = self._row(*self.ends)
        if not layers:
            raise ModelError("the model has no layer")
        return layers

    # nodes

    def run_node(self, n: fx.Node) -> Any:
        """The node's value (torch's, without data), after its step is noted."""
        if n.op == "placeholder":
            self.above[n] = (n, 0)
            self.ends.append(n)
            return super().run_node(n)
        if n.op == "output":
            (end,) = n.args
            if not isinstance(end, fx.Node) or not isinstance(self.env[end], torch.Tensor):
                raise ModelError("the model's forward must return one tensor, the scores")
            self.ends.append(end)
            return super().run_node(n)
        if n.op == "get_attr":
            raise ModelError(
                f"{n.target}: the model uses this tensor directly; weights must belong to a layer of torch.nn"
            )
        sources = tuple(node for node in n.all_input_nodes if isinstance(self.env[node], torch.Tensor))
        if not sources or match.is_plain(n.op, n.target, n.args):
            return super().run_node(n)
        name, kind = self._name(n)
        where = f"{name} ({kind})"
        if match.is_add(n.target):
            return self._add(n, sources, name, where)
        args, kwargs = self.fetch_args_kwargs_from_env(n)
        module: nn.Module | None
        module = self.fetch_attr(str(n.target)) if n.op == "call_module" else match.as_module(n.target, args, kwargs)
        maker = match.maker_of(module) if module is not None and len(sources) == 1 else None
        if module is None or maker is None:
            raise ModelError(f"{where} cannot be trained securely: {advice(kind)}")
        if n.op == "call_module":
            self._check_called_once(str(n.target), where, module)
        self._check_in_place(sources[0], where, getattr(module, "inplace", False))
        before = tuple(self.env[sources[0]].shape)
        try:
            result = self._torch(n, where)
        except ModelError:
            # Where torch fails because of an option that has no secure form, that is the better message.
            maker(match.Found(name, where, module, before, before, self.seed))
            raise
        after = tuple(result.shape)
        layer = maker(match.Found(name, where, module, before, after, self.seed))
        if layer is not None:
            _check_shape(where, layer, before, after)
        self.steps[n] = _Step(name, sources, layer)
        self.above[n] = (sources[0], self.above[sources[0]][1] + 1)
        return result

    def _add(self, n: fx.Node, sources: tuple[fx.Node, ...], name: str, where: str) -> torch.Tensor:
        if len(sources) != 2:
            raise ModelError(f"{where} cannot be trained securely: it must add the results of two different branches")
        self._check_in_place(sources[0], where, match.adds_in_place(n.target))
        if n.kwargs.get("alpha", 1) != 1:
            raise ModelError(f"{where} cannot be trained securely: leave alpha out")
        result = self._torch(n, where)
        shapes = [tuple(self.env[node].shape[1:]) for node in sources]
        if shapes[0] != shapes[1]:
            raise ModelError(f"{where} adds {shapes[0]} to {shapes[1]}; both branches must end in the same shape")
        fork = self._join(*sources)
        self.steps[n] = _Step(name, sources)
        self.above[n] = (fork, self.above[fork][1] + 1)
        return result

    def _torch(self, n: fx.Node, where: str) -> torch.Tensor:
        """What torch makes of the node: a tensor whose first dimension is still the batch."""
        try:
            result: torch.Tensor = super().run_node(n)
        except Exception as error:
            shapes = [tuple(self.env[node].shape[1:]) for node in n.all_input_nodes if hasattr(self.env[node], "shape")]
            got = " and ".join(map(str, shapes))
            raise ModelError(f"{where} does not take an input of shape {got}: {_first_line(error)}") from error
        if not isinstance(result, torch.Tensor):
            raise ModelError(
                f"{where} cannot be trained securely: it gives more than one tensor; use a form that gives one"
            )
        if result.dim() < 2 or result.shape[0] != BATCH:
            raise ModelError(
                f"{where} mixes the rows of a batch; every result must keep the batch as its first dimension"
            )
        return result

    def _name(self, n: fx.Node) -> tuple[str, str]:
        """A name that no other node has (the module's, or the function's within its module), and the type."""
        if n.op == "call_module":
            name, kind = str(n.target), type(self.fetch_attr(str(n.target))).__name__
            if name not in self.called:
                return name, kind
        else:
            kind = n.target if isinstance(n.target, str) else getattr(n.target, "__name__", str(n.target))
            kind = "max_pool2d" if n.target is torch.nn.functional.max_pool2d else kind
            inside = list(n.meta.get("nn_module_stack") or {})
            name = f"{inside[-1]}.{kind}" if inside else kind
        count, unique = 2, name
        while unique in self.names:
            unique, count = f"{name}:{count}", count + 1
        self.names.add(unique)
        return unique, kind

    def _check_called_once(self, target: str, where: str, module: nn.Module) -> None:
        if target in self.called and module.state_dict():
            raise ModelError(f"{where}: {target} is called twice; a layer with weights must be used once")
        self.called.add(target)

    def _check_in_place(self, source: fx.Node, where: str, in_place: bool) -> None:
        # torch would change the value under its other users; on shares they would see the old one.
        readers = [user for user in source.users if not match.is_plain(user.op, user.target, user.args)]
        if in_place and len(readers) > 1:
            raise ModelError(
                f"{where} writes over a value that another branch reads; use its form that is not in place"
            )

    # branches

    def _join(self, a: fx.Node, b: fx.Node) -> fx.Node:
        """The last node that all ways to both lead through."""
        while a is not b:
            (up_a, depth_a), (up_b, depth_b) = self.above[a], self.above[b]
            if depth_a >= depth_b:
                a = up_a
            if depth_b >= depth_a:
                b = up_b
        return a

    def _row(self, start: fx.Node, end: fx.Node) -> list[Layer]:
        """The layers after `start` up to `end`, additions with their branches as one `Residual`."""
        layers: list[Layer] = []
        node = end
        while node is not start:
            step = self.steps[node]
            if node in self.joined:
                raise ModelError(
                    f"{step.name}: its result goes to branches that cross; residual blocks come one after another, "
                    f"or one inside another"
                )
            self.joined.add(node)
            if len(step.inputs) == 2:
                node = self._join(*step.inputs)
                layers.append(_residual(step.name, *(self._row(node, branch) for branch in step.inputs)))
            else:
                layers += [step.layer] if step.layer is not None else []
                node = step.inputs[0]
        return _pool_first(layers[::-1])


def _residual(name: str, first: list[Layer], second: list[Layer]) -> Residual:
    """The longer branch is the body; the shortcut may be empty."""
    if not first and not second:
        raise ModelError(f"{name} adds a value to itself; double the weights of the layer before instead")
    body, shortcut = (first, second) if len(list(walk(first))) >= len(list(walk(second))) else (second, first)
    return Residual(name, body, shortcut)


def _pool_first(layers: list[Layer]) -> list[Layer]:
    """ReLU and max pooling commute; the other way round there are fewer ReLUs, a quarter for windows of 2x2."""
    for i in range(len(layers) - 1):
        if isinstance(layers[i], ReLU) and isinstance(layers[i + 1], MaxPool2d):
            layers[i], layers[i + 1] = layers[i + 1], layers[i]
    return layers


def _check_shape(where: str, layer: Layer, before: Shape, after: Shape) -> None:
    try:
        ours = tuple(layer.output_shape(before))
    except ValueError as error:
        raise ModelError(f"{where}: {_first_line(error)}") from error
    if ours != after:
        raise ModelError(
            f"{where}: the secure layer gives {ours[1:]} where torch gives {after[1:]}; please report this"
        )
