"""A model as functions of named tensors, traced or frozen for an exported file."""

import contextlib
import functools
import inspect
import json
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import tree

from deq_keras.core.checks import check_optional_count
from deq_keras.core.graphs import nodes
from deq_keras.core.internals import forget_optimized_functions, with_constants
from deq_keras.core.structure import with_rows_of
from deq_keras.layers import SolveScope
from deq_keras.layers.equilibrium.cell_problem import equilibrium_layers
from deq_keras.serving.check import ExportError
from deq_keras.serving.signature import (
    SolveOutputs,
    input_specs,
    name_outputs,
    request_signature,
)
from deq_keras.solvers import Solution, SolveRequest

_BUDGET = {
    "max_iter": tf.TensorSpec((), tf.int64, name="max_iter"),
    "tol": tf.TensorSpec((), tf.float32, name="tol"),
}
# Values that select the budget and the tolerance of the solvers.
DEFAULTS = {"max_iter": 0, "tol": -1.0}
_HALF = {tf.bfloat16.as_datatype_enum, tf.float16.as_datatype_enum}


class ServedModel:
    """A model as functions of named tensors.

    Args:
        model: See `export_saved_model`, like the other arguments.
        batch_size: Positive integer, or `None` for any.

    Attributes:
        signature: Nest of `tf.TensorSpec`s of a request.
        inputs: Dict from the names of the inputs to their `tf.TensorSpec`s.
    """

    def __init__(
        self,
        model: keras.Model,
        input_signature: Any = None,
        max_iter_limit: int | None = None,
        preprocessor: Callable[[Any], Any] | None = None,
        postprocessor: Callable[[Any, Any, tf.Tensor | None], Any] | None = None,
        batch_size: int | None = None,
        metadata: dict[str, Any] | None = None,
    ) -> None:
        self.model = model
        self._notes = {} if metadata is None else metadata
        stored = None
        with contextlib.suppress(TypeError, ValueError):
            stored = json.loads(json.dumps(self._notes, allow_nan=False))
        if not isinstance(self._notes, dict) or stored != self._notes:
            raise ValueError(
                "`metadata` must be a dict of plain data, which JSON stores unchanged, "
                "such as {'tuning': tuning.as_dict()}. Received: "
                f"metadata={metadata!r} (of type {type(metadata).__name__})."
            )
        self.preprocessor = preprocessor
        self.postprocessor = postprocessor
        self.signature = request_signature(
            model, preprocessor, input_signature, batch_size
        )
        self.inputs = input_specs(self.signature)
        self._limit = check_optional_count("max_iter_limit", max_iter_limit)
        self._own: dict[str, dict[str, Any]] = {}
        self._layers = equilibrium_layers(model)

    @functools.cached_property
    def solve_outputs(self) -> SolveOutputs:
        """The symbolic `SolveOutputs` of a call; empty without an equilibrium layer."""
        traced = tf.function(self._solutions, autograph=False)
        concrete = traced.get_concrete_function(self.inputs)
        return SolveOutputs(concrete.structured_outputs)

    @functools.cached_property
    def max_iter_limit(self) -> int | None:
        """The largest budget of a request, or `None` without an equilibrium layer."""
        if not len(self.solve_outputs):
            return None
        own = [one["max_iter"] for one in self._own.values()]
        budgets = [layer.solver.max_iter for layer in self._layers]
        return self._limit or max([*budgets, *(n for n in own if isinstance(n, int))])

    def metadata(self, function: Any) -> dict[str, Any]:
        """Returns the data that `deq_keras.serving.load` cannot read from signatures.

        Args:
            function: The function of the file with the most inputs and outputs.

        Returns:
            Dict for JSON: `inputs` and `outputs`, lists of names in order;
            `max_iter_limit`; `solvers`, a dict from each solve to its own `max_iter`
            and `tol` (`"computed"` if the model computes them from its inputs); and
            `metadata`.
        """
        limit = self.max_iter_limit
        for own in self._own.values():
            if isinstance(own["max_iter"], int) and limit is not None:
                own["max_iter"] = min(own["max_iter"], limit)
        return {
            "inputs": list(self.inputs),
            "outputs": output_names(function),
            "max_iter_limit": limit,
            "solvers": self._own,
            "metadata": self._notes,
        }

    def serve(self) -> Any:
        """Returns a `tf.function` of the inputs. It runs the solvers as configured, and
        returns the outputs and the status of each solve."""
        return self._function(self.inputs, SolveOutputs.statuses)

    def serve_with_statistics(self) -> Any:
        """Returns a `tf.function` of the inputs, a budget and a tolerance. It returns
        the outputs and the statistics of each solve."""
        return self._function({**self.inputs, **_BUDGET}, SolveOutputs.statistics)

    def serve_warm(self) -> Any:
        """Returns `serve_with_statistics` with initial states as further inputs, and
        equilibria as further outputs."""
        specs = {**self.inputs, **self.solve_outputs.specs(), **_BUDGET}
        return self._function(
            specs, lambda outputs: {**outputs.statistics(), **outputs.equilibria()}
        )

    def single_function(self, warm_start: bool) -> Any:
        """Returns the function of a format with one signature.

        Args:
            warm_start: Boolean. Whether it takes initial states.
        """
        if not len(self.solve_outputs):
            return self.serve()
        return self.serve_warm() if warm_start else self.serve_with_statistics()

    def initial_states(self, samples: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Returns the states after a short solve of samples, as a dict of arrays by the
        names of initial states.

        Args:
            samples: Dict of arrays.
        """
        request = {name: tf.constant(samples[name]) for name in self.inputs}
        states = SolveOutputs(self._solutions({**request, "max_iter": tf.constant(2)}))
        return {n: x.numpy() for n, x in states.equilibria("initial_state").items()}

    def _solutions(self, request: dict[str, tf.Tensor]) -> dict[str, Solution]:
        if not self._layers:
            return {}
        scope = _RequestScope(self.model, request)
        with scope:
            self.model(self._model_inputs(request), training=False)
        if "max_iter" not in request:
            self._own = scope.own
        return scope.solutions

    def _function(
        self,
        specs: dict[str, tf.TensorSpec],
        report: Callable[[SolveOutputs], dict[str, tf.Tensor]],
    ) -> Any:
        """Returns a `tf.function` of named tensors. It returns the named outputs of the
        model and a report on its solves.

        Args:
            specs: Dict of `tf.TensorSpec`s: the inputs, and optionally a budget, a
                tolerance and initial states.
            report: Function from `SolveOutputs` to a dict of tensors.
        """

        def respond(*tensors: tf.Tensor) -> dict[str, tf.Tensor]:
            request = dict(zip(specs, tensors, strict=True))
            # TensorFlow would broadcast an input with a single row: require equal rows.
            first = tensors[0]
            if first.shape.rank:
                for name, tensor in list(request.items())[1:]:
                    if tensor.shape.rank:
                        # The check reshapes indices: a reshape of the tensor would hide
                        # its static sizes from LiteRT, whose convolutions need them.
                        rows = tf.range(tf.shape(tensor)[0])
                        request[name] = tf.gather(tensor, with_rows_of(first, rows))
            inputs = self._model_inputs(request)
            states = self.solve_outputs.states(request)
            scope = _RequestScope(self.model, request, states, self.max_iter_limit)
            with scope:
                outputs = self.model(inputs, training=False)
            solve_outputs = SolveOutputs(scope.solutions)
            if self.postprocessor is not None:
                outputs = self.postprocessor(outputs, inputs, solve_outputs.failures())
            outputs, reported = name_outputs(outputs), report(solve_outputs)
            if shared := set(outputs) & set(reported):
                raise ValueError(
                    "Outputs of the model must not have the names of statistics. Rename"
                    f" them. Received: outputs named {sorted(shared)}."
                )
            return {**outputs, **reported}

        # A loaded SavedModel takes keywords and has the defaults of this signature.
        parameters = [
            inspect.Parameter(
                name,
                inspect.Parameter.POSITIONAL_OR_KEYWORD,
                default=DEFAULTS.get(name, inspect.Parameter.empty),
            )
            for name in specs
        ]
        respond.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        function = tf.function(
            respond, input_signature=list(specs.values()), autograph=False
        )
        for node in nodes(function.get_concrete_function().graph):
            if node.op.startswith("Assign"):
                raise ExportError(
                    "A served model must process each request independently, but a "
                    "call of this one changes variables, such as a memory or a random "
                    f"seed. Received: {node.op} in {node.name!r}."
                )
        return function

    def _model_inputs(self, request: dict[str, tf.Tensor]) -> Any:
        leaves = [request[name] for name in self.inputs]
        inputs = tree.pack_sequence_as(self.signature, leaves)
        return inputs if self.preprocessor is None else self.preprocessor(inputs)


def output_names(function: Any) -> list[str]:
    """Returns the names of the outputs of a `tf.function` with an input signature."""
    return list(function.get_concrete_function().structured_outputs)


class _RequestScope(SolveScope):
    """The scope of a request to a file, which also overrides numbers given in calls.

    `DEQ(cell)(inputs, max_iter=5)` overrides scopes. In a file, 5 is the budget of a
    request without `max_iter`.

    Args:
        model: The `keras.Model`.
        request: Dict of tensors. `"max_iter"`, if any, is below 1 for the budget of
            each call, and `"tol"`, if any, negative for the tolerance of each call.
        initial_states: See `SolveScope`. Defaults to `None`.
        limit: Positive integer. The largest budget. Defaults to `None`: without a
            budget in the request, each solver keeps its own as a static number.

    Attributes:
        own: Dict from the names of solves to the `max_iter` and `tol` of the call.
    """

    is_pure = True

    def __init__(
        self,
        model: keras.Model,
        request: dict[str, tf.Tensor],
        initial_states: dict[str, Any] | None = None,
        limit: int | None = None,
    ) -> None:
        super().__init__(model, initial_states=initial_states)
        self.own: dict[str, dict[str, Any]] = {}
        self._budget, self._tolerance = request.get("max_iter"), request.get("tol")
        self._limit = limit

    def __enter__(self) -> SolveScope:
        return super().__enter__() if equilibrium_layers(self.model) else self

    def prepare(self, name: str, layer: Any, request: SolveRequest) -> SolveRequest:
        max_iter: Any = request.max_iter
        tol = request.tol
        self.own[name] = {
            key: "computed" if tf.is_tensor(value) else value
            for key, value in (("max_iter", max_iter), ("tol", tol))
        }
        if self._budget is not None or self._limit is not None:
            max_iter = tf.convert_to_tensor(max_iter)
        if self._budget is not None:
            budget = tf.cast(self._budget, max_iter.dtype)
            max_iter = tf.where(budget < 1, max_iter, budget)
        if self._tolerance is not None:
            # Without a tolerance of its own, a solver spends the whole budget.
            own = tf.cast(-1.0 if tol is None else tol, self._tolerance.dtype)
            tol = tf.where(self._tolerance >= 0, self._tolerance, own)
        has_limit = self._limit is not None
        loop = request.loop._replace(limit=self._limit, allows_arrays=not has_limit)
        return request._replace(max_iter=max_iter, tol=tol, loop=loop)


def freeze(function: Any, target: str) -> tuple[Any, dict[str, tf.Tensor]]:
    """Returns a `tf.function` with constants for weights, and its outputs by name.

    Args:
        function: `tf.function` with an input signature.
        target: String. The format it is converted to, for the error message.

    Returns:
        Tuple `(concrete, outputs)`: a `tf.ConcreteFunction` that keeps its loops, and a
        dict of its output tensors, in order.

    Raises:
        ExportError: If an operation computes in half precision or, for LiteRT, an
            equilibrium layer in float64.
    """
    # An earlier export may have registered other functions under the names that the
    # optimizer uses for this one.
    forget_optimized_functions()
    traced = function.get_concrete_function()
    residual = traced.structured_outputs.get("residual")
    if target == "LiteRT" and residual is not None and residual.dtype == tf.float64:
        raise ExportError(
            "LiteRT needs a model that computes in float32. Build the model again with "
            "that dtype policy, and set its weights. Received: an equilibrium layer in "
            "float64."
        )
    concrete = with_constants(traced)
    for node in nodes(concrete.graph):
        if any(value.type in _HALF for value in node.attr.values()):
            raise ExportError(
                f"{target} needs a model that computes in float32. Build the model "
                "again with that dtype policy, and set its weights. Received: half "
                f"precision in {node.op} of {node.name!r}."
            )
    names = sorted(traced.structured_outputs)
    # A compact solve hides its batch size from Grappler with a placeholder, which
    # converters mistake for an input.
    graph = concrete.graph.as_graph_def()
    hiding = [node for node in graph.node if node.op == "PlaceholderWithDefault"]
    for node in hiding:
        node.op = "Identity"
        node.attr["T"].CopyFrom(node.attr["dtype"])
        for name in ("dtype", "shape"):
            node.attr.pop(name)
    if hiding:
        wrapped = tf.compat.v1.wrap_function(
            lambda: tf.graph_util.import_graph_def(graph, name=""), []
        )
        concrete = wrapped.prune(
            [tensor.name for tensor in concrete.inputs],
            [tensor.name for tensor in concrete.outputs],
        )
    return concrete, dict(zip(names, concrete.outputs, strict=True))
