"""Measures solves and training steps over f itself.

Every number is a ratio of two times of one run, because times drift between machines
and hours: a solve over as many compiled calls of f, a training step over the calls that
it cannot avoid, a compact solve over the masked loop. The unrolled gradient is the
control of memory, which must grow.

NumPy draws the weights and inputs of the workloads, so that `peers` can use the same
ones.
"""

import functools
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf
from keras import ops

import deq_keras
from deq_keras import layers
from deq_keras.solvers import FixedPointProblem, SolveRequest
from training.costs import measuring
from training.costs.measuring import compare, measure

SOLVERS = ("fixed_point_iteration", "anderson", "broyden")
UNROLLED = "unrolled"
# Budgets of solves, of both solves of a training step, and of steps for memory.
_BUDGETS, _STEP_BUDGET, _MEMORY_BUDGETS = (6, 12, 30), 12, (6, 12, 30, 60)
# Products with the Jacobian over which the time of one is averaged.
_PRODUCTS = 12


class BlockCell(layers.EquilibriumCell):
    """A cell whose f is a functional model of the state and the injection."""

    def __init__(self, block, **kwargs):
        super().__init__(**kwargs)
        self.block = block

    def call(self, state, injection):
        return self.block([state, injection])


def _transformer_layer(random, dtype, batch=16, length=128, width=256, inner=1024):
    """A post-norm transformer layer without mask and dropout, injected at its input.

    a = z + x
    h = LayerNorm(a + Attention(a))
    f(z, x) = LayerNorm(h + W2 relu(W1 h + b1) + b2)
    """
    num_heads, head = 8, width // 8
    dense = functools.partial(keras.layers.Dense, dtype=dtype)
    norm = functools.partial(keras.layers.LayerNormalization, epsilon=1e-5, dtype=dtype)
    state, injected = (keras.Input((length, width), dtype=dtype) for _ in range(2))
    attended = state + injected
    packed = dense(3 * width)(attended)
    packed = ops.reshape(packed, (-1, length, 3, num_heads, head))
    packed = ops.transpose(packed, (2, 0, 3, 1, 4))
    query, key, value = ops.unstack(packed, num=3)  # (B, H, L, K) each
    scores = ops.matmul(query * head**-0.5, ops.swapaxes(key, -1, -2))  # (B, H, L, L)
    mixed = ops.transpose(ops.matmul(ops.softmax(scores), value), (0, 2, 1, 3))
    mixed = ops.reshape(mixed, (-1, length, width))  # (B, L, H*K)
    hidden = norm()(attended + dense(width)(mixed))
    update = dense(width)(dense(inner, activation="relu")(hidden))
    block = keras.Model([state, injected], norm()(hidden + update))
    weights = {
        "qkv_kernel": random.randn(width, 3 * width) / np.sqrt(width),
        "qkv_bias": np.zeros(3 * width),
        "output_kernel": 0.5 * random.randn(width, width) / np.sqrt(width),
        "output_bias": np.zeros(width),
        "attention_scale": np.ones(width),
        "attention_shift": np.zeros(width),
        "inner_kernel": random.randn(width, inner) / np.sqrt(width),
        "inner_bias": np.zeros(inner),
        "outer_kernel": 0.5 * random.randn(inner, width) / np.sqrt(inner),
        "outer_bias": np.zeros(width),
        "feed_forward_scale": np.ones(width),
        "feed_forward_shift": np.zeros(width),
    }
    injection = random.randn(batch, length, width)
    return block, weights, injection, _target(injection.shape)


def _conv_block(random, dtype, batch=16, size=32, channels=64):
    """A residual block of two 3x3 convolutions and three group norms.

    y = x + conv(relu(GroupNorm(conv(z))))
    f(z, x) = GroupNorm(relu(z + GroupNorm(y)))
    """
    convolution = functools.partial(
        keras.layers.Conv2D, channels, 3, padding="same", use_bias=False, dtype=dtype
    )
    norm = functools.partial(layers.GroupNormalization, 8, epsilon=1e-5, dtype=dtype)
    shape = (size, size, channels)
    state, injected = (keras.Input(shape, dtype=dtype) for _ in range(2))
    hidden = injected + convolution()(ops.relu(norm()(convolution()(state))))
    outputs = norm()(ops.relu(state + norm()(hidden)))
    kernels = [
        scale * random.randn(3, 3, channels, channels) / np.sqrt(9 * channels)
        for scale in (1.0, 0.5)
    ]
    ones, zeros = np.ones(channels), np.zeros(channels)
    weights = {"first_kernel": kernels[0], "first_scale": ones, "first_shift": zeros}
    weights |= {"second_kernel": kernels[1], "second_scale": ones}
    weights |= {"second_shift": zeros, "third_scale": ones, "third_shift": zeros}
    # Drawn with the channels first, so that the values do not depend on the layout.
    shape = (batch, channels, size, size)
    maps = random.randn(*shape), _target(shape)
    maps = (np.ascontiguousarray(one.transpose(0, 2, 3, 1)) for one in maps)
    return keras.Model([state, injected], outputs), weights, *maps


def _tiny_mlp(random, dtype, batch=4096, hidden=50):
    """One hidden layer on a scalar state: nearly all of a solve is overhead.

    f(z, x) = tanh([z, x] A1 + b1) A2 + b2
    """
    state, injected = (keras.Input((1,), dtype=dtype) for _ in range(2))
    joined = ops.concatenate([state, injected], axis=-1)
    outputs = keras.layers.Dense(hidden, "tanh", dtype=dtype)(joined)
    outputs = keras.layers.Dense(1, dtype=dtype)(outputs)
    weights = {
        "hidden_kernel": random.randn(2, hidden),
        "hidden_bias": 0.1 * random.randn(hidden),
        "output_kernel": 0.3 * random.randn(hidden, 1) / np.sqrt(hidden),
        "output_bias": np.zeros(1),
    }
    injection = random.randn(batch, 1)
    block = keras.Model([state, injected], outputs)
    return block, weights, injection, _target(injection.shape)


def _dense(random, dtype, batch=64, width=32, rate=0.9):
    """A dense layer whose Lipschitz constant is the rate.

    f(z, x) = tanh(z W + x), W orthogonal times the rate

    As in `DenseCell`, the bias is a part of x: TensorFlow would fuse it with the
    product, which takes three times as long for small states.
    """
    state, injected = (keras.Input((width,), dtype=dtype) for _ in range(2))
    dense = keras.layers.Dense(width, use_bias=False, dtype=dtype)
    outputs = ops.tanh(dense(state) + injected)
    orthogonal, _ = np.linalg.qr(random.randn(width, width))
    weights = {"kernel": rate * orthogonal}
    injection = 0.1 * random.randn(batch, width)
    block = keras.Model([state, injected], outputs)
    return block, weights, injection, _target(injection.shape)


def _target(shape):
    return np.random.RandomState(9).randn(*shape)


_BLOCKS = {
    "transformer_layer": _transformer_layer,
    "conv_block": _conv_block,
    "tiny_mlp": _tiny_mlp,
    "dense": _dense,
}
# Dense states are measured beside peers.
WORKLOADS = tuple(name for name in _BLOCKS if name != "dense")
SIZES = {
    # For two processors.
    "default": {},
    # Fill a GPU of 80 GB.
    "large": {
        "transformer_layer": {"batch": 64, "length": 256, "width": 1024, "inner": 4096},
        "conv_block": {"batch": 128, "channels": 256},
    },
}


class Workload(NamedTuple):
    """What is solved.

    The loss of a training step is mean((z - target)^2). `arrays` are all weights, the
    injection and the target by name.
    """

    cell: Any
    injection: Any
    target: Any
    arrays: dict


def build(name, sizes=None, dtype="float32"):
    """Returns the `Workload` of a name; equal names and sizes give equal values.

    `sizes` is a key of `SIZES`, or a dict of arguments of the block, or `None` for the
    default sizes. Dense kernels are `(in, out)`, convolution kernels
    `(height, width, in, out)`.
    """
    if isinstance(sizes, str):
        sizes = SIZES[sizes].get(name)
    block, weights, injection, target = _BLOCKS[name](
        np.random.RandomState(1), dtype, **(sizes or {})
    )
    block.set_weights(list(weights.values()))
    return Workload(
        BlockCell(block, dtype=dtype),
        tf.constant(injection, dtype),
        tf.constant(target, dtype),
        {**weights, "injection": injection, "target": target},
    )


def exact_solver(name, num_evaluations):
    """Returns the library's solver with its defaults, for an exact budget.

    A tolerance of zero includes the work for stopping and for the best iterate in the
    measurement; `tol=None` would exclude it.
    """
    config = {"class_name": name, "max_iter": num_evaluations, "tol": 0.0}
    return deq_keras.solvers.get(config)


def layer(cell, solver, gradient="implicit"):
    """Returns the measured `DEQ` layer, without a regularizer."""
    return layers.DEQ(
        cell, solver, gradient=gradient, regularizer=None, dtype=cell.dtype_policy
    )


class CompiledCell:
    """f of a workload and its derivatives as compiled calls: the unit of all ratios.

    Args:
        workload: `Workload`.
        jit_compile: Boolean. Whether XLA compiles the calls. Defaults to `False`.
    """

    def __init__(self, workload, jit_compile=False):
        self.jit_compile = jit_compile
        self._cell = workload.cell
        self._inputs = workload.injection
        injection = workload.cell.inject(self._inputs)  # Once per solve.
        self._point = workload.cell.initial_state(injection)
        evaluate = self._compile(workload.cell.__call__, self._point, injection)
        for _ in range(5):
            self._point = evaluate(self._point, injection)
        self.evaluate = functools.partial(evaluate, self._point, injection)
        self._cotangent = tf.random.stateless_normal(
            self._point.shape, (1, 2), dtype=self._point.dtype
        )

    def differentiate(self, num_products, with_weights=True):
        """Returns a call that injects, evaluates f once and differentiates it.

        The call computes `num_products` products v <- v^T df/dz one after the other,
        then back-propagates the last v to z and all weights, or only to z, which is one
        more product.
        """

        def derivatives(state, inputs, cotangent):
            with tf.GradientTape(persistent=True) as tape:
                tape.watch(state)
                value = self._cell(state, self._cell.inject(inputs))
            for _ in range(num_products):
                cotangent = tape.gradient(value, state, cotangent)
            weights = self._cell.trainable_variables if with_weights else []
            return tape.gradient(value, [state, weights], cotangent)

        arguments = self._point, self._inputs, self._cotangent
        return functools.partial(self._compile(derivatives, *arguments), *arguments)

    def ideal_step(self, num_evaluations):
        """Returns a call with the minimum work of an implicit training step.

        It makes `num_evaluations` calls of f, one tracked evaluation, `num_evaluations`
        products with its Jacobian, and one full back-propagation. The derivatives are
        one compiled call without a loop: separate calls take longer and would flatter
        the training step.
        """
        differentiate = self.differentiate(num_evaluations)

        def step():
            for _ in range(num_evaluations):
                self.evaluate()
            differentiate()

        return step

    def call_times(self, effort):
        """Returns milliseconds of f, of a product with its Jacobian, and of a
        back-propagation to all weights.

        The latter two are differences of calls that evaluate f as well.
        """
        product = self.differentiate(0, with_weights=False)
        products = self.differentiate(_PRODUCTS, with_weights=False)
        vjp = compare(products, product, effort).difference / _PRODUCTS
        to_weights = compare(self.differentiate(0), product, effort).difference
        evaluate = measure(self.evaluate, effort).median
        return {"evaluate": evaluate, "vjp": vjp, "backpropagate": vjp + to_weights}

    def _compile(self, function, *arguments):
        compiled = tf.function(function, jit_compile=self.jit_compile)
        return compiled.get_concrete_function(*arguments)


def compiled_solve(workload, name, num_evaluations, jit_compile=False):
    """Returns a function without arguments that solves from zero, for a budget."""
    deq = layer(workload.cell, exact_solver(name, num_evaluations))

    def solve(state, injection):
        problem = deq.problem(injection=injection)
        return deq.solver.solve(problem, SolveRequest(state))

    arguments = tf.zeros_like(workload.injection), workload.injection
    compiled = tf.function(solve, jit_compile=jit_compile)
    return functools.partial(compiled.get_concrete_function(*arguments), *arguments)


def solve_cost(workload, cell, name, num_evaluations, effort):
    """Returns the ratio of one solve to as many compiled calls of f, as a dict.

    The dict also has the median `residual` of the samples. If XLA compiled the
    `CompiledCell`, XLA compiles the solve as well. See `compiled_solve`.

    Raises:
        RuntimeError: If the solver did not spend exactly its budget.
    """
    solve = compiled_solve(workload, name, num_evaluations, cell.jit_compile)
    solution = solve()
    spent = int(solution.batch_evaluations)
    if spent != num_evaluations:
        raise RuntimeError(
            "A solve must spend exactly its budget, or its cost means nothing. "
            f"Received: {spent} of {num_evaluations} evaluations by {name}."
        )

    def evaluate():
        for _ in range(num_evaluations):
            cell.evaluate()

    residual = float(np.median(solution.residual))
    return {**compare(solve, evaluate, effort)._asdict(), "residual": residual}


def training_step(workload, name, num_evaluations, jit_compile=False):
    """Returns a compiled call of mean((z - target)^2) and its parameter gradient.

    `name` is the solver of the forward and the adjoint equation, which both spend their
    budget, or `UNROLLED` for back-propagation through plain iterations.
    """
    if name == UNROLLED:
        solver = deq_keras.solvers.FixedPointIteration(num_evaluations, tol=None)
        deq = layer(workload.cell, solver, "unrolled")
    else:
        deq = layer(workload.cell, exact_solver(name, num_evaluations))
    return step_of(workload, functools.partial(deq, training=True), jit_compile)


def step_of(workload, forward, jit_compile=False):
    """Returns the compiled training step of a function of the injection."""

    @functools.partial(tf.function, jit_compile=jit_compile)
    def step():
        with tf.GradientTape() as tape:
            state = forward(workload.injection)
            loss = tf.reduce_mean(tf.square(state - workload.target))
        return loss, tape.gradient(loss, workload.cell.trainable_variables)

    return step


def times(
    effort,
    names=WORKLOADS,
    sizes=None,
    budgets=_BUDGETS,
    step_budget=_STEP_BUDGET,
    jit_compile=False,
):
    """Returns the times of f and of its derivatives, and costs over them.

    `budgets` are evaluations of the solves, and `step_budget` of each of the two solves
    of a training step. With `jit_compile`, XLA compiles everything.
    """
    results = {}
    for name in names:
        workload = build(name, sizes)
        cell = CompiledCell(workload, jit_compile)
        results[name] = {
            "calls_ms": cell.call_times(effort),
            "solve": {
                f"{solver}, NFE {budget}": solve_cost(
                    workload, cell, solver, budget, effort
                )
                for solver in SOLVERS
                for budget in budgets
            },
            "train": {
                solver: compare(
                    training_step(workload, solver, step_budget, jit_compile),
                    cell.ideal_step(step_budget),
                    effort,
                )
                for solver in (*SOLVERS, UNROLLED)
            },
        }
    return results


def memory(effort, names=WORKLOADS, sizes=None, memory_budgets=_MEMORY_BUDGETS):
    """Returns the peak memory of training steps in MiB, by solver and budget.

    On a GPU, XLA compiles the steps, as Keras does there by default. See `times`.
    """
    del effort
    results = {}
    for name in names:
        make = functools.partial(
            training_step, build(name, sizes), jit_compile=has_gpu()
        )
        results[name] = {
            solver: measuring.peaks(
                functools.partial(make, solver),
                {budget: {"num_evaluations": budget} for budget in memory_budgets},
            )
            for solver in (UNROLLED, *SOLVERS)
        }
    return results


def has_gpu():
    return bool(tf.config.list_logical_devices("GPU"))


# Workloads and the difficulties of their samples: a quarter is hard, or few are.
_CASES = {
    "conv_block": lambda count: np.where(np.arange(count) % 4 == 0, 1.0, 0.15),
    "transformer_layer": lambda count: np.linspace(0.0, 1.0, count) ** 4,
}


def compaction(effort, names=tuple(_CASES), sizes=None, tol=1e-3, max_iter=60):
    """Returns the cost of compact solves of samples of different difficulty.

        f_b(z) = difficulty_b cell(z, x)

    An evaluation costs as much as one of the cell. The difficulty scales df/dz. `time`
    is the `Ratio` to the masked loop; `rows` and `masked_rows` are the evaluations of
    samples in each loop, over the evaluations that samples needed.
    """
    return {
        f"{name}, {solver}": _compact_cost(
            build(name, sizes), _CASES[name], solver, tol, max_iter, effort
        )
        for name in set(names) & set(_CASES)
        for solver in SOLVERS
    }


def _compact_cost(workload, difficulties, name, tol, max_iter, effort):
    inputs = workload.injection
    shape = [-1] + [1] * (len(inputs.shape) - 1)
    difficulty = difficulties(inputs.shape[0]).reshape(shape)
    injection = {"inputs": inputs, "difficulty": tf.constant(difficulty, inputs.dtype)}
    num_rows = tf.Variable(0)

    def evaluate(state, injection):
        return injection["difficulty"] * workload.cell(state, injection["inputs"])

    def count_and_evaluate(state, injection):
        num_rows.assign_add(tf.shape(state)[0])
        return evaluate(state, injection)

    def solve(is_compact, function):
        config = {"class_name": name, "max_iter": max_iter, "tol": tol}
        solver = deq_keras.solvers.get({**config, "compact": is_compact})

        @tf.function
        def compiled(injection):
            has_rows = dict.fromkeys(injection, True)
            problem = FixedPointProblem(function, injection, has_rows=has_rows)
            return solver.solve(problem, SolveRequest(tf.zeros_like(inputs)))

        return functools.partial(compiled, injection)

    masked, compact = solve(False, evaluate), solve(True, evaluate)
    solution = masked()
    needed = int(tf.reduce_sum(solution.num_evaluations))
    solve(True, count_and_evaluate)()
    return {
        "time": compare(compact, masked, effort),
        "rows": int(num_rows) / needed,
        "masked_rows": int(solution.batch_evaluations) * inputs.shape[0] / needed,
        "median_evaluations": float(np.median(solution.num_evaluations)),
        "most_evaluations": int(tf.reduce_max(solution.num_evaluations)),
    }


MEASUREMENTS = {
    "times": times,
    "xla": lambda effort, names, sizes: times(effort, names, sizes, jit_compile=True),
    "memory": memory,
    "compaction": compaction,
}


def _add_arguments(parser):
    parser.add_argument(
        "--workloads",
        dest="names",
        nargs="+",
        choices=WORKLOADS,
        default=WORKLOADS,
        metavar="NAME",
        help=f"which of {', '.join(WORKLOADS)}; default: all",
    )
    parser.add_argument(
        "--sizes",
        choices=tuple(SIZES),
        default="default",
        help="sizes of the workloads: for two processors (default), or to fill a GPU",
    )


def main(argv=None):
    return measuring.run(
        "solvers", __doc__, MEASUREMENTS, argv, _add_arguments, optional=("xla",)
    )


if __name__ == "__main__":
    main()
