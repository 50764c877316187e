"""Checks of solvers, gradients and regularizers."""

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import tensorflow as tf

from deq_keras import gradients, regularizers, solvers
from deq_keras.core.checks import check_choice
from deq_keras.core.linearization import linearize
from deq_keras.solvers import FixedPointProblem, FixedPointSolver, SolveRequest
from deq_keras.testing import problems
from deq_keras.testing.requirements import (
    REGIMES,
    Subject,
    check_component,
    compiled,
)

_PER_SAMPLE = ("value", "point", "residual", "status", "num_evaluations")
_IN_STEP = "Compute the next point of a sample from its own rows only, in `step`."


def check_solver(
    make: Callable[..., FixedPointSolver],
    max_iter: int = 300,
    tol: float = 1e-9,
    zoo: Iterable[str] = tuple(problems.ZOO),
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

    Raises:
        AssertionError: Names the first property that fails, the expected and received
            values, and a remedy.
        ValueError: If `zoo` has an unknown name.

    Example:

    >>> deq_keras.testing.check_solver(deq_keras.solvers.Anderson, zoo=["contraction"])
    """
    zoo = [check_choice("zoo", name, tuple(problems.ZOO)) for name in zoo]
    solver = make(max_iter=7, tol=0.5)
    subject = Subject(type(solver).__name__)
    check_component(subject, solver, FixedPointSolver, solvers.get)
    subject.require_equal(
        "have the `max_iter` and `tol` of its constructor",
        (7, 0.5),
        (solver.max_iter, solver.tol),
        "Pass them to `super().__init__`.",
    )
    _check_budgets(subject, make)
    _check_samples(subject, make)
    for name in zoo:
        _check_solution(subject, make(max_iter=max_iter, tol=tol), name, "eager")
    for regime in REGIMES[1:]:
        # Compiling takes longer than solving, so the budget is the smallest.
        _check_solution(subject, make(max_iter=30, tol=1e-5), "nest", regime)
    before = dict(vars(solver))
    _solve(solver, problems.scalar())
    subject.require_equal(
        "keep nothing between solves",
        before,
        dict(vars(solver)),
        "Keep what changes in the memory that `init` and `step` return.",
    )


def _solve(solver: FixedPointSolver, problem: problems.Problem, **request: Any) -> Any:
    request = SolveRequest(problem.initial_state, **request)
    return solver.solve(problem.function, request)


def _check_solution(
    subject: Subject, solver: FixedPointSolver, name: str, regime: str
) -> None:
    problem, where = problems.ZOO[name](), f"the problem '{name}' ({regime})"
    solution = compiled(lambda: _solve(solver, problem), regime)()
    subject.require(
        np.all(solution.status == solvers.CONVERGED),
        f"converge for {where} in {solver.max_iter} evaluations",
        f"the status {solvers.CONVERGED} and residuals of at most {solver.tol:g}",
        f"status={solution.status.numpy()}, residual={solution.residual.numpy()}",
        "Increase `max_iter` if the solver is slow; name the problems that it solves "
        "as `zoo` if it is not made for all.",
    )
    remedy = "Do not override `solve`: the base class evaluates f and keeps the best."
    again = problem.function(solution.point)
    rule = f"return f(point) as the value for {where}"
    subject.require_close(rule, again, solution.value, 1e-12, remedy)
    if problem.equilibrium is not None:
        # (I - J)^-1 amplifies the residual of the least normal problem thirty times.
        subject.require_close(
            f"find the equilibrium of {where}",
            problem.equilibrium,
            solution.value,
            100 * solver.tol,
            remedy,
        )


def _check_budgets(subject: Subject, make: Callable[..., FixedPointSolver]) -> None:
    problem = problems.tanh()
    remedy = "Read the budget from `init`, and leave the loop to the base class."
    for budget in (1, 2, 5):
        calls = []

        def counting(state: Any, calls: list = calls) -> Any:
            calls.append(1)
            return problem.function(state)

        counted = problem._replace(function=counting)
        solution = _solve(make(max_iter=budget, tol=0.0), counted)
        subject.require_equal(
            "evaluate f exactly `max_iter` times if it does not converge",
            (budget, budget, [solvers.MAX_ITER] * problems.BATCH),
            (len(calls), int(solution.batch_evaluations), list(solution.status)),
            remedy,
        )
    solver = make(max_iter=9, tol=0.0)
    solve = tf.function(
        lambda max_iter: _solve(solver, problem, max_iter=max_iter), autograph=False
    )
    for budget in (2, 12):
        expected, received = (
            _solve(solver, problem, max_iter=budget),
            solve(tf.constant(budget)),
        )
        subject.require_close(
            f"solve alike with max_iter={budget} as a number and as a tensor",
            (expected.value, expected.trace),
            (received.value, received.trace),
            1e-9,
            "`init` receives an integer or a tensor; use TensorFlow's operations.",
        )
    start = tf.constant(problems.contraction().equilibrium)
    solution = _solve(
        make(max_iter=9, tol=1e-6), problems.contraction()._replace(initial_state=start)
    )
    subject.require_equal(
        "stop after one evaluation at an equilibrium",
        (1, [1] * problems.BATCH),
        (int(solution.batch_evaluations), list(solution.num_evaluations)),
        remedy,
    )


def _check_samples(subject: Subject, make: Callable[..., FixedPointSolver]) -> None:
    solver = make(max_iter=16, tol=1e-3)
    scale, inputs = problems.samples()

    def solve(scale: tf.Tensor, inputs: tf.Tensor) -> Any:
        function = problems.function_of_samples(scale, inputs)
        return solver.solve(function, SolveRequest(tf.zeros_like(inputs)))

    def rows(solution: Any, index: list[int]) -> list[np.ndarray]:
        return [getattr(solution, name).numpy()[index] for name in _PER_SAMPLE]

    for regime in REGIMES[:2]:  # XLA may round differently for another batch.
        run = compiled(solve, regime)
        solution = run(scale, inputs)
        for i in range(len(scale)):
            alone = run(scale[i : i + 1], inputs[i : i + 1])
            rule = f"solve a sample alone as in a batch, bit for bit ({regime})"
            pair = rows(alone, [0]), rows(solution, [i])
            subject.require_close(rule, *pair, 0.0, _IN_STEP)
        for poison in (np.nan, np.inf):
            poisoned, others = inputs.numpy(), [0, 1, 3]
            poisoned[2, 0] = poison
            mixed = run(scale, tf.constant(poisoned))
            subject.require_close(
                f"solve samples beside a non-finite one as without it ({regime})",
                rows(solution, others),
                rows(mixed, others),
                0.0,
                _IN_STEP,
            )
            subject.require_equal(
                "keep the start of a non-finite sample, diverged after one evaluation",
                (solvers.DIVERGED, 1, 0.0, 0.0),
                (
                    int(mixed.status[2]),
                    int(mixed.num_evaluations[2]),
                    float(np.abs(mixed.point[2]).max()),
                    float(np.abs(mixed.value[2]).max()),
                ),
                "Leave the status and the best iterate to the base class.",
            )


def check_gradient(
    make: Callable[[], gradients.EquilibriumGradient],
    exact: bool = True,
    differentiates_captured: bool = True,
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
        differentiates_captured: Boolean. Whether tensors that f captures must have a
            gradient. If false, f reads all tensors from its injection. Defaults to
            `True`.

    Raises:
        AssertionError: Names the first property that fails, the expected and received
            values, and a remedy.

    Example:

    >>> deq_keras.testing.check_gradient(
    ...     deq_keras.gradients.NeumannGradient, exact=False
    ... )
    """
    gradient = make()
    solver = solvers.FixedPointIteration(60, 1e-13)
    subject = Subject(type(gradient).__name__)
    check_component(subject, gradient, gradients.EquilibriumGradient, gradients.get)
    case = problems.GradientCase()
    expected = case.oracle()
    for regime in REGIMES:
        run = compiled(
            lambda sources: case.gradients(
                gradient, solver, sources, captures=differentiates_captured
            ),
            regime,
        )
        _check_derivatives(subject, expected, run(case.sources), exact, regime)
    _check_padding(subject, gradient, solver)
    _check_failed_sample(subject, gradient, solver)


def _check_derivatives(
    subject: Subject, expected: Any, received: Any, exact: bool, regime: str
) -> None:
    names = ("kernel", "bias", "projection", "inputs")
    for name, one, two in zip(names, expected, received, strict=True):
        where = f"the {name} of tanh(z A + x V + b) ({regime})"
        subject.require(
            two is not None and np.all(np.isfinite(two)),
            f"have a finite gradient for {where}",
            "finite numbers",
            "None" if two is None else two.numpy(),
            "Attach the gradient to the injection and to tensors that f captures, or "
            "pass differentiates_captured=False.",
        )
        one, two = one.numpy().ravel(), tf.convert_to_tensor(two).numpy().ravel()
        if exact:
            error = np.abs(two - one).max() / np.abs(one).max()
            subject.require(
                error <= 1e-8,
                f"equal the dense gradient with (I - J)^-1 for {where}",
                "a relative error of at most 1e-08",
                f"{error:g}, and {two @ one / (one @ one):.6g} times the dense "
                "gradient along its direction",
                "Solve y = J^T y + c for the cotangent c, to a tolerance of 1e-10, or "
                "pass exact=False for an approximation.",
            )
        cosine = two @ one / np.sqrt((two @ two) * (one @ one))
        subject.require(
            cosine > 0,
            f"be a descent direction for {where}",
            "a positive cosine with the exact gradient",
            f"{cosine:g}",
            "Check the sign of the cotangent.",
        )


def _check_padding(
    subject: Subject, gradient: gradients.EquilibriumGradient, solver: FixedPointSolver
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
    received = of_inputs(inputs)
    changed = of_inputs(np.where(mask[..., None], inputs, 9.0))
    remedy = "Evaluate f as `problem(state)`, which applies the mask."
    rule = "have no gradient for padding"
    subject.require_close(rule, 0 * received[~mask], received[~mask], 0.0, remedy)
    rule = "not depend on the content of padding"
    subject.require_close(rule, received, changed, 1e-9, remedy)


def _failing_problem(kernel: tf.Tensor, is_poisoned: bool) -> FixedPointProblem:
    """A problem of three samples, one of which fails, and a kernel in the injection."""
    inputs = np.random.RandomState(3).normal(size=(3, 3))
    inputs[1] = np.nan if is_poisoned else inputs[1]
    return FixedPointProblem(
        lambda state, u: tf.tanh(state @ u["kernel"] + u["inputs"]),
        {"kernel": kernel, "inputs": tf.constant(inputs)},
        has_rows={"kernel": False, "inputs": True},
    )


def _check_failed_sample(
    subject: Subject, gradient: gradients.EquilibriumGradient, solver: FixedPointSolver
) -> None:
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

    remedy = "Differentiate a problem behind a `nonfinite.GradientGate`."
    rule = "have a gradient if all samples are finite"
    is_nonzero = np.any(of_kernel(False) != 0)
    subject.require(is_nonzero, rule, "a nonzero gradient", is_nonzero, remedy)
    subject.require_equal(
        "have a gradient of zero if f is not finite for a sample",
        0.0,
        float(tf.reduce_sum(tf.abs(of_kernel(True)))),
        remedy,
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
        AssertionError: Names the first property that fails, the expected and received
            values, and a remedy.

    Example:

    >>> deq_keras.testing.check_regularizer(deq_keras.regularizers.JacobianRegularizer)
    """
    regularizer = make()
    subject = Subject(type(regularizer).__name__)
    check_component(
        subject, regularizer, regularizers.EquilibriumRegularizer, regularizers.get
    )
    for dtype, expected in {"bfloat16": "float32", "float64": "float64"}.items():
        kernel, function, point = problems.expansion(dtype)
        loss = regularizer(linearize(function, point), problems.seed())
        subject.require_equal(
            f"return a scalar in float32 or better for a state in {dtype}",
            ((), expected),
            (tuple(loss.shape), loss.dtype.name),
            "Compute in `loss_dtype(linearization)`, and average over the samples.",
        )
    _check_losses(subject, regularizer, kernel, function, point)
    for name in ("neumann", "truncated"):
        _check_failed_loss(subject, regularizer, gradients.get(name))


def _check_losses(
    subject: Subject,
    regularizer: regularizers.EquilibriumRegularizer,
    kernel: tf.Tensor,
    function: Callable,
    point: tf.Tensor,
) -> None:
    def loss_and_gradient(seed: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        with tf.GradientTape() as tape:
            tape.watch(kernel)
            loss = regularizer(linearize(function, point), seed)
        return loss, tape.gradient(loss, kernel)

    for i in range(100):  # With a `probability`, some steps skip the penalty.
        seed = tf.constant((1, i))
        loss, gradient = loss_and_gradient(seed)
        subject.require(
            np.isfinite(loss) and loss >= 0,
            "return a finite loss of at least 0",
            "a number >= 0",
            f"{float(loss):g}",
            "Penalize squares, and guard each division.",
        )
        if loss > 0:
            break
    subject.require(
        loss > 0 and gradient is not None and np.any(gradient != 0),
        "penalize an f that expands, with a gradient for its weights",
        "a positive loss and a gradient that is not zero",
        f"loss={float(loss):g}, gradient={gradient}",
        "Compute the loss from `linearization.value` or from products `vjp`.",
    )
    for regime in REGIMES:
        run = compiled(loss_and_gradient, regime)
        first, second = run(seed), run(seed)
        # XLA draws other numbers than TensorFlow for the same seed.
        expected = (loss, gradient) if regime != "xla" else first
        _require_finite(subject, f" ({regime})", *first)
        subject.require_close(
            f"return the same loss and gradient for the same seed ({regime})",
            (expected, expected),
            (first, second),
            1e-9,
            "Draw random numbers with `tf.random.stateless_*` and the seed.",
        )


def _require_finite(
    subject: Subject, where: str, loss: tf.Tensor, gradient: tf.Tensor
) -> None:
    subject.require(
        np.isfinite(loss) and np.all(np.isfinite(gradient)),
        f"have a finite loss and gradient{where}",
        "finite numbers",
        f"loss={float(loss):g}, gradient={np.asarray(gradient)}",
        "Do not divide by numbers that can be 0, or differentiate their square root.",
    )


def _check_failed_loss(
    subject: Subject,
    regularizer: regularizers.EquilibriumRegularizer,
    gradient: gradients.EquilibriumGradient,
) -> None:
    """A failed sample is a copy of another, or has a residual and products of zero."""
    kernel = tf.constant(problems.expansion()[0])
    with tf.GradientTape() as tape:
        tape.watch(kernel)
        equilibrium = gradient.solve(
            _failing_problem(kernel, is_poisoned=True),
            SolveRequest(tf.zeros((3, 3), tf.float64), seed=problems.seed()),
            solvers.FixedPointIteration(2, None),
        )
        loss = regularizer(equilibrium.linearization, problems.seed())
    slope = tape.gradient(loss, kernel, unconnected_gradients="zero")
    _require_finite(subject, " if a sample fails", loss, slope)
