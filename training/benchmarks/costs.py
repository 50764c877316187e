"""Costs of solves and training steps, relative to the evaluations of f they need.

The memory of a step is the peak growth that TensorFlow's allocator reports. A control
must grow to show that these statistics are valid: the unrolled gradient, which stores
every evaluation.
"""

import functools
import tempfile
from pathlib import Path

import numpy as np
import tensorflow as tf
from keras import tree
from tensorflow.tsl.profiler.protobuf import xplane_pb2

import deq_keras

from ..evaluation.peak_memory import peak_growth
from . import workloads
from .measuring import compare, does_grow, wait_for_gpus

PLAIN_LOOP = "plain_loop"
SOLVERS = ("fixed_point_iteration", "anderson", "broyden")
UNROLLED = "unrolled"
NOT_MEASURABLE = "not measurable here"


def exact_solver(name, num_evaluations):
    """Returns the library's solver with its defaults, for an exact budget.

    A tolerance of zero includes the work for stopping and for the best iterate in the
    measurement; `tol=None` would exclude it.
    """
    config = {"class_name": name, "max_iter": num_evaluations, "tol": 0.0}
    return deq_keras.solvers.get(config)


def layer(cell, solver, gradient="implicit"):
    """Returns the measured `DEQ` layer, without a regularizer."""
    return deq_keras.layers.DEQ(
        cell,
        solver=solver,
        gradient=gradient,
        regularizer=None,
        dtype=cell.dtype_policy,
        name="deq",
    )


class CompiledCell:
    """f of a workload and its derivatives as compiled calls: the unit of all ratios.

    The results of the calls are dropped.

    Args:
        workload: `workloads.Workload`.
        jit_compile: Boolean. Whether XLA compiles the calls. Defaults to `False`.
    """

    def __init__(self, workload, jit_compile=False):
        self.jit_compile = jit_compile
        self._cell = workload.cell
        self._inputs = workload.injection
        self._injection = workload.cell.inject(self._inputs)  # Once per solve.
        start = workload.cell.initial_state(self._injection)
        self._evaluate = self._compile(self._apply, start, self._injection)
        self._point = start
        for _ in range(5):
            self._point = self._evaluate(self._point, self._injection)
        self._cotangent = tf.nest.map_structure(
            lambda leaf: tf.cast(
                tf.random.stateless_normal(leaf.shape, seed=(1, 2)), leaf.dtype
            ),
            start,
        )

    def evaluate(self):
        """Evaluates f(z)."""
        self._evaluate(self._point, self._injection)

    def differentiate(self, num_products, with_weights=True):
        """Returns a call that injects, evaluates f once and differentiates it.

        The call computes `num_products` products v <- v^T df/dz one after the other,
        then back-propagates the last v.

        Args:
            num_products: Non-negative integer.
            with_weights: Boolean. Whether the last back-propagation ends in z and all
                weights. Otherwise it ends in z, which is one more product. Defaults to
                `True`.
        """
        arguments = self._point, self._inputs, self._cotangent
        differentiate = functools.partial(
            self._differentiate, num_products=num_products, with_weights=with_weights
        )
        return functools.partial(self._compile(differentiate, *arguments), *arguments)

    def ideal_step(self, num_evaluations):
        """Returns a call with the minimum work of an implicit training step.

        It makes `num_evaluations` calls of f, one tracked evaluation, `num_evaluations`
        products with its Jacobian, and one full back-propagation. The derivatives are
        one compiled call without a loop: separate calls take longer and would flatter
        the training step.

        Args:
            num_evaluations: Positive integer. Evaluations of each of the two solves.
        """
        differentiate = self.differentiate(num_evaluations)

        def step():
            for _ in range(num_evaluations):
                self.evaluate()
            differentiate()

        return step

    def _apply(self, state, injection):
        return self._cell(state, injection)

    def _differentiate(self, state, inputs, cotangent, num_products, with_weights):
        with tf.GradientTape(persistent=True) as tape:
            tape.watch(state)
            value = self._apply(state, self._cell.inject(inputs))
        for _ in range(num_products):
            cotangent = tape.gradient(value, state, cotangent)
        weights = self._cell.trainable_variables if with_weights else []
        return tape.gradient(value, [state, weights], cotangent)

    def _compile(self, function, *arguments):
        compiled = tf.function(function, jit_compile=self.jit_compile)
        compiled = compiled.get_concrete_function(*arguments)
        # A concrete function takes flattened nests.
        return lambda *arguments: compiled(*tf.nest.flatten(arguments))


def solve_cost(workload, cell, name, num_evaluations, effort):
    """Returns the ratio of one solve to as many compiled calls of f, as a dict.

    For a solver the dict also has `num_diverged`, the samples with a non-finite
    evaluation, and `residual`, the median of the samples' relative residuals.

    Args:
        workload: `workloads.Workload`.
        cell: Its `CompiledCell`. If XLA compiled it, XLA compiles the solve as well.
        name: One of `SOLVERS`, or `PLAIN_LOOP` for a bare `tf.while_loop`, the floor
            of what a solver in TensorFlow can reach.
        num_evaluations: Positive integer. The budget.
        effort: `measuring.Effort`.

    Raises:
        RuntimeError: If the solver did not spend exactly its budget.
    """
    solve = compiled_solve(workload, name, num_evaluations, cell.jit_compile)

    def evaluate():
        for _ in range(num_evaluations):
            cell.evaluate()

    facts = {}
    if name != PLAIN_LOOP:
        solution = solve()
        check_budget_is_spent(solution, name, num_evaluations)
        diverged = solution.status == deq_keras.solvers.DIVERGED
        facts = {
            "num_diverged": int(tf.math.count_nonzero(diverged)),
            "residual": float(np.median(solution.residual)),
        }
    return {**compare(solve, evaluate, effort)._asdict(), **facts}


def compiled_solve(workload, name, num_evaluations, jit_compile=False):
    """Returns a function without arguments that solves from zero; see `solve_cost`."""
    make = _plain_loop if name == PLAIN_LOOP else _solve
    solve = tf.function(
        make(workload.cell, name, num_evaluations), jit_compile=jit_compile
    )
    arguments = tf.zeros_like(workload.injection), workload.injection
    compiled = solve.get_concrete_function(*arguments)
    return lambda: compiled(*arguments)


def _solve(cell, name, num_evaluations):
    deq = layer(cell, exact_solver(name, num_evaluations))

    def solve(state, injection):
        problem = deq.problem(injection=injection)
        return deq.solver.solve(problem, deq_keras.solvers.SolveRequest(state))

    return solve


def _plain_loop(cell, name, num_evaluations):
    def loop(state, injection):
        return tf.while_loop(
            lambda count, z: count < num_evaluations,
            lambda count, z: (count + 1, cell(z, injection)),
            (tf.constant(0), state),
        )

    return loop


def check_budget_is_spent(solution, name, num_evaluations):
    """Raises a `RuntimeError` if a solve stopped before the end of its budget."""
    spent = int(solution.batch_evaluations)
    if spent != num_evaluations:
        raise RuntimeError(
            "A solve must spend exactly its budget, or its cost means nothing. "
            f"Received: {spent} of {num_evaluations} evaluations by {name}."
        )


class TrainingStep:
    """Loss mean((z* - target)^2) and its parameter gradient, compiled.

    For a state of several tensors, the loss is the sum over them.

    Args:
        workload: `workloads.Workload`.
        name: Name of the solver of the forward and the adjoint equation, or
            `UNROLLED` for back-propagation through plain iterations.
        num_evaluations: Positive integer. The exact budget of each of the two solves.
        jit_compile: Boolean. Whether XLA compiles the step. Defaults to `False`.
    """

    def __init__(self, workload, name, num_evaluations, jit_compile=False):
        if name == UNROLLED:
            solver = deq_keras.solvers.FixedPointIteration(num_evaluations, tol=None)
            self._deq = layer(workload.cell, solver, "unrolled")
        else:
            self._deq = layer(workload.cell, exact_solver(name, num_evaluations))
        self._cell = workload.cell
        self._arguments = workload.injection, workload.target
        step = tf.function(self._step, jit_compile=jit_compile)
        self._compiled = step.get_concrete_function(*self._arguments)

    def __call__(self):
        """Returns the loss and the gradients of the cell's weights."""
        return self._compiled(*tf.nest.flatten(self._arguments))

    def gradient(self):
        """Returns the gradient of all weights as one float64 vector."""
        _, gradients = self()
        return np.concatenate([np.asarray(g, np.float64).ravel() for g in gradients])

    def statistics(self):
        """Returns the layer's own statistics of the last steps, as floats."""
        results = {metric.name: metric.result() for metric in self._deq.metrics}
        # The result of a metric that is not a log is an empty dict.
        return {
            name: float(result)
            for name, result in results.items()
            if not isinstance(result, dict)
        }

    def _step(self, injection, target):
        with tf.GradientTape() as tape:
            state = self._deq(injection, training=True)
            losses = tree.flatten(tree.map_structure(_mean_square, state, target))
            loss = tf.add_n(losses)
        return loss, tape.gradient(loss, self._cell.trainable_variables)


def _mean_square(state, target):
    return tf.reduce_mean(tf.square(tf.cast(state, target.dtype) - target))


def step_cost(workload, name, num_evaluations, effort, cell=None):
    """Returns the ratio of a training step to its ideal, as a dict.

    Its `statistics` are the layer's.

    Args:
        workload: `workloads.Workload`.
        name: Argument of `TrainingStep`.
        num_evaluations: Positive integer. The exact budget of each of the two solves.
        effort: `measuring.Effort`.
        cell: The workload's `CompiledCell`, whose `ideal_step` is the denominator. If
            XLA compiled it, XLA compiles the step as well. `None`: a new one.
    """
    cell = cell or CompiledCell(workload)
    step = TrainingStep(workload, name, num_evaluations, cell.jit_compile)
    ratio = compare(step, cell.ideal_step(num_evaluations), effort)
    return {**ratio._asdict(), "statistics": step.statistics()}


def peaks(make, models, **shared):
    """Returns the peak growth of training steps in MiB, or `NOT_MEASURABLE`.

    Excludes weights, accumulated gradients and buffers that the compiled step keeps.

    Args:
        make: Function that returns the step of a model. Each step is made, measured
            and dropped before the next.
        models: Dict of names to dicts of keyword arguments of `make`.
        **shared: Keyword arguments of `make` that all models share.
    """
    if not is_memory_measurable():
        return NOT_MEASURABLE
    return {
        name: peak_growth(make(**shared, **arguments))
        for name, arguments in models.items()
    }


def profile(call):
    """Returns the planes of TensorFlow's profile of a call."""
    with tempfile.TemporaryDirectory() as folder:
        tf.profiler.experimental.start(folder)
        call()
        wait_for_gpus()
        tf.profiler.experimental.stop()
        (file,) = Path(folder).rglob("*.xplane.pb")
        return xplane_pb2.XSpace.FromString(file.read_bytes()).planes


def is_memory_measurable():
    """Returns whether `peak_growth` sees the growth of a small control."""
    # A state has 512 KiB: on a CPU, the statistics ignore tensors below 256 KiB.
    sizes = {"batch": 8, "length": 64, "width": 256, "inner": 256}
    control = workloads.build("transformer_layer", sizes=sizes, inner=sizes["inner"])
    growth = {
        budget: peak_growth(TrainingStep(control, UNROLLED, budget))
        for budget in (6, 60)
    }
    return does_grow(growth, state_size(control))


def state_size(workload):
    """Returns the size of one state in MiB."""
    return workload.target.numpy().nbytes / 2**20
