"""The deep equilibrium layer."""

import inspect
import weakref
from collections.abc import Mapping, MutableMapping
from typing import Any

import keras
import tensorflow as tf
from keras import ops, tree

from deq_keras import gradients, initial_states, regularizers, solvers
from deq_keras.core import nonfinite
from deq_keras.core.checks import check_seed
from deq_keras.core.internals import compute_spec, keras_masks, may_record_gradients
from deq_keras.core.problem import FixedPointProblem
from deq_keras.core.random import (
    as_seed,
    integer,
    load_state,
    next_seed,
    save_state,
    split,
)
from deq_keras.core.request import check_request
from deq_keras.core.serialization import Config
from deq_keras.core.structure import Nest, StateStructure, zero_padding
from deq_keras.layers.equilibrium import cell_contract, cell_problem
from deq_keras.layers.equilibrium.budget import Budget, as_numbers
from deq_keras.layers.equilibrium.cell_build import freeze, stateful_scope
from deq_keras.layers.equilibrium.controls import (
    Controls,
    PenaltyControls,
    TraceVersion,
)
from deq_keras.layers.equilibrium.defaults import (
    Component,
    choose_components,
    unquantized_policy,
)
from deq_keras.layers.equilibrium.eager_calls import EagerCalls
from deq_keras.layers.equilibrium.inputs import (
    INDIRECT,
    InputDtypes,
    check_inputs,
    dense_specs,
)
from deq_keras.layers.equilibrium.metrics import LastSolve, SolveMetrics
from deq_keras.layers.equilibrium.solve_scope import SolveScope
from deq_keras.solvers import LoopOptions, SolveRequest


@keras.saving.register_keras_serializable(package="deq_keras")
class DEQ(keras.layers.Layer):
    """Returns the equilibrium z* = f(z*, u) of a cell f.

    Like `keras.layers.RNN(cell)`, `DEQ(cell)` applies one cell repeatedly. It applies
    the cell to the same input until the output stops changing. In compiled steps with a
    solver of bounded history, training memory does not grow with the number of
    evaluations. With the unrolled and the truncated gradient, it grows with the number
    of differentiated steps.

    Keras logs the metrics of the layer as its name with a suffix: `_evaluations` of f
    (mean per sample), `_residual` and `_converged` (fraction of samples within the
    tolerance; in training with `TruncatedGradient`, within the tolerance of its steps),
    and `_failed` (fraction of samples for which f became non-finite).
    `NeumannGradient` adds `_adjoint_evaluations`, `_adjoint_residual` and
    `_loss_error`; `ImplicitGradient` adds these and `_gradient_error`; a regularizer
    adds `_penalty`. These are 0 in evaluations, which lack a backward pass and a
    penalty. If several layers of a model have the name `deq`, the second one logs as
    `deq_2`. Callbacks such as `ModelCheckpoint` need `mode="min"` to monitor a
    residual, `mode="max"` for `_converged`.

    Args:
        cell: Function f: an `EquilibriumCell`, any layer whose call takes `(state,
            injection)`, or a functional model with these two inputs.
        solver: Finds z*. A name, a config dict or a `FixedPointSolver`. A solver given
            by name gets a tolerance of `1e-3`, or the machine epsilon of the compute
            dtype if it is larger. Defaults to `"auto"`: `"fixed_point_iteration"` if
            the gradient differentiates iterates (`"truncated"`, `"unrolled"`);
            otherwise the cell's `default_solver`, if it has one; else `"anderson"`.
        gradient: Differentiates z*. A name, a config dict or an `EquilibriumGradient`.
            Defaults to `"auto"`: the cell's `default_gradient`, if it has one; else
            `"truncated"`, which also trains tasks that propagate information over long
            distances. It takes plain steps; if `solver` computes another function,
            `"auto"` selects a gradient that uses the solver: `"unrolled"` for a
            `FixedPointIteration` with a `max_iter` below 24, and `"neumann"` for other
            solvers and for a `patience`.
        regularizer: Constrains f in training. A name, a config dict, an
            `EquilibriumRegularizer`, or `None`. Defaults to `"auto"`: the cell's
            `default_regularizer`, if it has one; `"residual"` if the gradient
            differentiates iterates; else `"contraction"`.
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

    You can replace `solver`, `gradient`, `regularizer`, `max_iter_jitter` and
    `initial_state` later, by `"auto"` too; components that are `"auto"` follow. Then
    compile the model again: functions that were compiled before raise an error (with
    XLA, which cannot, their outputs are NaN). An attribute of a component, such as
    `solver.max_iter`, cannot be changed. `choices` says what `"auto"` chose.

    Call arguments:
        inputs: Nest of tensors `(batch, ...)`, passed to the cell's `inject`. Some can
            be `None`, as with `keras.Input(optional=True)`, if the cell accepts it. A
            sample with a non-finite input does not affect other samples and has no
            gradient. Its output is NaN at inference. In training its output is its
            initial state, or NaN if all samples fail, so that the loss shows the
            failure. If f becomes non-finite where a training step differentiates it,
            the step has no gradient through the layer.
        initial_state: Optional state to start from (a warm start), instead of the
            layer's initial state, where non-finite samples start.
        mask: Optional Boolean tensor `(batch, ...)`, false at positions of the state
            (its axes after the batch axis) that are padding. Padding stays zero, does
            not count in norms and mixing, and does not change a result. Defaults to
            the mask of a previous layer, such as an `Embedding`.
        training: Boolean.
        max_iter: Optional budget of this call, a positive integer or, outside of
            training, an integer scalar tensor. It overrides a `SolveScope`, and the
            scope overrides the solver.
        tol: Optional tolerance of this call, a float >= 0 or, outside of training, a
            float scalar tensor.

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

    is_equilibrium = True  # For `equilibrium_layers`.

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
        cell_contract.check_arguments(kwargs)
        contract = cell_contract.CellContract(cell, self.inject)
        if kwargs.get("dtype") is None:
            kwargs["dtype"] = unquantized_policy(cell)
        super().__init__(**kwargs)
        self.cell = cell
        self.seed = check_seed("seed", seed)
        with keras.name_scope(self.name):
            self.seed_generator = keras.random.SeedGenerator(
                self.seed, name="seed_generator"
            )
        self.supports_masking = True
        controls = self._controls = Controls(self.seed_generator.state)
        self._budget = Budget(controls)
        self._trace_version = TraceVersion(controls)
        self._penalty = PenaltyControls(controls, self._trace_version)
        self._given: dict[str, Any] = {}
        self._replace_components(
            solver=solver,
            gradient=gradient,
            regularizer=regularizer,
            max_iter_jitter=max_iter_jitter,
            initial_state=initial_state,
        )
        self._metrics_of_solves = SolveMetrics(self)
        self._last_solve = LastSolve()

        # Results of inspecting the cell and the inputs.
        inject = getattr(cell, "inject", None)
        self._inject_options = inspect.signature(inject).parameters if inject else {}
        self._contract = contract
        self._function = cell_problem.CellFunction(cell)
        self._input_dtypes = InputDtypes()
        self._eager_calls = EagerCalls(self)
        # The rank of each leaf of the state.
        self._ranks: tuple[int, ...] = ()

    # === Components ===

    solver = Component[solvers.FixedPointSolver]()
    gradient = Component[gradients.EquilibriumGradient]()
    regularizer = Component[regularizers.EquilibriumRegularizer | None]()
    max_iter_jitter = Component[int]()
    initial_state = Component[initial_states.InitialState]()

    @property
    def choices(self) -> dict[str, str]:
        """What `"auto"` chose and why: a sentence for each component left to it.

        Example:

        >>> cell = deq_keras.layers.DenseCell(16)
        >>> deq_keras.layers.DEQ(cell, gradient="implicit").choices["regularizer"]
        "'contraction': the gradient needs an equilibrium that contracts."
        """
        return dict(self._components.reasons)

    def _replace_components(self, **given: Any) -> None:
        """Sets components; those that are `"auto"` follow from the others."""
        new, given = set(given), {**self._given, **given}
        self._components = choose_components(self.cell, given, new)
        self._given = given
        # Keras then does not use XLA, which does not support changing shapes.
        self.supports_jit = not self.solver.compact
        self._budget.set_solver(self.solver)
        self._trace_version.increase()

    @property
    def penalty_factor(self) -> float:
        """Factor of the penalty of training steps, a float. Defaults to `1.0`.

        A new factor applies to the next training step without compiling. It is saved
        with the weights, so that a resumed training continues with it.
        `RegularizerSchedule` and `PenaltyTarget` set it.
        """
        return float(ops.convert_to_numpy(self._penalty.factor))

    @penalty_factor.setter
    def penalty_factor(self, factor: float) -> None:
        self._penalty.set_factor(factor)

    @property
    def penalty_probability(self) -> float | None:
        """Fraction of training steps that add the penalty. Float, or `None` for the
        regularizer's `probability`.

        A new float applies to the next training step; compile the model if one of the
        two is `None`. It is not saved. `RegularizerSchedule` sets it.
        """
        variable = self._penalty.probability
        return None if variable is None else float(ops.convert_to_numpy(variable))

    @penalty_probability.setter
    def penalty_probability(self, probability: float | None) -> None:
        self._penalty.set_probability(probability)

    @property
    def control_variables(self) -> list[keras.Variable]:
        """The variables that belong to the state of training, but not to the weights:
        the penalty factor."""
        return [self._penalty.factor]

    # === Build ===

    def __call__(self, inputs: Nest, *args: Any, **kwargs: Any) -> Any:
        leaves = tree.flatten(inputs)
        for leaf in leaves:
            if leaf is None or isinstance(leaf, INDIRECT):
                check_inputs(inputs)
        if not self.built:
            self._input_dtypes.read(leaves)
        return super().__call__(inputs, *args, **kwargs)

    def build(self, inputs_shape: Nest, initial_state_shape: Nest = None) -> None:
        del initial_state_shape
        cell_contract.check_recomputation(self)
        with stateful_scope():
            specs = self._input_dtypes.specs(inputs_shape, self.compute_dtype)
            state = self._contract.build(specs)
            self._ranks = tuple(leaf.shape.rank for leaf in tree.flatten(state))
        freeze(self)

    def get_build_config(self) -> Config | None:
        config = super().get_build_config()
        if config is None or not any(self._input_dtypes.names):
            return config
        return {**config, "input_dtypes": self._input_dtypes.names}

    def build_from_config(self, config: Config | None) -> None:
        self._input_dtypes.names = list((config or {}).get("input_dtypes", ()))
        super().build_from_config(config)

    def compute_output_shape(self, inputs_shape: Nest) -> Nest:
        """Returns the shapes of the state, for layers such as `TimeDistributed`."""
        if not self.built:
            self.build(inputs_shape)
        inputs = tree.map_structure(
            lambda spec: spec and keras.KerasTensor(spec.shape, spec.dtype.name),
            self._input_dtypes.specs(inputs_shape, self.compute_dtype),
        )
        outputs = self.compute_output_spec(inputs)
        return tree.map_structure(lambda leaf: leaf.shape, outputs)

    def compute_output_spec(self, *args: Any, **kwargs: Any) -> Nest:
        # The dtypes of a state can differ from the layer's, which Keras would assume.
        # The output has the spec of the initial state, so no solve is needed.
        args, kwargs = dense_specs((args, kwargs))
        return compute_spec(self._first_output, *args, **kwargs)

    def _first_output(
        self,
        inputs: Nest,
        initial_state: Nest | None = None,
        mask: Nest | None = None,
        training: bool | None = None,
        **budget: Any,
    ) -> Nest:
        as_numbers(**budget)
        problem = self.problem(inputs, mask, bool(training))
        return self._cast(self._first_state(problem, initial_state))

    def compute_mask(self, inputs: Nest, previous_mask: Nest) -> list[Any]:
        """Returns the mask of each leaf of the output, `None` without positions."""
        del inputs
        # Keras would attach the masks of the inputs to the first outputs, in order.
        masks = [mask for mask in tree.flatten(previous_mask) if mask is not None]
        if len(masks) != 1:
            return []
        rank = len(masks[0].shape)  # Keras' masks can be symbolic.
        return [masks[0] if own > rank else None for own in self._ranks]

    # === Call ===

    def call(
        self,
        inputs: Nest,
        initial_state: Nest | None = None,
        mask: Nest | None = None,
        training: bool | None = None,
        max_iter: int | tf.Tensor | None = None,
        tol: float | tf.Tensor | None = None,
    ) -> Nest:
        cell_contract.check_forward_mode(inputs)
        is_eager = tf.executing_eagerly()
        if is_eager and not self._contract.has_checked_samples:
            self._contract.check_call(inputs, cell_problem.single_mask(mask))
        scope, name = self._budget.scope, self.name
        if scope is not None:
            name = scope.reserve_name(self.name)
            initial_state = scope.start(name, initial_state)
        is_differentiated = scope is None or not scope.is_pure
        if is_eager:
            is_differentiated = may_record_gradients()
        arguments = inputs, initial_state, mask, training, max_iter, tol
        found = self._eager_calls.find(*arguments, is_differentiated, scope)
        if found is None:
            value, solution, penalty = self._compute(
                *arguments, is_differentiated, scope, name
            )
        else:
            value, solution, penalty = found()
            if scope is not None:
                scope.solutions[name] = solution
        if penalty is not None:
            self.add_loss(penalty)
        if training is None and not is_eager:
            self._metrics_of_solves.warn_if_differentiated()
        self._last_solve = LastSolve(solution.status, solution.residual)
        return self._cast(value)

    def _compute(
        self,
        inputs: Nest,
        initial_state: Nest | None,
        mask: Nest | None,
        training: bool | None,
        max_iter: Any,
        tol: Any,
        is_differentiated: bool,
        scope: SolveScope | None,
        name: str,
    ) -> tuple[Nest, solvers.Solution, tf.Tensor | None]:
        """Returns the output of a call, the `Solution` and the penalty."""
        problem, penalty = self.problem(inputs, mask, bool(training)), None
        if training:
            value, solution, penalty = self._train(
                problem, initial_state, max_iter, tol
            )
        else:
            state = self._first_state(problem, initial_state)
            request = self._budget.request(state, max_iter, tol, scope)
            if scope is not None:
                request = scope.prepare(name, self, request)
            value, solution = self._infer(problem, request, is_differentiated)
        if scope is not None:
            scope.record(name, problem, solution)
        if training is not None and (scope is None or not scope.is_pure):
            self._metrics_of_solves.record(
                self._components, solution, training, penalty
            )
        return value, solution, penalty

    def _infer(
        self,
        problem: FixedPointProblem,
        request: SolveRequest,
        is_differentiated: bool,
    ) -> tuple[Nest, solvers.Solution]:
        """Returns the output outside of training, and the `Solution`."""
        components = self._components
        if is_differentiated:
            equilibrium = components.gradient.infer(problem, request, components.solver)
            value, solution = equilibrium.value, equilibrium.solution
        else:
            solution = components.solver.solve(problem, request)
            value = solution.value
        return nonfinite.nan_without_result(value, solution), solution

    def _train(
        self,
        problem: FixedPointProblem,
        initial_state: Nest | None,
        max_iter: int | None,
        tol: float | None,
    ) -> tuple[Nest, solvers.Solution, tf.Tensor | None]:
        """Returns the output of a training step, the `Solution` and the penalty."""
        components = self._components
        solver, gradient = components.solver, components.gradient
        if max_iter is not None or tol is not None:
            solver = self._budget.solver_of_training(max_iter, tol)
        if problem.mask is not None and solver.noise > 0:
            cell_contract.refuse_noise(solver)
        seed = None
        if components.initial_state.is_random:
            seed = next_seed(self.seed_generator)
        state = self._first_state(problem, initial_state, seed, training=True)
        budget = None
        if components.max_iter_jitter > 0:
            # A call, or a later solver, may have a smaller budget than the jitter.
            jitter = min(components.max_iter_jitter, solver.max_iter - 1)
            draw = next_seed(self.seed_generator)
            budget = solver.max_iter - integer(draw, 0, jitter + 1)
        is_random = gradient.is_random or solver.noise > 0
        request = SolveRequest(
            state,
            max_iter=budget,
            seed=next_seed(self.seed_generator) if is_random else None,
            loop=LoopOptions(
                solver.max_iter, records_trace=False, allows_compaction=False
            ),
        )
        equilibrium = gradient.solve(
            problem, request, solver, self._metrics_of_solves.record_adjoint
        )
        value, is_usable = equilibrium.value, problem.is_usable
        solution = nonfinite.mark_unusable_as_diverged(
            equilibrium.solution, state, is_usable
        )
        penalty = None
        if components.regularizer is not None:
            draw = next_seed(self.seed_generator)
            penalty = self._penalty.loss(
                components.regularizer, equilibrium.linearization, draw
            )
        value = nonfinite.training_output(value, state, is_usable, solution)
        # A scope records the output, without its gradient.
        constant = tree.map_structure(tf.stop_gradient, value)
        return value, solution._replace(value=constant), penalty

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
        options = {"training": training, "mask": mask}
        for name in options.keys() - self._inject_options.keys():
            del options[name]
        return self.cell.inject(inputs, **options)

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
        if injection is not None:
            mask = cell_problem.single_mask(mask)
            injection, is_current = self._trace_version.check(
                self.name, injection, self._budget.is_in_file
            )
            return FixedPointProblem(
                self._function, injection, mask, is_usable=is_current
            )
        if inputs is None:
            raise ValueError("Pass `inputs` or `injection`. Received: None for both.")
        if not self.built:
            self(inputs)
        if mask is None:
            mask = keras_masks(inputs)
        mask = cell_problem.single_mask(mask)
        inputs = cell_problem.cast_floating(self.cell.compute_dtype, inputs)
        inputs, is_current = self._trace_version.check(
            self.name, inputs, self._budget.is_in_file
        )
        inputs, is_usable = nonfinite.zero_nonfinite_samples(inputs)
        call = {"inputs": inputs} if mask is None else {"inputs": inputs, "mask": mask}
        # TensorFlow never frees the graph of a training step, whose gradient functions
        # hold the problem. They must not keep the layer alive.
        rows = weakref.proxy(self._contract.rows)
        return FixedPointProblem(
            self._function,
            self.inject(inputs, mask, training),
            mask,
            has_rows=lambda: rows(call, training),
            is_usable=is_current if is_usable is None else is_usable,
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
            if problem.mask is not None and self.solver.noise > 0:
                cell_contract.refuse_noise(self.solver)
            state_seed, noise_seed = split(seed, 2)
        source, state = self.initial_state, request.initial_state
        if isinstance(state, str | initial_states.InitialState):
            source, state = initial_states.get(state), None
            if source.is_random and seed is None:
                raise ValueError(
                    "A random initial state needs a seed. Pass it to the request: "
                    f"SolveRequest({source!r}, seed=0). Received: seed=None."
                )
        state = self._first_state(problem, state, state_seed, source=source)
        return request._replace(initial_state=state, seed=noise_seed)

    @tf.autograph.experimental.do_not_convert
    def solve(
        self,
        inputs: Nest,
        request: SolveRequest | None = None,
        mask: Nest | None = None,
        training: bool = False,
        max_iter: int | tf.Tensor | None = None,
        tol: float | tf.Tensor | None = None,
    ) -> solvers.Solution:
        """Solves without a gradient and returns all details of the solve.

        `deq_keras.multistart.solve` solves each sample from several initial states.

        Args:
            inputs: Inputs of the layer.
            request: A `SolveRequest`; see `request`. Defaults to `None`.
            mask: See the call arguments.
            training: Boolean, passed to the cell's `inject`.
            max_iter: Budget of the solve, instead of the request's or the solver's.
            tol: Tolerance of the solve, instead of the request's or the solver's.

        Returns:
            A `deq_keras.solvers.Solution`.
        """
        request = check_request(SolveRequest() if request is None else request, False)
        if max_iter is not None:
            request = request._replace(max_iter=max_iter)
        if tol is not None:
            request = request._replace(tol=tol)
        problem = self.problem(inputs, mask, training)
        return self.solver.solve(problem, self.request(problem, request))

    def _first_state(
        self,
        problem: FixedPointProblem,
        initial_state: Nest | None,
        seed: tf.Tensor | None = None,
        training: bool = False,
        source: initial_states.InitialState | None = None,
    ) -> Nest:
        """Checks the cell; returns the state from which a solve starts.

        Args:
            problem: The `FixedPointProblem`.
            initial_state: Nest of tensors, or `None`.
            seed: Int32 tensor of shape `(2,)` of random initial states, or `None`.
            training: Boolean.
            source: `InitialState` of samples without a finite `initial_state`. Defaults
                to the layer's.
        """
        state = cell_problem.cell_state(self.cell, problem.injection)
        regularizer = self._components.regularizer if training else None
        twice = regularizer is not None and regularizer.differentiates_jacobian
        if (training, twice) not in self._contract.checked_modes:
            self._contract.check(state, problem.injection, training, twice)
        source = source or self._components.initial_state
        first = source(state, seed)
        if first is not state:
            StateStructure(state).check(first, f"The value of {source!r}")
        if initial_state is not None:
            # The leaves of a state can have other dtypes than the layer.
            dtypes = [leaf.dtype for leaf in tree.flatten(state)]
            warm = cell_problem.cast_floating(
                self.cell.compute_dtype, initial_state, dtypes
            )
            warm = StateStructure(state).like(warm, "`initial_state`")
            first = nonfinite.usable_state(warm, first)
        return first if problem.mask is None else zero_padding(first, problem.mask)

    def _cast(self, value: Nest) -> Nest:
        """Casts a value to the dtype of the layer, if its cell has another."""
        if self.cell.compute_dtype == self.compute_dtype:
            return value
        return cell_problem.cast_floating(self.compute_dtype, value)

    # === Losses and metrics ===

    @property
    def metrics(self) -> list[keras.metrics.Metric]:
        return self._metrics_of_solves.to_log() + self.cell.metrics

    @property
    def last_status(self) -> tf.Tensor:
        """Status of each sample in the last call of the layer.

        Int32 tensor `(batch,)` of `deq_keras.solvers.CONVERGED`, `MAX_ITER` and
        `DIVERGED`. In a compiled function, read it there, after the call of the
        model: for example in `keras.Model.compute_loss`, to give failed samples a
        weight of zero.

        Raises:
            ValueError: If there was no call, or if the last call was made in a function
                that is not being traced now.
        """
        return self._last_solve.read("status")

    @property
    def last_residual(self) -> tf.Tensor:
        """Residual of each sample in the last call, `(batch,)`; see `last_status`."""
        return self._last_solve.read("residual")

    # === Save ===

    def save_own_variables(self, store: MutableMapping[str, Any]) -> None:
        super().save_own_variables(store)
        save_state(self.seed_generator, store)
        if self.regularizer is not None:
            self._penalty.save(store)

    def load_own_variables(self, store: Mapping[str, Any]) -> None:
        variables = load_state(self.seed_generator, self.seed, store)
        self._penalty.load(variables)
        super().load_own_variables(variables)

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
            # Components that follow from the others when one of them is replaced.
            "choices": self.choices,
        }

    @classmethod
    def from_config(cls, config: Config) -> "DEQ":
        config = dict(config)
        cell = keras.saving.deserialize_keras_object(config.pop("cell"))
        choices = config.pop("choices", {})
        layer = cls(cell, **config)
        # The config has what was chosen; a later version may choose otherwise.
        layer._components.reasons.update(choices)
        layer._given.update(dict.fromkeys(choices, "auto"))
        return layer
