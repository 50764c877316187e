"""The deep equilibrium layer."""

import inspect
from typing import Any

import keras
import tensorflow as tf
from keras import tree

from deq_keras import gradients, initial_states, regularizers, solvers
from deq_keras.core import nonfinite
from deq_keras.core.checks import check_seed
from deq_keras.core.problem import FixedPointProblem, keras_masks
from deq_keras.core.random import SavesRandomState, as_seed, fold_in, next_seed
from deq_keras.core.request import check_request
from deq_keras.core.serialization import Config
from deq_keras.core.structure import Nest
from deq_keras.layers.equilibrium import cell_check, cell_problem, components
from deq_keras.layers.equilibrium.carry_scope import CarryScope
from deq_keras.layers.equilibrium.cell_build import stateful_scope
from deq_keras.layers.equilibrium.compiled_call import CompiledCalls
from deq_keras.layers.equilibrium.components import Component
from deq_keras.layers.equilibrium.controls import Controls
from deq_keras.layers.equilibrium.first_state import StartsSolves
from deq_keras.layers.equilibrium.solve_scope import Settings, SolveScope
from deq_keras.layers.equilibrium.statistics import RecordsSolves
from deq_keras.solvers import SolveRequest


@keras.saving.register_keras_serializable(package="deq_keras")
class DEQ(StartsSolves, Controls, RecordsSolves, SavesRandomState, keras.layers.Layer):
    """Returns the equilibrium z* = f(z*, u) of a cell f.

    Like `keras.layers.RNN(cell)`, `DEQ(cell)` applies one cell repeatedly. It applies
    the cell to the same input until the output stops changing. In compiled steps with a
    solver of bounded history, training memory does not grow with the number of
    evaluations. With the unrolled and the truncated gradient, it grows with the number
    of differentiated steps.

    Keras logs the metrics of the layer as its name with a suffix: `_evaluations` of f
    (mean per sample), `_residual` and `_converged` (fraction of samples within the
    tolerance; in training with `TruncatedGradient`, within the tolerance of its steps).
    `NeumannGradient` adds `_adjoint_evaluations`, `_adjoint_residual` and
    `_loss_error`; `ImplicitGradient` adds these and `_gradient_error`; a regularizer
    adds `_penalty`. These are 0 in evaluations, which have no backward pass and no
    penalty. If several layers of a model have the name `deq`, the second one logs as
    `deq_2`. Callbacks such as `ModelCheckpoint` need `mode="min"` to monitor a
    residual, `mode="max"` for `_converged`.

    Args:
        cell: Function f: an `EquilibriumCell`, any layer whose call takes `(state,
            injection)`, or a functional model with these two inputs.
        solver: Finds z*. A name, a config dict or a `FixedPointSolver`. A solver given
            by name gets a tolerance of `1e-3`, or the machine epsilon of the compute
            dtype if it is larger. Defaults to `"auto"`: `"peaceman_rachford"` for a
            monotone cell; otherwise `"fixed_point_iteration"` if the gradient
            differentiates iterates (`"truncated"`, `"unrolled"`), else `"anderson"`.
        gradient: Differentiates z*. A name, a config dict or an `EquilibriumGradient`.
            Defaults to `"auto"`: `"implicit"` for a monotone cell, else `"truncated"`,
            which also trains tasks that propagate information over long distances. It
            takes plain steps; if `solver` computes another function, `"auto"` selects
            a gradient that uses the solver: `"unrolled"` for a `FixedPointIteration`
            with a `max_iter` below 24, and `"neumann"` for other solvers and for a
            `patience`.
        regularizer: Constrains f in training. A name, a config dict, an
            `EquilibriumRegularizer`, or `None`. Defaults to `"auto"`: `"residual"` if
            the gradient differentiates iterates, `None` for a monotone cell, else
            `"contraction"`.
        seed: Integer, or `None` for a random seed. Seeds all random draws of training:
            regularizer probes, initial states, step counts, budgets and noise.
        max_iter_jitter: Integer in [0, max_iter of the solver). The budget of each
            training step is drawn uniformly from `max_iter - max_iter_jitter` to
            `max_iter`, so that a model does not rely on one budget. If a call sets a
            smaller `max_iter`, from at least 1. Inference and the adjoint solve use
            the whole budget. Defaults to `0`.
        initial_state: Where a solve starts. A name, a config dict or a
            `deq_keras.initial_states.InitialState`. Random states are drawn in training
            only. Defaults to `"cell"`, the cell's own `initial_state`.
        **kwargs: Arguments of `keras.layers.Layer`, such as `name`. `dtype` defaults to
            the dtype of the cell. As in `keras.layers.RNN`, the cell computes in its
            own dtype; the inputs and the output of the layer have the layer's.

    You can set `solver`, `gradient`, `regularizer`, `max_iter_jitter` and
    `initial_state` later (a learned or predicted initial state only if the layer was
    built with it). Then compile the model again.

    Call arguments:
        inputs: Nest of tensors `(batch, ...)`, passed to the cell's `inject`. A sample
            with a non-finite input does not affect other samples and has no gradient.
            Its output is NaN at inference. In training its output is its initial state,
            or NaN if all samples fail, so that the loss shows the failure.
        initial_state: Optional state to start from (a warm start), instead of the
            layer's initial state. Non-finite samples start at the cell's initial state.
        mask: Optional Boolean tensor `(batch, ...)`, false at positions of the state
            (its axes after the batch axis) that are padding. Padding stays zero, does
            not count in norms and mixing, and does not change a result. Defaults to
            the mask of a previous layer, such as an `Embedding`.
        training: Boolean.
        max_iter: Optional budget of this call, a positive integer or, outside of
            training, an integer scalar tensor (below 1: the solver's budget). It
            overrides a `SolveScope`, and the scope overrides the solver.
        tol: Optional tolerance of this call, a float >= 0 or, outside of training, a
            scalar tensor (below 0: the solver's tolerance).

    Output shape:
        Nest of `(batch, ...)` tensors, like the state of the cell.

    Raises:
        ValueError: If the cell changes the structure, a shape or a dtype of the state,
            draws random numbers, updates variables or adds losses in its `call`.

    Example:

    >>> cell = deq_keras.layers.DenseCell(16)
    >>> model = keras.Sequential([deq_keras.layers.DEQ(cell), keras.layers.Dense(1)])
    >>> model(np.ones((2, 3), "float32")).shape
    TensorShape([2, 1])

    Reference:

    - Bai et al. (2019), "Deep Equilibrium Models".
    """

    solver = Component(components.get_solver)
    gradient = Component(components.get_gradient)
    regularizer = Component(components.get_regularizer)
    max_iter_jitter = Component(components.get_jitter)
    initial_state = Component(components.get_initial_state)

    def __init__(
        self,
        cell: keras.layers.Layer,
        solver: str | Config | solvers.FixedPointSolver = "auto",
        gradient: str | Config | gradients.EquilibriumGradient = "auto",
        regularizer: str | Config | regularizers.EquilibriumRegularizer | None = "auto",
        seed: int | None = None,
        max_iter_jitter: int = 0,
        initial_state: str | Config | initial_states.InitialState = "cell",
        **kwargs: Any,
    ) -> None:
        components.check_arguments(kwargs)
        cell_check.check_signature(cell)
        if kwargs.get("dtype") is None:
            kwargs["dtype"] = components.unquantized_policy(cell)
        super().__init__(**kwargs)
        self.cell = cell
        self.seed = check_seed("seed", seed)
        self.seed_generator = keras.random.SeedGenerator(self.seed)
        self._create_controls()
        components.choose_components(self, solver, gradient, regularizer)
        self.max_iter_jitter = max_iter_jitter
        self.initial_state = initial_state
        self.supports_masking = True
        self._checked_modes: set[tuple[bool, bool]] = set()
        self._checked_samples = False
        self._compiled_calls = CompiledCalls(self)
        self._injection_rows = cell_problem.InjectionRows(
            lambda call, training: self.inject(**call, training=training)
        )
        self._create_metrics()

    def build(self, inputs_shape: Nest, initial_state_shape: Nest = None) -> None:
        del initial_state_shape
        with stateful_scope():
            state = cell_check.build_cell(self, inputs_shape)
            self._build_initial_state(inputs_shape, state)

    def compute_output_shape(self, inputs_shape: Nest) -> Nest:
        """Returns the shapes of the state, for layers such as `TimeDistributed`."""
        if not self.built:
            self.build(inputs_shape)
        inputs = tree.map_structure(
            lambda spec: keras.KerasTensor(tuple(spec.shape), spec.dtype.name),
            self._input_specs(inputs_shape),
        )
        outputs = self.compute_output_spec(inputs)
        return tree.map_structure(lambda leaf: leaf.shape, outputs)

    def compute_output_spec(self, *args: Any, **kwargs: Any) -> Nest:
        # Traces the call, because the dtypes of a state can differ from the layer's.
        # If a layer has `compute_output_shape`, Keras assumes the layer's dtype.
        self._last.is_spec = True
        try:
            return keras.Operation.compute_output_spec(self, *args, **kwargs)
        finally:
            self._last.is_spec = False

    def call(
        self,
        inputs: Nest,
        initial_state: Nest | None = None,
        mask: Nest | None = None,
        training: bool | None = None,
        max_iter: int | tf.Tensor | None = None,
        tol: float | tf.Tensor | None = None,
    ) -> Nest:
        settings = Settings.of_call(max_iter, tol)
        if not self._checked_samples and tf.executing_eagerly():
            cell_check.check_samples(self, [inputs], cell_problem.single_mask(mask))
            self._checked_samples = tree.flatten(inputs)[0].shape[0] > 1
        problem = self.problem(inputs, mask, bool(training))
        if getattr(self._last, "is_spec", False):
            # The output has the spec of the initial state, so no solve is needed.
            return self._cast(self._first_state(problem, initial_state))
        if training:
            return self._train(problem, initial_state, settings)
        scope = SolveScope.entered()
        name = "" if scope is None else scope.reserve_name(self.name)
        if scope is not None and initial_state is None:
            initial_state = scope.initial_states.get(name)
        request = SolveRequest(
            self._first_state(problem, initial_state),
            takes_last=self.solver.tol is None,
            records_trace=scope is not None,
            **self._compiled_calls.request_options(settings),
        )
        if scope is not None:
            found = solution = scope.solve(name, self, problem, request)
            self._last.status = solution.status
        else:
            found = self.gradient.infer(problem, request, self.solver)
            solution = found.solution
            self._record(solution, training)
        return self._cast(nonfinite.nan_without_result(found.value, solution))

    def inject(
        self, inputs: Nest, mask: tf.Tensor | None = None, training: bool = False
    ) -> Nest:
        """Returns the cell's injection: everything that is constant in a solve.

        Args:
            inputs: Inputs of the layer.
            mask: See the call arguments. Passed to cells whose `inject` accepts it.
            training: Boolean. Passed to cells whose `inject` accepts it.
        """
        if not hasattr(self.cell, "inject"):
            return inputs
        accepted = inspect.signature(self.cell.inject).parameters
        options = {"training": training, "mask": mask}
        return self.cell.inject(
            inputs, **{name: options[name] for name in options if name in accepted}
        )

    @tf.autograph.experimental.do_not_convert
    def problem(
        self,
        inputs: Nest = None,
        mask: Nest | None = None,
        training: bool = False,
        injection: Nest = None,
    ) -> FixedPointProblem:
        """Returns the fixed-point problem of the layer.

        Any solver accepts it. `problem(state)` evaluates f; `problem.linearize(state)`
        returns f and the products of its Jacobian with vectors, `vjp` and `jvp`.

        Args:
            inputs: Inputs of the layer.
            mask: See the call arguments.
            training: Boolean, passed to the cell's `inject`.
            injection: Precomputed injection, in place of `inputs`. Defaults to `None`.

        Example:

        >>> deq = deq_keras.layers.DEQ(deq_keras.layers.DenseCell(16))
        >>> problem = deq.problem(np.ones((2, 3), "float32"))
        >>> request = deq_keras.solvers.SolveRequest(tf.zeros((2, 16)), tol=1e-5)
        >>> deq_keras.solvers.Broyden().solve(problem, request).status.numpy()
        array([0, 0], dtype=int32)
        """
        function = cell_problem.CellFunction(self.cell)
        if injection is not None:
            mask = cell_problem.single_mask(mask)
            return FixedPointProblem(function, injection, mask)
        if inputs is None:
            raise ValueError("Pass `inputs` or `injection`. Received: None for both.")
        if not self.built:
            self(inputs)
        mask = cell_problem.single_mask(keras_masks(inputs) if mask is None else mask)
        inputs = cell_problem.cast_floating(self.cell.compute_dtype, inputs)
        inputs, is_usable = nonfinite.zero_nonfinite_samples(inputs)
        call = {"inputs": inputs} if mask is None else {"inputs": inputs, "mask": mask}
        return cell_problem.LayerProblem(
            function,
            self.inject(inputs, mask, training),
            mask,
            prediction=self._prediction(inputs),
            has_rows=self._injection_rows(call, training),
            is_usable=is_usable,
        )

    def request(
        self, problem: FixedPointProblem, request: SolveRequest | None = None
    ) -> SolveRequest:
        """Returns a request with the initial state of the layer.

        Args:
            problem: A problem of this layer.
            request: A `SolveRequest`, whose initial state and seed are optional. Its
                initial state may also be a name, such as `"normal"`, or an
                `InitialState`; a random state needs the seed. Defaults to `None`, the
                settings of the layer.
        """
        request = SolveRequest() if request is None else request
        check_request(request, needs_state=False)
        seed = as_seed(request.seed)
        state_seed = noise_seed = None
        if seed is not None:
            cell_check.check_noise(self.solver, problem)
            state_seed, noise_seed = fold_in(seed, 0), fold_in(seed, 1)
        source, state = components.requested_state(request, self.initial_state)
        state = self._first_state(problem, state, state_seed, source=source)
        return request._replace(initial_state=state, seed=noise_seed)

    @tf.autograph.experimental.do_not_convert
    def solve(
        self,
        inputs: Nest,
        request: SolveRequest | None = None,
        mask: Nest | None = None,
        training: bool = False,
    ) -> solvers.Solution:
        """Solves without a gradient and returns all details of the solve.

        `deq_keras.multistart.solve` solves each sample from several initial states.

        Args:
            inputs: Inputs of the layer.
            request: A `SolveRequest`; see `request`. Defaults to `None`.
            mask: See the call arguments.
            training: Boolean, passed to the cell's `inject`.

        Returns:
            A `deq_keras.solvers.Solution`.
        """
        problem = self.problem(inputs, mask, training)
        return self.solver.solve(problem, self.request(problem, request))

    def get_config(self) -> Config:
        return {
            **super().get_config(),
            "cell": keras.saving.serialize_keras_object(self.cell),
            "solver": solvers.serialize(self.solver),
            "gradient": gradients.serialize(self.gradient),
            "regularizer": regularizers.serialize(self.regularizer),
            "seed": self.seed,
            "max_iter_jitter": self.max_iter_jitter,
            "initial_state": initial_states.serialize(self.initial_state),
        }

    @classmethod
    def from_config(cls, config: Config) -> "DEQ":
        config = dict(config)
        cell = keras.saving.deserialize_keras_object(config.pop("cell"))
        return cls(cell, **config)

    def _train(
        self,
        problem: FixedPointProblem,
        initial_state: Nest | None,
        settings: Settings,
    ) -> Nest:
        solver = settings.applied_to(self.solver)
        cell_check.check_noise(solver, problem)
        seed = self._next_seed() if self.initial_state.is_random else None
        state = self._first_state(problem, initial_state, seed, training=True)
        carry = CarryScope.entered()
        if carry is not None:
            state = carry.first_state(state)
        self._compiled_calls.check_training()
        is_random = self.gradient.is_random or solver.noise > 0
        request = SolveRequest(
            state,
            max_iter=self._draw_budget(solver),
            limit=solver.max_iter,
            seed=self._next_seed() if is_random else None,
            records_trace=False,
            allows_compaction=False,
        )
        equilibrium = self.gradient.solve(
            problem, request, solver, self._weak_record_adjoint
        )
        is_usable = problem.is_usable
        solution = nonfinite.mark_unusable_as_diverged(
            equilibrium.solution, state, is_usable
        )
        if carry is not None:
            carry.keep(equilibrium.value, solution)
        self._record(solution, training=True)
        if self.regularizer is not None:
            self._add_regularization_loss(equilibrium.linearization)
        if self.initial_state.layer is not None:
            self._add_prediction_loss(problem, equilibrium.value, solution)
        value = nonfinite.training_output(equilibrium.value, state, is_usable, solution)
        return self._cast(value)

    def _cast(self, value: Nest) -> Nest:
        """Casts a value to the dtype of the layer, if its cell has another."""
        if self.cell.compute_dtype == self.compute_dtype:
            return value
        return cell_problem.cast_floating(self.compute_dtype, value)

    def _next_seed(self) -> tf.Tensor:
        return next_seed(self.seed_generator)
