"""Checks whether `DEQ` can use a cell, once, by one trace and a few evaluations."""

import inspect
import math
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import tree

from deq_keras.core import graphs
from deq_keras.core.internals import (
    error_message,
    flatten_layers,
    function_graph,
    has_forward_accumulator,
    is_dtype_error,
    is_shape_error,
    own_value,
    remat_mode,
)
from deq_keras.core.problem import FixedPointProblem
from deq_keras.core.structure import Nest, StateStructure, named_leaves
from deq_keras.layers.equilibrium.cell_build import trace_and_build
from deq_keras.layers.equilibrium.cell_problem import (
    CellFunction,
    InjectionRows,
    cell_state,
    equilibrium_layers,
    is_functional,
    is_rnn_cell,
    map_tensors,
    num_rows,
)
from deq_keras.solvers import FixedPointSolver

_ADVICE = (
    "A cell is evaluated until it stops changing, so its `call` must be a pure "
    "function of (state, injection)."
)
_STATE_SHAPES = (
    "A cell must return a state of the shapes that it receives. They are the shapes of "
    "`initial_state(injection)`, by default the shapes that `inject` returns, by "
    "default the inputs. If the state has another width than the inputs, project the "
    "inputs in `inject`, for example with a Dense layer."
)
# Operations that read the shape of a tensor, and not its numbers.
_READ_SHAPES = ("OnesLike", "Rank", "Shape", "ShapeN", "Size", "ZerosLike")
# Operations that draw random numbers and do not say so in their names.
_DRAWS = ("Multinomial", "StatelessMultinomial")
# First words of the operations that update variables.
_UPDATES = ("Assign", "ResourceScatter", "ResourceApply")
# Largest change by rounding, relative to the result, for the bytes of a number.
_ROUNDING = {2: 0.03, 4: 1e-4, 8: 1e-10}
# Size of the largest inputs that are invented for a batch size that is a guess.
_MOST_NUMBERS = 2**20


def check_signature(cell: keras.layers.Layer) -> None:
    """Raises `ValueError` unless `cell` is a layer called with `(state, injection)`."""
    if not isinstance(cell, keras.layers.Layer):
        raise ValueError(
            "`cell` must be a Keras layer, usually an EquilibriumCell, whose call "
            f"takes (state, injection). Received: cell={cell!r} "
            f"(of type {type(cell).__name__})."
        )
    if is_rnn_cell(cell) or not (is_functional(cell) or _takes_injection(cell)):
        raise ValueError(
            "`cell` must be called as `cell(state, injection)`: a DEQ layer applies it "
            "repeatedly to its own result, with the injected inputs. "
            f"Received: cell={type(cell).__name__}, whose call takes "
            f"{inspect.signature(cell.call)}. Use `deq_keras.layers.cell_from(layer)`, "
            "a cell such as DenseCell, an EquilibriumCell of your own, or a functional "
            "model with a list of the two inputs."
        )
    _check_sublayers(cell)


def _check_sublayers(cell: keras.layers.Layer) -> None:
    """Raises `ValueError` if a cell contains an equilibrium layer.

    It would update its metrics and its regularization loss at every evaluation.
    """
    for layer in equilibrium_layers(cell):
        if layer is not cell:
            raise ValueError(
                "A cell must not contain a DEQ layer: the inner equilibrium would be "
                "solved at every evaluation of the outer one, with metrics and losses "
                "that a cell must not have. Write one cell whose state is a dict of "
                "both states, which one solve finds together, or use two DEQ layers in "
                f"sequence. Received: cell={type(cell).__name__} with the sublayer "
                f"{layer.name!r} (of type {type(layer).__name__})."
            )


def _takes_injection(cell: keras.layers.Layer) -> bool:
    names = []
    for name, parameter in inspect.signature(cell.call).parameters.items():
        if parameter.kind is parameter.VAR_POSITIONAL:
            return True
        if parameter.kind in (
            parameter.POSITIONAL_ONLY,
            parameter.POSITIONAL_OR_KEYWORD,
        ):
            names.append(name)
    return len(names) >= 2 and names[1] not in ("training", "mask")


def apply_once(
    apply: Callable[[Nest, Nest], Nest],
    cell: keras.layers.Layer,
    state: Nest,
    injection: Nest,
) -> Nest:
    """Returns `apply(state, injection)`; explains how to fix shapes and dtypes.

    Args:
        apply: Function `(state, injection) -> state` that calls `cell`.
        cell: Layer.
        state: Nest of tensors.
        injection: Nest of tensors.

    Raises:
        ValueError: If an operation in the cell fails because of a shape or a dtype.
    """
    try:
        return apply(state, injection)
    except TypeError as error:
        if not is_dtype_error(error):
            raise
        raise ValueError(
            f"`{type(cell).__name__}.call` failed at its first evaluation, because "
            "dtypes do not fit. Create each sublayer with `dtype=self.dtype_policy`, "
            "so that it computes in the dtype of the cell. "
            f"Received: a cell that computes in {cell.compute_dtype}. "
            f"Error: {error_message(error)}"
        ) from error
    except (ValueError, tf.errors.InvalidArgumentError) as error:
        if not is_shape_error(error):
            raise
        raise ValueError(
            f"`{type(cell).__name__}.call` failed at its first evaluation, because "
            f"shapes do not fit. {_STATE_SHAPES} "
            f"Received: state={_shapes(state)}, injection={_shapes(injection)}. "
            f"Error: {error_message(error)}"
        ) from error


def _shapes(nest: Nest) -> Any:
    return map_tensors(lambda leaf: str(tuple(leaf.shape)), nest)


class CellContract:
    """What `DEQ` requires of its cell, and what has been checked of it.

    Args:
        cell: The cell of the layer.
        inject: Function of inputs, a mask and `training` that returns an injection.

    Attributes:
        checked_modes: Set of the pairs `(training, differentiates_jacobian)` for which
            `call` was traced.
        has_checked_samples: Boolean. Whether `check_samples` came to a result.
        rows: The `InjectionRows` of the cell.

    Raises:
        ValueError: If the cell is not a layer called with `(state, injection)`.
    """

    def __init__(self, cell: Any, inject: Callable[..., Nest]) -> None:
        check_signature(cell)
        self.cell = cell
        self.inject = inject
        self.checked_modes: set[tuple[bool, bool]] = set()
        self.has_checked_samples = False
        self.rows = InjectionRows(
            lambda call, training: inject(**call, training=training)
        )

    def build(self, specs: Nest) -> Nest:
        """Creates the weights of the cell, and checks it.

        Args:
            specs: Nest of `tf.TensorSpec` of the inputs; `None` for absent ones.

        Returns:
            The initial state, a nest of symbolic tensors.
        """
        cell = self.cell
        self.checked_modes.clear()  # An earlier build may have failed after its trace.

        def trace(inputs: Nest) -> tuple[Nest, Nest]:
            try:
                injection = self.inject(inputs)
            except (AttributeError, KeyError) as error:
                if not tree.is_nested(getattr(error, "obj", inputs)):
                    raise  # It is not about the list or dict of the inputs.
                raise ValueError(
                    f"`{type(cell).__name__}.inject` failed for several inputs. "
                    "Concatenate them if the cell takes one tensor, or write a cell "
                    f"whose `inject` takes them. Received: inputs={_shapes(inputs)}. "
                    f"Error: {error_message(error)}"
                ) from error
            _check_injection(cell, injection)
            start = cell_state(cell, injection)
            # The initial state may be the injection itself.
            state = tree.map_structure(tf.identity, start)
            value = self.check(state, injection, training=False)
            if not (_reads(value, inputs, state) or _reads(start, inputs)):
                warnings.warn(
                    f"`{type(cell).__name__}.call` does not use the inputs, so that "
                    "the output is the same for all samples. Compute the injection "
                    "from the inputs in `inject`, and use it in `call`, for example "
                    f"tanh(W z + u). Received: injection={_shapes(injection)}."
                )
            return state, value

        state, value = trace_and_build(cell, trace, specs)
        self.check_samples(_examples(specs, value))
        return state

    def check(
        self,
        state: Nest,
        injection: Nest,
        training: bool,
        differentiates_jacobian: bool = False,
    ) -> Nest:
        """Traces one application of the cell, and checks that it is pure.

        Args:
            state: Nest of tensors.
            injection: Nest of tensors.
            training: Boolean.
            differentiates_jacobian: Boolean. Whether training differentiates df/dz.

        Returns:
            The value, a nest of symbolic tensors.
        """
        cell = self.cell
        source = f"`{type(cell).__name__}.call`"
        structure = StateStructure(state)
        num_losses = len(cell.losses)  # `inject` may have added losses.
        graph = function_graph("check")
        with graph.as_default():
            value = apply_once(CellFunction(cell), cell, structure.template, injection)
            _check_sublayers(cell)
            try:
                structure.check(value, f"What {source} returns")
            except ValueError as error:
                raise ValueError(f"{error} {_STATE_SHAPES}") from error
        if len(cell.losses) > num_losses:
            raise ValueError(
                f"{source} added a loss. {_ADVICE} Add losses on the output of the "
                "DEQ layer instead, or in `inject`."
            )
        if not _is_created(cell):
            return value  # Each read of a symbolic weight would draw random numbers.
        nodes = list(graphs.nodes(graph))
        if differentiates_jacobian and any(
            node.op == "StopGradient" and "moments" in node.name for node in nodes
        ):
            warnings.warn(
                f"{source} normalizes with `tf.nn.moments`, as LayerNormalization and "
                "GroupNormalization of Keras do. It stops the gradient of the mean "
                "within the variance, so that the gradient of a Jacobian regularizer "
                "is inexact. Use `deq_keras.layers.LayerNormalization` or "
                "`deq_keras.layers.GroupNormalization` in their place.",
                stacklevel=2,
            )
        types = sorted({node.op for node in nodes})
        draws = [name for name in types if "Random" in name or name in _DRAWS]
        if draws:
            raise ValueError(
                f"{source} draws random numbers ({', '.join(draws)}). {_ADVICE} "
                "Dropout and noise must stay fixed during a solve: sample masks in "
                "`inject` (see VariationalDropout) and apply them in `call`."
            )
        updates = [name for name in types if name.startswith(_UPDATES)]
        if updates:
            raise ValueError(
                f"{source} updates variables ({', '.join(updates)}). {_ADVICE} Layers "
                "such as BatchNormalization belong before or after the DEQ layer. "
                "SpectrallyNormalizedDense takes the kernel that `inject` computes by "
                "`normalized_kernel(training)`."
            )
        self.checked_modes.add((training, differentiates_jacobian))
        return value

    def check_samples(
        self, examples: Iterable[Nest], mask: tf.Tensor | None = None
    ) -> None:
        """Raises `ValueError` if a sample of f depends on the state of another sample.

        Solvers judge each sample alone: coupled samples would seem to converge early.

        Args:
            examples: Inputs of the layer. The first that f accepts decide.
            mask: See the call arguments of `DEQ`.
        """
        for inputs in examples:
            try:
                coupled = self._are_coupled(inputs, mask)
            except Exception:  # The cell may not be defined for such numbers or sizes.
                continue
            if coupled is None:
                continue
            if coupled:
                raise ValueError(
                    f"`{type(self.cell).__name__}.call` must compute each sample (an "
                    "index of the first axis) independently of the others, because a "
                    "solver stops samples one by one. If the first axis holds the "
                    "nodes of one graph or the parts of one system, which is one "
                    "sample, put them on axis 1 and call the layer with inputs[None]. "
                    "A cell for a batch of 1 alone needs inputs that say so: "
                    "keras.Input(batch_shape=(1, ...)). Do not normalize, attend or "
                    "accumulate over the batch. "
                    f"Received: cell={type(self.cell).__name__}, whose result for "
                    f"samples changed with other samples, for inputs={_shapes(inputs)}."
                )
            self.has_checked_samples = True
            return

    def check_call(self, inputs: Nest, mask: tf.Tensor | None) -> None:
        """Checks the samples of an eager call, whose batch size is known."""
        self.check_samples([inputs], mask)
        self.has_checked_samples = num_rows(inputs) > 1

    def _are_coupled(self, inputs: Nest, mask: tf.Tensor | None) -> bool | None:
        """Returns whether samples of f change if others do, or `None` if unknown."""
        batch_size = num_rows(inputs)
        if batch_size < 2 or not _is_created(self.cell):
            return None
        random = np.random.default_rng(0)
        # Drops the losses and updates of `inject`.
        with keras.StatelessScope(initialize_variables=False):
            injection = self.inject(inputs, mask)
            call = (
                {"inputs": inputs} if mask is None else {"inputs": inputs, "mask": mask}
            )
            has_rows = self.rows(call, False)
            if has_rows is None:
                has_rows = tree.map_structure(lambda leaf: False, injection)
            problem = FixedPointProblem(CellFunction(self.cell), injection, mask)

            def add_noise(leaf: Any, has_rows: Any, rows: np.ndarray) -> Any:
                leaf = tf.convert_to_tensor(leaf)
                if has_rows is not True or not leaf.dtype.is_floating:
                    return leaf
                rows = rows.reshape([-1] + [1] * (len(leaf.shape) - 1))
                noise = np.where(rows, random.normal(size=leaf.shape), 0.0)
                return leaf + tf.cast(noise, leaf.dtype)

            def apply_noise(rows: np.ndarray) -> list[np.ndarray]:
                """Returns f, with noise in state and injection of some samples."""
                value = problem.bound(
                    tree.map_structure(
                        lambda leaf, has: add_noise(leaf, has, rows),
                        injection,
                        has_rows,
                    )
                )(tree.map_structure(lambda leaf: add_noise(leaf, True, rows), state))
                return [
                    tf.cast(leaf, tf.float64).numpy() for leaf in tree.flatten(value)
                ]

            nobody, everybody = np.zeros(batch_size, bool), np.ones(batch_size, bool)
            state = cell_state(self.cell, injection)
            state = tree.map_structure(
                lambda leaf: add_noise(leaf, True, everybody), state
            )
            dtypes = [leaf.dtype for leaf in tree.flatten(state)]
            before = apply_noise(nobody)

            def differs(other: list[np.ndarray], kept: np.ndarray) -> bool:
                for one, two, dtype in zip(before, other, dtypes, strict=True):
                    one, two = one[kept], two[kept]
                    finite = np.isfinite(one) & np.isfinite(two)
                    one, two = one[finite], two[finite]
                    # Rounding may depend on other samples.
                    tolerance = _ROUNDING[dtype.size] * np.abs(one).max(initial=0.0)
                    if np.abs(one - two).max(initial=0.0) > tolerance:
                        return True
                return False

            if not any(np.isfinite(leaf).any() for leaf in before):
                return None
            half = random.permutation(batch_size) < batch_size // 2
            if not any(differs(apply_noise(rows), ~rows) for rows in (half, ~half)):
                return False
            # Python code in a cell, such as a draw of NumPy, may change any call.
            return None if differs(apply_noise(nobody), everybody) else True


def _is_created(cell: keras.layers.Layer) -> bool:
    """Returns whether the weights of a cell have values.

    While Keras infers the shapes of a model, weights that the cell shares with another
    layer may lack values.
    """
    return all(own_value(variable) is not None for variable in cell.variables)


def _reads(outputs: Nest, inputs: Nest, state: Nest = ()) -> bool:
    """Returns whether symbolic tensors depend on the values of the inputs.

    Args:
        outputs: Nest of tensors.
        inputs: Nest of tensors.
        state: Nest of tensors. A dependence through them does not count.
    """
    sources = {id(leaf) for leaf in tree.flatten(inputs)}
    seen = {id(leaf) for leaf in tree.flatten(state)}
    tensors = tree.flatten(outputs)
    while tensors:
        tensor = tensors.pop()
        if id(tensor) in sources:
            return True
        if id(tensor) in seen or not tf.is_symbolic_tensor(tensor):
            continue
        seen.add(id(tensor))
        if tensor.op.type not in _READ_SHAPES:
            tensors += tensor.op.inputs
            # A placeholder can be a tensor that the graph captures from outside.
            captures = tensor.graph.captures
            tensors += [outer for outer, inner in captures if inner is tensor]
    return False


def _examples(specs: Nest, value: Nest) -> Iterator[Nest]:
    """Yields small random inputs of the specs, of various batch sizes.

    Args:
        specs: Nest of `tf.TensorSpec` of the inputs.
        value: Nest of symbolic tensors: f of the initial state.
    """
    leaves = [spec for spec in tree.flatten(specs) if spec is not None]
    # A cell that knows its batch size returns as many samples, or an input has an axis
    # of this length. Layers that divide positions need more than two of them.
    nests = [*leaves, *tree.flatten(value)]
    rows = {axis for leaf in nests for axis in leaf.shape[:1]} - {None}
    if 1 in rows:
        return  # A batch of one sample cannot show a dependence.
    axes = {axis for leaf in leaves for axis in leaf.shape[1:]} - {None}
    sizes = [(2, 2), (2, 32), *((n, n) for n in [*sorted(rows), *sorted(axes)])]
    random = np.random.default_rng(0)

    def draw(spec: tf.TensorSpec) -> tf.Tensor:
        shape = [rows_drawn, *(axis or length for axis in spec.shape[1:])]
        if not spec.dtype.is_floating:
            return tf.zeros(shape, spec.dtype)
        return tf.cast(random.normal(size=shape), spec.dtype)

    for rows_drawn, length in sizes:
        numbers = [
            rows_drawn * math.prod(a or length for a in s.shape[1:]) for s in leaves
        ]
        if rows_drawn in rows or sum(numbers) <= _MOST_NUMBERS:
            yield map_tensors(draw, specs)


def _check_injection(cell: keras.layers.Layer, injection: Nest) -> None:
    """Raises `ValueError` if a leaf of an injection cannot be a tensor."""
    for name, leaf in named_leaves(injection, "injection"):
        if leaf is None or isinstance(leaf, str | bool | int | float):
            raise ValueError(
                f"`{type(cell).__name__}.inject` must return a nest of tensors. Leave "
                "out what is not used, and keep options as attributes of the cell. "
                f"Received: {name}={leaf!r}."
            )


def check_arguments(options: dict[str, Any]) -> None:
    """Raises `ValueError` for options of a `DEQ` that belong to something else."""
    for name in ("max_iter", "tol", "damping", "stop_mode"):
        if name in options:
            value = f"{name}={options[name]!r}"
            raise ValueError(
                f"`{name}` is an argument of the solver, not of DEQ. Use DEQ(cell, "
                f"solver=deq_keras.solvers.FixedPointIteration({value})), or "
                f"another solver. Received: {value}."
            )
    if "go_backwards" in options:
        raise ValueError(
            "A DEQ layer reads no sequence in an order, so it has no direction, and "
            "`keras.layers.Bidirectional` cannot wrap it. Use the DEQ itself, or wrap "
            f"a recurrent layer. Received: go_backwards={options['go_backwards']!r}."
        )


def check_recomputation(layer: keras.layers.Layer) -> None:
    """Raises `ValueError` if Keras would recompute a `DEQ` or a part of its cell."""
    for one in flatten_layers(layer):
        mode = remat_mode(one)
        if mode is not None:
            raise ValueError(
                "`keras.RematScope` cannot recompute a DEQ layer or a part of its "
                "cell. Create them outside of the scope. An implicit gradient stores "
                "no steps, and `UnrolledGradient(checkpoints=...)` or "
                "`TruncatedGradient(..., checkpoints=...)` recomputes them. Received: "
                f"{type(one).__name__} {one.name!r}, created in a scope with "
                f"mode={mode!r}."
            )


def check_forward_mode(inputs: Nest) -> None:
    """Raises `NotImplementedError` if a call is differentiated in forward mode."""
    tensors = [leaf for leaf in tree.flatten(inputs) if isinstance(leaf, tf.Tensor)]
    if has_forward_accumulator(tensors):
        raise NotImplementedError(
            "A DEQ layer has no forward mode: `tf.autodiff.ForwardAccumulator`, and "
            "`keras.ops.jvp`, which uses it, cannot differentiate a custom gradient. "
            "Use `tf.GradientTape`, or products of df/dz with vectors: "
            "DEQ.problem(inputs).linearize(state).jvp."
        )


def refuse_noise(solver: FixedPointSolver) -> None:
    """Raises `ValueError`, because the noise of a solver would reach padding."""
    raise ValueError(
        "The noise of a solver would reach the positions that are padding. Use "
        "samples without padding, or a solver without noise. Received: a mask "
        f"and solver={solver!r}."
    )
