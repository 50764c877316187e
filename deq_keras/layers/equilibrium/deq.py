"""The deep equilibrium layer."""

import inspect
import threading
import warnings
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

import keras
import tensorflow as tf
from keras import tree

from deq_keras import faults, gradients, regularizers, solvers, starts
from deq_keras.checks import (
    check_integer,
    check_not_renamed,
    check_optional_count,
    check_seed,
)
from deq_keras.draws import derived_seed
from deq_keras.graphs import is_being_traced
from deq_keras.layers.equilibrium.carry_scope import CarryScope
from deq_keras.layers.equilibrium.cell_check import (
    apply_once,
    check_application,
    check_dtype,
    check_signature,
)
from deq_keras.layers.equilibrium.cell_function import CellFunction
from deq_keras.layers.equilibrium.compiled_call import CompiledCalls
from deq_keras.layers.equilibrium.injection_rows import InjectionRows
from deq_keras.layers.equilibrium.padding import Masked, masked, single_mask
from deq_keras.layers.equilibrium.solve_scope import SolveScope
from deq_keras.linearization import Linearization, linearize
from deq_keras.metrics import (
    AdjointResidual,
    ForwardResidual,
    RunningMean,
    TrainingMean,
)
from deq_keras.restarts import (
    SelectedSolution,
    Selection,
    repeat_rows,
    starting_states,
)
from deq_keras.seeds import SavesRandomState
from deq_keras.serialization import Config
from deq_keras.solvers import SolveRequest
from deq_keras.structure import Nest, StateStructure


class _Suited(NamedTuple):
    """What suits a kind of gradients: the names of a solver and of a regulariser."""

    solver: str
    regularizer: str | None


# A monotone cell has an equilibrium that this finds, and needs no penalty.
_OF_SPLITTING = _Suited("peaceman_rachford", None)
# The steps that were learnt are those that are taken: others, mixed from where a search
# came from, stall where information must travel.
_OF_STEPS = _Suited("fixed_point_iteration", "residual")
_OF_EQUILIBRIUM = _Suited("anderson", "contraction")

# Machine epsilon of the dtypes in which rounding hides usual tolerances.
_EPSILON = {"bfloat16": 2.0**-7, "float16": 2.0**-10}


@keras.saving.register_keras_serializable(package="deq_keras")
class DEQ(SavesRandomState, keras.layers.Layer):
    """Returns the equilibrium z* = f(z*, u) of a cell f.

    `DEQ(cell)` is to an equilibrium cell what `keras.layers.RNN(cell)` is to an RNN
    cell: the same cell applied again and again, but to the same input, and until it
    stops changing. In compiled steps, with a solver of bounded history, training memory
    does not grow with the number of applications; with the unrolled and the truncated
    gradient it grows with those that are back-propagated.

    The layer owns metrics that Keras shows in the logs, under the layer's name:
    `_evaluations` (mean evaluations a sample), `_residual`, `_converged` (share of
    samples), and in training only `_adjoint_evaluations` and `_adjoint_residual` for
    `ImplicitGradient` and `NeumannGradient`, `_jacobian` (the penalty) for a
    regularised layer.

    Args:
        cell: Function f: an `EquilibriumCell`, or any layer whose call takes
            `(state, injection)`, or a functional model with those two inputs.
        solver: How z* is found: a name, a config dict or a `FixedPointSolver`. A name
            has a tolerance within reach of the compute dtype: `1e-3`, or the machine
            epsilon where that is larger, as in bfloat16.
            Defaults to `"auto"`, which suits the gradient: `"fixed_point_iteration"`
            for one of the steps that were taken (`"truncated"`, `"unrolled"`), and for
            one of the equilibrium `"anderson"`, or `"peaceman_rachford"` if the cell is
            monotone.
        gradient: How z* is differentiated: a name, a config dict or an
            `EquilibriumGradient`. Defaults to `"auto"`: `"implicit"` if the cell is
            monotone, else `"truncated"`, the last steps on the way to z*,
            back-propagated, which trains where information must travel far.
        regularizer: What is asked of f in training: a name, a config dict, an
            `EquilibriumRegularizer`, or `None`. Defaults to `"auto"`: `"residual"` for
            a gradient of steps, a step from z* changes little, and `"contraction"` for
            one of the equilibrium, which must stay within the solver's reach; that of a
            monotone cell does, and has none.
        seed: Integer, or `None` for a random one. Draws the regulariser's probes, and
            all else that training draws: starts, steps, budgets, noise.
        max_iter_jitter: Integer in [0, max_iter of the solver). The budget of every
            training step is drawn uniformly from `max_iter - max_iter_jitter` to
            `max_iter`, so that a model does not learn to rely on one of them. All else
            has the whole budget: inference, and the adjoint of the backward pass.
            Defaults to `0`.
        start: Where a solve begins: a name, a config dict or a
            `deq_keras.starts.Start`. Random ones are drawn in training. Defaults to
            `"cell"`, the cell's own `initial_state`.
        **kwargs: Arguments of `keras.layers.Layer`, such as `name`. `dtype` defaults to
            the dtype of the cell, and must have the same compute dtype.

    `solver`, `gradient`, `regularizer`, `max_iter_jitter` and `start` may be set later
    (a learned start only where the layer was built with one); compile the model again
    after that.

    Call arguments:
        inputs: Nest of tensors `(batch, ...)`, passed to the cell's `inject`. A sample
            with a non-finite input does not affect the others, and gets no gradient.
            Its output is NaN at inference. In training its output is the state it
            starts from, or NaN if every sample fails, so that the loss shows it.
        initial_state: Optional state to start from (a warm start), in place of
            `start`. Non-finite samples start as the cell says.
        mask: Optional Boolean tensor `(batch, ...)`, false where the positions of the
            state, its axes after the batch axis, are padding. They stay zero, and leave
            norms and mixing, so that padding does not change an answer. Keras passes
            the mask of a layer before, such as an `Embedding`, unless an
            `initial_state` is given.
        training: Boolean.

    Output shape:
        That of the cell's state: a nest of `(batch, ...)` tensors.

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

    def __init__(
        self,
        cell: keras.layers.Layer,
        solver: str | Config | solvers.FixedPointSolver = "auto",
        gradient: str | Config | gradients.EquilibriumGradient = "auto",
        regularizer: str | Config | regularizers.EquilibriumRegularizer | None = "auto",
        seed: int | None = None,
        max_iter_jitter: int = 0,
        start: str | Config | starts.Start = "cell",
        **kwargs: Any,
    ) -> None:
        check_not_renamed(kwargs, jacobian_regularizer="regularizer")
        check_signature(cell)
        if kwargs.get("dtype") is None:
            kwargs["dtype"] = _unquantized_policy(cell)
        super().__init__(**kwargs)
        check_dtype(cell, self.compute_dtype)
        self.cell = cell
        is_monotone = hasattr(cell, "operator_splitting")
        of_cell = "implicit" if is_monotone else "truncated"
        self.gradient = of_cell if gradient == "auto" else gradient
        own = _OF_SPLITTING if is_monotone else _OF_EQUILIBRIUM
        own = _OF_STEPS if self.gradient.is_of_steps else own
        solver = own.solver if solver == "auto" else solver
        # Monotone cells are solved in float32 or better, whatever their dtype.
        dtype = "float32" if is_monotone else self.compute_dtype
        self.solver = _in_reach(solver, dtype)
        self.regularizer = own.regularizer if regularizer == "auto" else regularizer
        self.max_iter_jitter = max_iter_jitter
        self._learned_start: list[keras.Variable] | None = None
        self.start = start
        self.seed = check_seed("seed", seed)
        self.seed_generator = keras.random.SeedGenerator(self.seed)
        self._checked_modes: set[tuple[bool, bool]] = set()
        self._last = threading.local()
        self._compiled_calls = CompiledCalls(self)
        self._weak_record_adjoint = _weak(self._record_adjoint)
        self._injection_rows = InjectionRows(
            lambda call, training: self.inject(**call, training=training)
        )
        self.supports_masking = True
        self._evaluations = RunningMean(f"{self.name}_evaluations")
        self._residual = ForwardResidual(name=f"{self.name}_residual")
        self._converged = RunningMean(f"{self.name}_converged")
        self._adjoint_evaluations = TrainingMean(f"{self.name}_adjoint_evaluations")
        self._adjoint_residual = AdjointResidual(name=f"{self.name}_adjoint_residual")
        self._jacobian = TrainingMean(f"{self.name}_jacobian")

    @property
    def last_status(self) -> tf.Tensor:
        """Status of each sample in the last call of the layer in this thread.

        Int32 tensor `(batch,)` of `deq_keras.solvers.CONVERGED`, `MAX_ITER`, `DIVERGED`
        and `UNCHANGED`. In a compiled function, read it there, after the call of the
        model: for example in `keras.Model.compute_loss`, to give samples that failed a
        weight of zero.

        Raises:
            ValueError: If there was no call, or if the last one was made in a function
                that is not being traced now.
        """
        status = getattr(self._last, "status", None)
        graph = getattr(status, "graph", None)
        if status is None or (graph is not None and not is_being_traced(graph)):
            raise ValueError(
                "`last_status` needs a call of the layer before it, in the same thread "
                "and, if the call is compiled, in the same function. "
                f"Received: {status}."
            )
        return status

    def call_time_options(self) -> Config:
        """Returns the budget and the tolerance of a call outside of training.

        Returns:
            Dict of `SolveRequest` fields: in a graph, tensors that a compiled function
            reads each time it is called; in eager mode, empty.
        """
        return self._compiled_calls.inference_options()

    @property
    def _function_of_cell(self) -> CellFunction:
        return CellFunction(self.cell)

    @property
    def solver(self) -> solvers.FixedPointSolver:
        return self._solver

    @solver.setter
    def solver(self, solver: str | Config | solvers.FixedPointSolver) -> None:
        self._solver = solvers.get(solver)
        # Keras then leaves out XLA, which has no tensors of changing shapes.
        self.supports_jit = not self._solver.compact

    @property
    def gradient(self) -> gradients.EquilibriumGradient:
        return self._gradient

    @gradient.setter
    def gradient(self, gradient: str | Config | gradients.EquilibriumGradient) -> None:
        self._gradient = gradients.get(gradient)

    @property
    def regularizer(self) -> regularizers.EquilibriumRegularizer | None:
        return self._regularizer

    @regularizer.setter
    def regularizer(
        self, regularizer: str | Config | regularizers.EquilibriumRegularizer | None
    ) -> None:
        self._regularizer = regularizers.get(regularizer)

    @property
    def max_iter_jitter(self) -> int:
        return self._max_iter_jitter

    @max_iter_jitter.setter
    def max_iter_jitter(self, max_iter_jitter: int) -> None:
        self._max_iter_jitter = self._checked_jitter(max_iter_jitter)

    @property
    def start(self) -> starts.Start:
        return self._start

    @start.setter
    def start(self, start: str | Config | starts.Start) -> None:
        start = starts.get(start)
        if self.built and start.initializer and self._learned_start is None:
            raise ValueError(
                "A learned start has weights, which a layer cannot get once it is "
                "built. Give `start` when the layer is made. Received: "
                f"start={start!r}."
            )
        self._start = start

    @property
    def metrics(self) -> list[keras.metrics.Metric]:
        metrics = [self._evaluations, self._residual, self._converged]
        if self.gradient.has_adjoint:
            metrics += [self._adjoint_evaluations, self._adjoint_residual]
        if self.regularizer is not None:
            metrics.append(self._jacobian)
        return metrics + self.cell.metrics

    def build(self, inputs_shape: Nest, initial_state_shape: Nest = None) -> None:
        del initial_state_shape
        inputs = tree.map_shape_structure(
            lambda shape: tf.TensorSpec(shape, self.compute_dtype), inputs_shape
        )
        # Weights outlive the graph of a `tf.function` that calls the layer first.
        with tf.init_scope():
            # Here Keras makes them when the trace is done: some are drawn from others.
            with keras.StatelessScope():
                _trace(self._apply_once, inputs)
            _trace(self._check_once, inputs)
            if self.start.initializer is not None:
                self._add_learned_start(_trace(self._start_once, inputs))

    def compute_output_shape(self, inputs_shape: Nest) -> Nest:
        """Returns the shapes of the state, for layers such as `TimeDistributed`."""
        if not self.built:
            self.build(inputs_shape)
        inputs = tree.map_shape_structure(
            lambda shape: keras.KerasTensor(shape, self.compute_dtype), inputs_shape
        )
        outputs = self.compute_output_spec(inputs)
        return tree.map_structure(lambda leaf: leaf.shape, outputs)

    def compute_output_spec(self, *args: Any, **kwargs: Any) -> Nest:
        # Traces the call, because a state may have other dtypes than the layer. Keras
        # assumes the dtype of a layer that has `compute_output_shape`.
        return keras.Operation.compute_output_spec(self, *args, **kwargs)

    def call(
        self,
        inputs: Nest,
        initial_state: Nest | None = None,
        mask: Nest | None = None,
        training: bool | None = None,
    ) -> Nest:
        scope = SolveScope.entered()
        if scope is not None and not training:
            solution = scope.solve(self, inputs, initial_state, mask)
            self._last.status = solution.status
            return faults.output(solution.value, solution)
        inputs, is_usable = faults.set_aside(inputs)
        mask = single_mask(mask)
        injection = self.inject(inputs, mask, bool(training))
        if training:
            self._check_noise(mask)
        seed = self._start_seed() if training else None
        state = self._first_state(injection, initial_state, mask, bool(training), seed)
        carry = CarryScope.entered() if training else None
        if carry is not None:
            state = carry.first_state(state)
        function = self._function(inputs, mask, bool(training))
        constant = _with_mask(injection, mask)
        if not training:
            takes_last = None if self.solver.tol is None else False
            request = SolveRequest(
                state,
                is_usable=is_usable,
                takes_last=takes_last,
                records_trace=False,
                **self.call_time_options(),
            )
            equilibrium = self.gradient.infer(function, request, constant, self.solver)
            self._record(equilibrium.solution, training)
            return faults.output(equilibrium.value, equilibrium.solution)
        self._compiled_calls.check_training()
        request = SolveRequest(
            state,
            budget=self._drawn_budget(),
            seed=self._solve_seed(),
            records_trace=False,
        )
        equilibrium = self.gradient.solve(
            function, request, constant, self.solver, self._weak_record_adjoint
        )
        solution = faults.reported(equilibrium.solution, state, is_usable)
        if carry is not None:
            carry.keep(equilibrium.value, solution)
        self._record(solution, training)
        if self.regularizer is not None:
            self._add_regularization_loss(self.regularizer, equilibrium.linearization)
        return faults.training_output(equilibrium.value, state, is_usable, solution)

    def inject(
        self, inputs: Nest, mask: tf.Tensor | None = None, training: bool = False
    ) -> Nest:
        """Returns the cell's injection: everything that is constant in a solve.

        Args:
            inputs: What the layer is called with.
            mask: See the call arguments. Given to cells whose `inject` takes it.
            training: Boolean.
        """
        if not hasattr(self.cell, "inject"):
            return inputs
        if "mask" in inspect.signature(self.cell.inject).parameters:
            return self.cell.inject(inputs, training=training, mask=mask)
        return self.cell.inject(inputs, training=training)

    def solve(
        self,
        inputs: Nest,
        initial_state: Nest | None = None,
        max_iter: int | tf.Tensor | None = None,
        tol: float | tf.Tensor | None = None,
        training: bool = False,
        mask: Nest | None = None,
        seed: int | tf.Tensor | None = None,
        halting: solvers.UnchangedAnswer | None = None,
        budget: int | tf.Tensor | None = None,
        restarts: int | None = None,
        select: str | Callable[[solvers.Solution], tf.Tensor] = "residual",
        answer: Callable[[Nest], Nest] | None = None,
    ) -> solvers.Solution | SelectedSolution:
        """Solves without a gradient and returns everything known about the solve.

        With `restarts`, every sample is solved from so many states, and one of the
        equilibria is chosen. The first restart is the solve without restarts; the
        others begin at draws from the layer's start, if it is random, or from N(0, 1),
        the same for all samples; XLA draws others than the other modes do. All are one
        batch, so many times as large, with one injection.

        Args:
            inputs: What the layer is called with.
            initial_state: Optional state to start from.
            max_iter: Budget of evaluations, an integer or a tensor. Defaults to `None`,
                the solver's.
            tol: Tolerance, a float or a tensor. Defaults to `None`, the solver's.
            training: Boolean, passed to the cell's `inject`.
            mask: See the call arguments.
            seed: Integer, or int32 tensor of shape `(2,)`. Draws a random start, and
                the noise of a solver that has some. Defaults to `None`: neither.
            halting: Optional `deq_keras.solvers.UnchangedAnswer`.
            budget: Integer, or an integer scalar tensor, at most `max_iter`; see
                `deq_keras.solvers.FixedPointSolver.solve`.
            restarts: Positive integer: how often every sample is solved. Defaults to
                `None`: once, without a choice. Their draws follow from `seed`, or
                without it from the layer's, or from 0.
            select: How one is chosen: `"residual"`, `"vote"` or a function; see
                `deq_keras.restarts.Selection`. Defaults to `"residual"`.
            answer: Optional function from an equilibrium to what is read off it, which
                `"vote"` needs; see `deq_keras.restarts.Selection`.

        Returns:
            A `deq_keras.solvers.Solution`; with `restarts` a
            `deq_keras.restarts.SelectedSolution`.
        """
        restarts = check_optional_count("restarts", restarts)
        selection = Selection(select, answer)
        if restarts is None and (select != "residual" or answer is not None):
            raise ValueError(
                "`select` and `answer` are about restarts. Give how many there are. "
                f"Received: restarts=None, select={select!r}, answer={answer!r}."
            )
        if not self.built:
            self(inputs)
        inputs, is_usable = faults.set_aside(self._cast(inputs))
        mask = single_mask(mask)
        injection = self.inject(inputs, mask, training)
        start_seed, noise_seed = _seeds(seed)
        state = self._first_state(injection, initial_state, mask, training, start_seed)
        if seed is not None:
            self._check_noise(mask)
        function = self._function(inputs, mask, training)
        constant = _with_mask(injection, mask)
        if restarts is not None:
            constant = self._repeated(function, constant, state, restarts)
            state = self._restarted(state, mask, restarts, seed)
            is_usable = repeat_rows(is_usable, restarts)
        request = SolveRequest(
            state, max_iter, tol, budget, noise_seed, halting, is_usable
        )
        solution = self.solver.solve_request(function.of_states(constant), request)
        return solution if restarts is None else selection(solution, restarts)

    def initial_state(
        self,
        inputs: Nest,
        start: str | Config | starts.Start | None = None,
        seed: int | tf.Tensor | None = None,
        mask: Nest | None = None,
    ) -> Nest:
        """Returns the state that a solve begins with, to be given as `initial_state`.

        Args:
            inputs: What the layer is called with.
            start: A start, in place of the layer's. Defaults to `None`, the layer's.
            seed: See `solve`.
            mask: See the call arguments.
        """
        if not self.built:
            self(inputs)
        mask = single_mask(mask)
        injection = self.inject(self._cast(inputs), mask)
        start = self.start if start is None else starts.get(start)
        seed, _ = _seeds(seed)
        return masked(self._started(start, self._initial_state(injection), seed), mask)

    def solve_injection(
        self,
        injection: Nest,
        initial_state: Nest | None = None,
        max_iter: int | tf.Tensor | None = None,
        tol: float | tf.Tensor | None = None,
        mask: tf.Tensor | None = None,
    ) -> solvers.Solution:
        """`solve` for who has the injection already, and needs it again."""
        if initial_state is None:
            initial_state = self._first_state(injection, None, mask, False, None)
        function = faults.SampleFunction(self._function_of_cell)
        return self.solver.solve(
            function.of_states(_with_mask(injection, mask)),
            initial_state,
            max_iter,
            tol,
        )

    def linearize(
        self, inputs: Nest, state: Nest, mask: Nest | None = None
    ) -> Linearization:
        """Linearises the cell at `state`, for `deq_keras.diagnostics`.

        Args:
            inputs: What the layer is called with.
            state: Nest like the layer's output, for example `solve(inputs).point`.
            mask: See the call arguments.

        Returns:
            A `deq_keras.diagnostics.Linearization`.
        """
        mask = single_mask(mask)
        injection = self.inject(self._cast(inputs), mask)
        constant = _with_mask(injection, mask)
        return linearize(lambda state: self._function_of_cell(state, constant), state)

    def get_config(self) -> Config:
        return {
            **super().get_config(),
            "cell": keras.saving.serialize_keras_object(self.cell),
            "solver": solvers.serialize(self.solver),
            "gradient": gradients.serialize(self.gradient),
            "regularizer": regularizers.serialize(self.regularizer),
            "seed": self.seed,
            "max_iter_jitter": self.max_iter_jitter,
            "start": starts.serialize(self.start),
        }

    @classmethod
    def from_config(cls, config: Config) -> "DEQ":
        config = dict(config)
        cell = keras.saving.deserialize_keras_object(config.pop("cell"))
        return cls(cell, **config)

    def _apply_once(self, inputs: Nest) -> Nest:
        injection = self.inject(inputs)
        state = self._initial_state(injection)
        return apply_once(self._function_of_cell, self.cell, state, injection)

    def _check_once(self, inputs: Nest) -> None:
        injection = self.inject(inputs)
        self._check_cell(self._initial_state(injection), injection, training=False)

    def _check_cell(self, state: Nest, injection: Nest, training: bool) -> None:
        regularizer = self.regularizer if training else None
        twice = regularizer is not None and regularizer.differentiates_jacobian
        if (training, twice) in self._checked_modes:
            return
        function = self._function_of_cell
        if check_application(function, self.cell, state, injection, twice):
            self._checked_modes.add((training, twice))

    def _start_once(self, inputs: Nest) -> Nest:
        return self._initial_state(self.inject(inputs))

    def _add_learned_start(self, state: Nest) -> None:
        for leaf in tree.flatten(state):
            if leaf.shape.rank < 2 or leaf.shape[-1] is None:
                raise ValueError(
                    "A learned start is a vector (features,) for each leaf of the "
                    "state, which must have the shape (batch, ..., features) with a "
                    f"static number of features. Received: shape={leaf.shape}."
                )
        self._learned_start = [
            self.add_weight(
                (leaf.shape[-1],), self.start.initializer, name=f"start_{i}"
            )
            for i, leaf in enumerate(tree.flatten(state))
        ]

    def _first_state(
        self,
        injection: Nest,
        initial_state: Nest | None,
        mask: tf.Tensor | None,
        training: bool,
        seed: tf.Tensor | None,
    ) -> Nest:
        """Returns the state to start from, once the cell has been checked with it."""
        state = self._initial_state(injection)
        self._check_cell(state, injection, training)
        if initial_state is not None:
            initial_state = self._cast(initial_state)
            initial_state = StateStructure(state).like(initial_state, "`initial_state`")
            state = faults.usable_start(initial_state, state)
        else:
            state = self._started(self.start, state, seed)
        return masked(state, mask)

    def _started(
        self, start: starts.Start, state: Nest, seed: tf.Tensor | None
    ) -> Nest:
        started = start(state, seed, self._learned_start)
        StateStructure(state).check(started, f"What {start!r} returns")
        return started

    def _initial_state(self, injection: Nest) -> Nest:
        if hasattr(self.cell, "initial_state"):
            return self.cell.initial_state(injection)
        return tree.map_structure(tf.zeros_like, injection)

    def _function(
        self, inputs: Nest, mask: tf.Tensor | None, training: bool
    ) -> faults.SampleFunction:
        """The cell as the gradients take it, which keeps failing samples apart."""
        if mask is None:
            has_rows = self._injection_rows({"inputs": inputs}, training)
        else:
            call = {"inputs": inputs, "mask": mask}
            has_rows = Masked(self._injection_rows(call, training), True)
        may_leave = self.solver.compact and not training
        if may_leave:
            _check_rows(has_rows, "A compact solver leaves out samples")
        return faults.SampleFunction(self._function_of_cell, has_rows, may_leave)

    def _repeated(
        self,
        function: faults.SampleFunction,
        constant: Nest,
        state: Nest,
        num_restarts: int,
    ) -> Nest:
        """Returns what is constant in a solve of all restarts of a batch of states."""
        _check_rows(function.has_rows, "Restarts repeat samples")
        batch_size = tf.shape(tree.flatten(state)[0])[0]
        rows = repeat_rows(tf.range(batch_size), num_restarts)
        return function.rows_of(constant, rows)

    def _restarted(
        self,
        state: Nest,
        mask: tf.Tensor | None,
        num_restarts: int,
        seed: int | tf.Tensor | None,
    ) -> Nest:
        """Returns the states that all restarts begin with."""
        state, mask = repeat_rows((state, mask), num_restarts)
        seed = _as_tensor((self.seed or 0) if seed is None else seed)
        return masked(starting_states(self.start, state, num_restarts, seed), mask)

    def _cast(self, tensors: Nest) -> Nest:
        def cast(tensor: Any) -> tf.Tensor:
            tensor = tf.convert_to_tensor(tensor)
            is_float = tensor.dtype.is_floating
            return tf.cast(tensor, self.compute_dtype) if is_float else tensor

        return tree.map_structure(cast, tensors)

    def _drawn_budget(self) -> tf.Tensor | None:
        if self.max_iter_jitter == 0:
            return None
        # Again: the solver may have been replaced by one of a smaller budget.
        jitter = self._checked_jitter(self.max_iter_jitter)
        return self.solver.max_iter - tf.random.stateless_uniform(
            (), self._next_seed(), 0, jitter + 1, tf.int32
        )

    def _checked_jitter(self, jitter: int) -> int:
        return check_integer("max_iter_jitter", jitter, 0, self.solver.max_iter - 1)

    def _check_noise(self, mask: tf.Tensor | None) -> None:
        if mask is not None and self.solver.noise > 0:
            raise ValueError(
                "The noise of a solver would reach the positions that are padding. Use "
                "samples without padding, or a solver without noise. Received: a mask "
                f"and solver={self.solver!r}."
            )

    def _start_seed(self) -> tf.Tensor | None:
        return self._next_seed() if self.start.is_random else None

    def _solve_seed(self) -> tf.Tensor | None:
        is_drawn = self.gradient.is_random or self.solver.noise > 0
        return self._next_seed() if is_drawn else None

    def _next_seed(self) -> tf.Tensor:
        return tf.cast(self.seed_generator.next(), tf.int32)

    def _record(self, solution: solvers.Solution, training: bool | None) -> None:
        self._last.status = solution.status
        for metric in (
            self._adjoint_evaluations,
            self._adjoint_residual,
            self._jacobian,
        ):
            metric.is_training = bool(training)
        if training is None:
            return
        self._evaluations.update_state(solution.num_evaluations)
        self._residual.update_state(
            solution.residual,
            needs_equilibrium=training and self.gradient.needs_equilibrium,
        )
        self._converged.update_state(tf.equal(solution.status, solvers.CONVERGED))

    def _record_adjoint(self, solution: solvers.Solution) -> None:
        self._adjoint_evaluations.update_state(solution.num_evaluations)
        is_exact = self.gradient.needs_equilibrium
        error = solvers.estimated_error(solution) if is_exact else None
        self._adjoint_residual.update_state(solution.residual, error)

    def _add_regularization_loss(
        self,
        regularizer: regularizers.EquilibriumRegularizer,
        linearization: Linearization,
    ) -> None:
        loss = regularizer(linearization, self._next_seed())
        # A replica may have no samples, whose mean is 0 / 0.
        num_samples = tf.shape(tree.flatten(linearization.value)[0])[0]
        loss = tf.where(num_samples > 0, loss, tf.zeros_like(loss))
        # Keras adds up losses in its own precision, whatever that of the layer is.
        self.add_loss(tf.cast(loss, keras.config.floatx()))
        self._jacobian.update_state(loss)


def _in_reach(
    solver: str | Config | solvers.FixedPointSolver, dtype: str
) -> solvers.FixedPointSolver:
    """Returns a solver. If it is given by name, rounding allows its tolerance."""
    found = solvers.get(solver)
    epsilon = _EPSILON.get(dtype, 0.0)
    if not found.tol or found.tol >= epsilon / 4:  # Zero spends the budget, too.
        return found
    if isinstance(solver, str):
        return found.from_config({**found.get_config(), "tol": epsilon})
    warnings.warn(
        f"The tolerance is out of reach in {dtype}, so samples spend the whole budget: "
        f"rounding alone leaves a relative residual of about {epsilon / 4:.0e}. "
        f"Use tol={epsilon:.0e} or more, or tol=None. Received: solver={found!r}.",
        stacklevel=3,
    )
    return found


def _unquantized_policy(cell: keras.layers.Layer) -> keras.DTypePolicy:
    policy = cell.dtype_policy
    name = f"mixed_{policy.compute_dtype}"
    is_mixed = policy.compute_dtype != policy.variable_dtype
    return keras.DTypePolicy(name if is_mixed else policy.compute_dtype)


def _with_mask(injection: Nest, mask: tf.Tensor | None) -> Nest:
    return injection if mask is None else Masked(injection, mask)


def _weak(method: Callable[..., None]) -> Callable[..., None]:
    """Returns a function that calls a method, but does not keep its object alive."""
    reference = weakref.WeakMethod(method)

    def call(*args: Any) -> None:
        method = reference()
        if method is not None:
            method(*args)

    return call


def _trace(function: Callable[[Nest], Any], inputs: Nest) -> Any:
    """Traces a function, and returns what it returns, as symbolic tensors."""
    graph = tf.function(function, autograph=False).get_concrete_function(inputs)
    return graph.structured_outputs


def _check_rows(has_rows: Nest, needed_by: str) -> None:
    if None in tree.flatten(has_rows):
        raise ValueError(
            f"{needed_by}, and must know which tensors of the injection have a row for "
            "each. Give those that `inject` returns a static first axis: reshape to "
            "(tf.shape(inputs)[0], ...) and not to (-1, ...). Received: "
            f"{has_rows}, where None is not known."
        )


def _seeds(seed: int | tf.Tensor | None) -> tuple[tf.Tensor | None, tf.Tensor | None]:
    """Returns the seeds of a start and of noise."""
    if seed is None:
        return None, None
    seed = _as_tensor(seed)
    return derived_seed(seed, 0), derived_seed(seed, 1)


def _as_tensor(seed: int | tf.Tensor) -> tf.Tensor:
    return seed if tf.is_tensor(seed) else tf.constant([check_seed("seed", seed), 0])
