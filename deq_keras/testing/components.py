"""Checks of solvers, gradients and regularizers."""

import inspect
import json
from collections.abc import Callable, Iterable
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import tree

from deq_keras import gradients, regularizers, solvers
from deq_keras.core.checks import check_choice
from deq_keras.core.linearization import linearize
from deq_keras.core.structure import Nest
from deq_keras.solvers import FixedPointProblem, FixedPointSolver, SolveRequest
from deq_keras.testing import problems

REGIMES = ("eager", "graph", "xla")
# Largest deviation of a sample in another batch, in float32. It is 0 on CPUs.
_ROUNDING = 1e-6
_PER_SAMPLE = ("value", "point", "residual", "status", "num_evaluations")


def in_regime(function: Callable, regime: str) -> Callable:
    """Returns a function as it runs eagerly, in a graph or compiled by XLA."""
    if regime == "eager":
        return function
    return tf.function(function, autograph=False, jit_compile=regime == "xla")


def assert_close(
    received: Nest, expected: Nest, tolerance: float, message: str
) -> None:
    """Asserts that two nests are close, relative to the largest magnitude, or to 1."""
    pairs = zip(tree.flatten(received), tree.flatten(expected), strict=True)
    for leaves in pairs:
        one, two = (np.asarray(tf.cast(leaf, tf.float64)) for leaf in leaves)
        scale = np.abs(two[np.isfinite(two)]).max(initial=1.0)
        np.testing.assert_allclose(
            one / scale, two / scale, 0, tolerance, True, message
        )


def assert_registered(cls: type) -> None:
    """Asserts that Keras finds a class by its registered name."""
    name = keras.saving.get_registered_name(cls)
    assert keras.saving.get_registered_object(name) is cls, (
        f"`{cls.__name__}` is not registered with Keras. Decorate it with "
        "@keras.saving.register_keras_serializable('package of yours')"
    )


def _check_config(component: Any, base: Any, get: Callable) -> str:
    """Checks the base class and the config of a component; returns its name."""
    cls, name = type(component), f"`{type(component).__name__}`"
    assert isinstance(component, base), f"{name} is not a {base.__name__}"
    config = component.get_config()
    missing = sorted(set(inspect.signature(cls).parameters) - set(config))
    assert not missing, f"the config of {name} misses {missing}"
    assert_registered(cls)
    serialized = json.loads(json.dumps(keras.saving.serialize_keras_object(component)))
    for copy in (
        cls.from_config(config),
        keras.saving.deserialize_keras_object(serialized),
        get({"class_name": keras.saving.get_registered_name(cls), **config}),
    ):
        assert type(copy) is cls and copy.get_config() == config, (
            f"{name} is not restored from its config: {copy.get_config()} != {config}"
        )
    return name


def check_solver(
    make: Callable[..., FixedPointSolver],
    max_iter: int = 300,
    tol: float = 1e-9,
    zoo: Iterable[str] = tuple(problems.ZOO),
    regimes: Iterable[str] = REGIMES,
) -> None:
    """Checks that a solver satisfies the contract of `FixedPointSolver`.

    The solver must solve problems with known solutions, in float64: eagerly, in a graph
    and compiled by XLA. It must respect its budget, as a number and as a tensor, and
    solve each sample independently. A non-finite sample must not affect others. The
    solver must not keep a state between solves. Its config must restore it.

    Args:
        make: Function of `max_iter` and `tol` that returns a solver; its class, for
            example.
        max_iter: Positive integer. Budget that suffices for each problem. Defaults to
            `300`.
        tol: Positive float. Tolerance of the solves. Defaults to `1e-9`.
        zoo: Names of the problems: `"scalar"`, `"contraction"` (linear),
            `"negative_spectrum"` (eigenvalues down to -0.9), `"complex_spectrum"`
            (rotations), `"non_normal"` (residuals grow before they fall), `"tanh"` and
            `"nest"` (a state of three tensors). Defaults to all of them.
        regimes: Names of ways to run: `"eager"`, `"graph"`, `"xla"`. Defaults to all.

    Raises:
        AssertionError: Names the solver and the first property that fails.
        ValueError: If `zoo` has an unknown name.

    Example:

    >>> deq_keras.testing.check_solver(deq_keras.solvers.Anderson, zoo=["contraction"])
    """
    zoo = [check_choice("zoo", name, tuple(problems.ZOO)) for name in zoo]
    solver = make(max_iter=7, tol=0.5)
    name = _check_config(solver, FixedPointSolver, solvers.get)
    assert (solver.max_iter, solver.tol) == (7, 0.5), (
        f"{name} ignores `max_iter`, `tol`"
    )

    problem = problems.tanh()
    for budget in (1, 2, 5):
        calls: list[int] = []

        def counting(state: Any, calls: list = calls) -> Any:
            calls.append(1)
            return problem.function(state)

        counted = problem._replace(function=counting)
        solution = _solve(make(max_iter=budget, tol=0.0), counted)
        assert len(calls) == int(solution.batch_evaluations) == budget, (
            f"{name} evaluates f {len(calls)} times with max_iter={budget}"
        )
        assert np.all(solution.status == solvers.MAX_ITER), f"{name} hides its failure"
    spending = make(max_iter=9, tol=0.0)
    solve = tf.function(
        lambda max_iter: _solve(spending, problem, max_iter=max_iter), autograph=False
    )
    for budget in (2, 12):
        received, expected = (
            (solution.value, solution.trace)
            for solution in (
                solve(tf.constant(budget)),
                _solve(spending, problem, max_iter=budget),
            )
        )
        message = f"{name} differs for max_iter={budget} as a tensor and as a number"
        assert_close(received, expected, 1e-9, message)
    start = tf.constant(problems.contraction().equilibrium)
    solution = _solve(
        make(max_iter=9, tol=1e-6), problems.contraction()._replace(initial_state=start)
    )
    assert int(solution.batch_evaluations) == 1, f"{name} does not stop at once"

    _check_samples(name, make(max_iter=16, tol=1e-3), regimes)
    for problem_name in zoo:
        _check_solution(name, make(max_iter=max_iter, tol=tol), problem_name, "eager")
    for regime in set(regimes) - {"eager"}:
        # Compiling takes longer than solving, so the budget is the smallest.
        _check_solution(name, make(max_iter=30, tol=1e-5), "nest", regime)
    before = dict(vars(solver))
    _solve(solver, problems.scalar())
    assert vars(solver) == before, f"{name} keeps something between solves"


def _solve(solver: FixedPointSolver, problem: problems.Problem, **request: Any) -> Any:
    return solver.solve(
        problem.function, SolveRequest(problem.initial_state, **request)
    )


def _check_solution(
    name: str, solver: FixedPointSolver, problem_name: str, regime: str
) -> None:
    problem, where = problems.ZOO[problem_name](), f"'{problem_name}' ({regime})"
    solution = in_regime(lambda: _solve(solver, problem), regime)()
    assert np.all(solution.status == solvers.CONVERGED), (
        f"{name} does not solve {where} in {solver.max_iter} evaluations: "
        f"residual={solution.residual.numpy()}"
    )
    again = problem.function(solution.point)
    message = f"{name} returns a value that is not f(point) for {where}"
    assert_close(solution.value, again, 1e-12, message)
    if problem.equilibrium is not None:
        # (I - J)^-1 amplifies the residual of the least normal problem thirty times.
        message = f"{name} does not find the equilibrium of {where}"
        tolerance = 100 * (solver.tol or 0.0)
        assert_close(solution.value, problem.equilibrium, tolerance, message)


def _check_samples(name: str, solver: FixedPointSolver, regimes: Iterable[str]) -> None:
    """Compares samples alone, in a batch, and beside one that is not finite."""
    scale, inputs = problems.samples()

    def solve(scale: tf.Tensor, inputs: tf.Tensor) -> Any:
        function = problems.function_of_samples(scale, inputs)
        return solver.solve(function, SolveRequest(tf.zeros_like(inputs)))

    def rows(solution: Any, index: list[int]) -> list[np.ndarray]:
        return [getattr(solution, name).numpy()[index] for name in _PER_SAMPLE]

    for regime in set(regimes) - {"xla"}:  # It may round otherwise in another batch.
        run = in_regime(solve, regime)
        solution = run(scale, inputs)
        for i in range(len(scale)):
            alone = run(scale[i : i + 1], inputs[i : i + 1])
            message = f"{name} solves a sample alone otherwise than in a batch"
            assert_close(rows(alone, [0]), rows(solution, [i]), _ROUNDING, message)
        for poison in (np.nan, np.inf):
            poisoned, others = inputs.numpy(), [0, 1, 3]
            poisoned[2, 0] = poison
            mixed = run(scale, tf.constant(poisoned))
            message = f"{name} lets a non-finite sample change others"
            received, expected = rows(mixed, others), rows(solution, others)
            assert_close(received, expected, _ROUNDING, message)
            value, point, _, status, num_evaluations = rows(mixed, [2])
            assert [status, num_evaluations] == [[solvers.DIVERGED], [1]], (
                f"{name} does not stop a non-finite sample: {status=}"
            )
            assert not np.any(point) and not np.any(value), (
                f"{name} does not keep the initial state of a non-finite sample"
            )


def check_gradient(
    make: Callable[[], gradients.EquilibriumGradient],
    exact: bool = True,
    regimes: Iterable[str] = REGIMES,
) -> None:
    """Checks that a gradient satisfies the contract of `EquilibriumGradient`.

    An exact gradient must equal the dense solution with (I - J)^-1 in float64. An
    approximate gradient must be a descent direction. Both must hold eagerly, in a graph
    and under XLA. Padding and non-finite samples must have no effect. The config must
    restore the gradient.

    Args:
        make: Function that returns a gradient. An exact gradient must solve its adjoint
            equation to `1e-10`.
        exact: Boolean. Whether the gradient is exact for a converged solve. Defaults
            to `True`.
        regimes: Names of ways to run: `"eager"`, `"graph"`, `"xla"`. Defaults to all.

    Raises:
        AssertionError: Names the gradient and the first property that fails.

    Example:

    >>> deq_keras.testing.check_gradient(
    ...     deq_keras.gradients.NeumannGradient, exact=False
    ... )
    """
    gradient = make()
    solver = solvers.FixedPointIteration(60, 1e-13)
    name = _check_config(gradient, gradients.EquilibriumGradient, gradients.get)
    case = problems.GradientCase()
    expected = case.oracle()
    for regime in regimes:
        run = in_regime(
            lambda sources: case.gradients(gradient, solver, sources), regime
        )
        sources = ("kernel", "bias", "projection", "inputs")
        for source, one, two in zip(sources, expected, run(case.sources), strict=True):
            where = f"for the {source} of tanh(z A + x V + b) ({regime})"
            assert two is not None, f"{name} has no gradient {where}"
            one, two = one.numpy().ravel(), tf.convert_to_tensor(two).numpy().ravel()
            assert np.all(np.isfinite(two)), f"{name} is not finite {where}"
            if exact:
                message = (
                    f"{name} differs from the dense gradient {where}, and is "
                    f"{two @ one / (one @ one):g} times as long along it"
                )
                error = np.abs(two - one).max() / np.abs(one).max()
                assert error <= 1e-8, f"{message}: error={error:g}"
            assert two @ one > 0, f"{name} is not a descent direction {where}"
    _check_padding(name, gradient, solver)

    kernel = tf.constant(np.eye(3) * 0.3 + 0.1)

    def of_kernel(is_poisoned: bool) -> tf.Tensor:
        with tf.GradientTape() as tape:
            tape.watch(kernel)
            equilibrium = gradient.solve(
                _failing_problem(kernel, is_poisoned),
                SolveRequest(tf.zeros((3, 3), tf.float64), seed=problems.seed()),
                solver,
            )
            loss = tf.reduce_sum(tf.gather(equilibrium.value, [0, 2]))
        return tape.gradient(loss, kernel)

    assert np.any(of_kernel(False)), f"{name} has no gradient"
    message = f"{name} has a gradient although f is non-finite for a sample"
    assert not np.any(of_kernel(True)), message


def _check_padding(
    name: str, gradient: gradients.EquilibriumGradient, solver: FixedPointSolver
) -> None:
    random = np.random.RandomState(1)
    kernel = tf.constant(0.3 * random.normal(size=(3, 3)))
    mask = np.array([[True, True, False], [True, False, False]])

    def function(state: tf.Tensor, injection: tf.Tensor) -> tf.Tensor:
        return tf.tanh(state @ kernel + tf.reduce_mean(state, 1, True) + injection)

    def of_inputs(inputs: np.ndarray) -> np.ndarray:
        inputs = tf.constant(inputs)
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            problem = FixedPointProblem(function, inputs, tf.constant(mask))
            request = SolveRequest(tf.zeros_like(inputs), seed=problems.seed())
            value = gradient.solve(problem, request, solver).value
            loss = tf.reduce_sum(tf.square(value))
        return tape.gradient(loss, inputs).numpy()

    inputs = random.normal(size=(2, 3, 3))
    expected = of_inputs(inputs)
    assert not np.any(expected[~mask]), f"{name} has a gradient for padding"
    changed = of_inputs(np.where(mask[..., None], inputs, 9.0))
    assert_close(changed, expected, 1e-9, f"{name} depends on the content of padding")


def _failing_problem(kernel: tf.Tensor, is_poisoned: bool) -> FixedPointProblem:
    """A problem of three samples, one of which fails, and a kernel in the injection."""
    inputs = np.random.RandomState(3).normal(size=(3, 3))
    inputs[1] = np.nan if is_poisoned else inputs[1]
    return FixedPointProblem(
        lambda state, u: tf.tanh(state @ u["kernel"] + u["inputs"]),
        {"kernel": kernel, "inputs": tf.constant(inputs)},
        has_rows={"kernel": False, "inputs": True},
    )


def check_regularizer(
    make: Callable[[], regularizers.EquilibriumRegularizer],
) -> None:
    """Checks that a regularizer satisfies the contract of `EquilibriumRegularizer`.

    The loss must be a finite scalar of at least 0 in float32 or better, and equal for
    equal seeds, in eager mode, in a graph and under XLA. Its gradients must be finite,
    also if a sample fails. The config must restore the regularizer.

    Args:
        make: Function that returns a regularizer. It must penalize
            f(z) = tanh(z A + b) with |A| = 1.5, far from its equilibrium.

    Raises:
        AssertionError: Names the regularizer and the first property that fails.

    Example:

    >>> deq_keras.testing.check_regularizer(deq_keras.regularizers.JacobianRegularizer)
    """
    regularizer = make()
    name = _check_config(
        regularizer, regularizers.EquilibriumRegularizer, regularizers.get
    )
    for dtype, expected in {"bfloat16": "float32", "float64": "float64"}.items():
        kernel, function, point = problems.expansion(dtype)
        loss = regularizer(linearize(function, point), problems.seed())
        assert (tuple(loss.shape), loss.dtype.name) == ((), expected), (
            f"{name} is not a scalar in {expected} for a state in {dtype}"
        )

    def loss_and_gradient(seed: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        with tf.GradientTape() as tape:
            tape.watch(kernel)
            loss = regularizer(linearize(function, point), seed)
        return loss, tape.gradient(loss, kernel)

    for i in range(100):  # With a `probability`, some steps skip the penalty.
        seed = tf.constant((1, i))
        loss, gradient = loss_and_gradient(seed)
        assert loss >= 0, f"{name} is negative or not finite: {float(loss):g}"
        if loss > 0:
            break
    assert loss > 0, f"{name} does not penalize an f that expands"
    assert gradient is not None and np.any(gradient != 0), f"{name} has no gradient"
    for regime in REGIMES:
        run = in_regime(loss_and_gradient, regime)
        first, second = run(seed), run(seed)
        # XLA draws other numbers than TensorFlow for the same seed.
        same = (loss, gradient) if regime != "xla" else first
        _assert_finite(f"{name} ({regime})", *first)
        message = f"{name} changes although its seed does not ({regime})"
        assert_close((first, second), (same, same), 1e-9, message)
    for gradient_name in ("neumann", "truncated"):
        # A failed sample has a residual and products of zero.
        kernel = tf.constant(problems.expansion()[0])
        with tf.GradientTape() as tape:
            tape.watch(kernel)
            equilibrium = gradients.get(gradient_name).solve(
                _failing_problem(kernel, is_poisoned=True),
                SolveRequest(tf.zeros((3, 3), tf.float64), seed=problems.seed()),
                solvers.FixedPointIteration(2, None),
            )
            loss = regularizer(equilibrium.linearization, problems.seed())
        slope = tape.gradient(loss, kernel, unconnected_gradients="zero")
        _assert_finite(f"{name} beside a failed sample", loss, slope)


def _assert_finite(name: str, loss: tf.Tensor, gradient: tf.Tensor) -> None:
    assert np.isfinite(loss), f"the loss of {name} is not finite"
    assert np.all(np.isfinite(gradient)), f"the gradient of {name} is not finite"
