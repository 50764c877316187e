"""What a GPU would wait for in the loops of solves, read from their graphs.

A predicate that depends on samples is computed on the device, and the host waits for
its copy: one for the branches that read it, and one more if it is a variable that the
condition of the loop reads. Counters need no waiting: TensorFlow computes with int32
scalars on the host. It also keeps int32 vectors there, and would copy a vector with one
entry per sample back and forth.
"""

import functools
import re

import pytest
import tensorflow as tf
from tensorflow.python.framework import function_def_to_graph

from deq_keras import gradients, regularizers, solvers
from deq_keras.core.problem import FixedPointProblem
from deq_keras.layers import DEQ, DenseCell, MonotoneDenseCell
from deq_keras.solvers import SolveRequest
from tests.regimes import slow

FORBIDDEN = {"Where", "PyFunc", "EagerPyFunc", "PyFuncStateless", "Assert", "Unique"}
BRANCHES = {"If", "StatelessIf", "Case", "StatelessCase"}
LOOPS = {"While", "StatelessWhile"}
# Operations that TensorFlow computes on the host if their operands are int32.
HOST = {"Less", "LessEqual", "Greater", "GreaterEqual", "Equal", "NotEqual"}
HOST |= {"Identity"}
# Operations that compute shapes and axes, on the host by their nature.
SHAPES = {"BroadcastGradientArgs", "ConcatV2", "Shape", "StridedSlice", "DynamicStitch"}

SOLVERS = {
    "picard": solvers.FixedPointIteration(),
    "picard, damped with patience": solvers.FixedPointIteration(
        damping=0.5, patience=2
    ),
    "picard, noisy": solvers.FixedPointIteration(noise=1e-4),
    "anderson": solvers.Anderson(),
    "anderson, mixing": solvers.Anderson(mixing=0.8, stop_mode="rel_max"),
    "broyden": solvers.Broyden(),
    "broyden, history": solvers.Broyden(history=5),
    "aitken": solvers.Aitken(),
    "gmres": solvers.GMRES(),
    "bicgstab": solvers.BiCGStab(),
}


class Functions:
    """The functions of a traced graph, by name."""

    def __init__(self, concrete):
        self.main = concrete.graph
        self._library = {
            function.signature.name: function
            for function in concrete.graph.as_graph_def().library.function
        }
        self._graphs = {}

    def of(self, operation, attribute):
        return self._graph(operation.get_attr(attribute).name)

    def _graph(self, name):
        if name not in self._graphs:
            self._graphs[name] = function_def_to_graph.function_def_to_graph(
                self._library[name]
            )
        return self._graphs[name]

    def inner(self, graph):
        """Yields the functions that the operations of a graph call."""
        for operation in graph.get_operations():
            for name in operation.node_def.attr:
                value = operation.node_def.attr[name]
                names = [value.func.name, *(f.name for f in value.list.func)]
                yield from map(self._graph, filter(self._library.__contains__, names))

    def with_inner(self, graph):
        yield graph
        for inner in self.inner(graph):
            yield from self.with_inner(inner)

    def loops(self):
        for graph in self.with_inner(self.main):
            for operation in graph.get_operations():
                if operation.type in LOOPS:
                    yield operation


def _depends_on_samples(tensor):
    """Whether a predicate needs more than the counters of its function."""
    return bool(_copies_of(tensor))


def _copies_of(tensor):
    """Returns the tensors on the device that the host copies for a predicate."""
    pending, seen, copies = [tensor], set(), set()
    while pending:
        current = pending.pop()
        if current.ref() in seen:
            continue
        seen.add(current.ref())
        if not _is_on_host(current):
            copies.add(current.ref())
        elif current.op.type == "Cast":
            # Computed on the device, and copied for the operations that follow.
            copies.update({current.ref()} if _reads_samples(current) else ())
        elif current.op.type not in LOOPS | BRANCHES:
            pending.extend(current.op.inputs)
    return copies


def _is_on_host(tensor):
    """Whether a scalar is a counter, or computed from counters."""
    if tensor.shape.rank not in (0, None) or tensor.dtype.is_floating:
        return False
    if tensor.dtype == tf.int32 or tensor.op.type == "Const":
        return True
    return tensor.op.type in HOST and all(map(_is_on_host, tensor.op.inputs))


def _reads_samples(tensor):
    is_scalar = tensor.shape.rank in (0, None)
    if not is_scalar or tensor.dtype.is_floating or tensor.op.type == "Placeholder":
        return not (is_scalar and tensor.dtype == tf.int32)
    return any(map(_reads_samples, tensor.op.inputs))


def _predicates(functions, loop):
    """Returns how many copies of an iteration the host waits for."""
    body = functions.of(loop, "body")
    copies = set()
    for graph in functions.with_inner(body):
        for operation in graph.get_operations():
            if operation.type in BRANCHES:
                copies |= _copies_of(operation.inputs[0])
    condition = functions.of(loop, "cond")
    for variable, output in zip(condition.inputs, body.outputs, strict=False):
        is_counter = variable.dtype == tf.int32 and variable.shape.rank == 0
        if is_counter and variable.consumers():
            copies |= _copies_of(output)
    return len(copies) + len(_copies_of(condition.outputs[0]))


def _host_vectors(functions, loop):
    """Returns int32 tensors with one entry per sample, in the body of a loop."""
    return [
        tensor
        for graph in functions.with_inner(functions.of(loop, "body"))
        for operation in graph.get_operations()
        for tensor in operation.outputs
        if tensor.dtype == tf.int32
        and (tensor.shape.rank or 0) > 0
        and not tensor.shape.is_fully_defined()
        and operation.type not in SHAPES
    ]


def _forbidden(functions, loop):
    return [
        operation.name
        for graph in functions.with_inner(functions.of(loop, "body"))
        for operation in graph.get_operations()
        if operation.type in FORBIDDEN
    ]


def _evaluates(functions, loop):
    """Whether the body of a loop contains a dense cell, or its derivative."""
    return any(
        operation.type == "MatMul"
        for graph in functions.with_inner(functions.of(loop, "body"))
        for operation in graph.get_operations()
    )


class Affine:
    """f(z) = A z + b, with what linear solvers ask for."""

    def __init__(self, matrix):
        self.matrix = matrix

    def __call__(self, state, bias):
        return state @ self.matrix + bias

    def constant_term(self, bias):
        return bias


def _solve_graph(solver, **options):
    @tf.function(input_signature=[tf.TensorSpec([None, 8])])
    def solve(bias):
        problem = FixedPointProblem(Affine(0.3 * tf.eye(8)), bias)
        request = SolveRequest(tf.zeros_like(bias), seed=1, **options)
        return solver.solve(problem, request).value

    return Functions(solve.get_concrete_function())


def _splitting_graph(cls, **options):
    deq = DEQ(MonotoneDenseCell(8), cls())
    deq.build((None, 3))

    @tf.function(input_signature=[tf.TensorSpec([None, 3])], autograph=False)
    def solve(inputs):
        return deq.solve(inputs, SolveRequest(**options)).value

    return Functions(solve.get_concrete_function())


def _step_graph(deq):
    """Returns the functions of a training step of a layer."""
    deq.build((None, 3))

    @tf.function(input_signature=[tf.TensorSpec([None, 3])])
    def step(inputs):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(deq(inputs, training=True))
            loss = tf.add_n([loss, *deq.losses])
        return tape.gradient(loss, deq.trainable_variables)

    return Functions(step.get_concrete_function())


# Whether a sample is to be decided, whether all improve, and, only if a sample is to be
# decided, whether squares left the range of float32.
MOST_PREDICATES = 3


def _check(functions, most_predicates=MOST_PREDICATES):
    loops = list(functions.loops())
    assert loops
    for loop in loops:
        assert _predicates(functions, loop) <= most_predicates, loop.name
        assert not _host_vectors(functions, loop), loop.name
        assert not _forbidden(functions, loop), loop.name


@pytest.mark.parametrize("name", SOLVERS)
def test_an_iteration_waits_for_few_copies(name):
    _check(_solve_graph(SOLVERS[name]))


@pytest.mark.parametrize("name", [name for name in SOLVERS if "," not in name])
def test_a_budget_of_a_tensor_adds_no_predicate(name):
    _check(_solve_graph(SOLVERS[name], max_iter=tf.constant(6)))


@pytest.mark.parametrize("trace", [True, False])
def test_traces_add_no_predicate(trace):
    solver = solvers.Anderson()
    _check(_solve_graph(solver, records_trace=trace))


def test_halting_adds_no_predicate():
    halting = solvers.UnchangedAnswer(lambda z: tf.argmax(z, 1))
    _check(_solve_graph(solvers.FixedPointIteration(), halting=halting))


def test_a_fixed_budget_is_a_counted_loop():
    functions = _solve_graph(solvers.FixedPointIteration(max_iter=7, tol=None))
    (loop,) = functions.loops()
    assert not _depends_on_samples(functions.of(loop, "cond").outputs[0])


@pytest.mark.parametrize(
    "gradient",
    [
        gradients.ImplicitGradient(),
        gradients.ImplicitGradient(solver=solvers.GMRES()),
        gradients.NeumannGradient(4),
        gradients.PhantomGradient(3),
        gradients.UnrolledGradient(),
        gradients.TruncatedGradient(),
        gradients.TruncatedGradient(checkpoints=2),
        gradients.ReversibleGradient(),
    ],
    ids=lambda gradient: str(gradient)[:60],
)
def test_the_loops_of_a_training_step(gradient):
    solver = "auto"
    if isinstance(gradient, gradients.ReversibleGradient):
        solver = solvers.FixedPointIteration(damping=0.8, max_iter=8)
    deq = DEQ(DenseCell(8), solver=solver, gradient=gradient, regularizer=None)
    functions = _step_graph(deq)
    _check(functions)
    for loop in filter(functools.partial(_evaluates, functions), functions.loops()):
        # Otherwise memory would depend on which iterations the threads start first.
        assert loop.get_attr("parallel_iterations") == 1


@pytest.mark.parametrize("gradient", ["auto", slow("implicit")])
@pytest.mark.parametrize("cls", regularizers.ALL_OBJECTS)
def test_a_regularizer_adds_no_predicate(cls, gradient):
    _check(_step_graph(DEQ(DenseCell(8), gradient=gradient, regularizer=cls())))


@pytest.mark.parametrize("cls", [solvers.PeacemanRachford, solvers.ForwardBackward])
def test_splittings_wait_for_few_copies(cls):
    """In the solve and in its adjoint, also with a budget of a tensor."""
    _check(_step_graph(DEQ(MonotoneDenseCell(8), cls())))
    _check(_splitting_graph(cls, max_iter=tf.constant(6)))


def test_the_check_sees_predicates_and_vectors_of_samples():
    @tf.function(input_signature=[tf.TensorSpec([None, 8])])
    def solve(bias):
        def body(state, status):
            for _ in range(3):
                state = tf.cond(
                    tf.reduce_any(status > 0), lambda: state + 1.0, lambda: state
                )
            return state, status + tf.cast(state[:, 0] > 0, tf.int32)

        status = tf.zeros(tf.shape(bias)[:1], tf.int32)
        loop = tf.while_loop(lambda _, s: tf.reduce_any(s < 9), body, (bias, status))
        return loop[0]

    functions = Functions(solve.get_concrete_function())
    (loop,) = functions.loops()
    assert _predicates(functions, loop) == 4
    assert _host_vectors(functions, loop)


IN_XLA = pytest.mark.parametrize("name", ["picard", "anderson", "broyden", "gmres"])


def _xla_program(solver, shape, **options):
    """Returns the computations of a solve that XLA compiled, and its loop."""

    @tf.function(jit_compile=True, autograph=False)
    def solve(inputs):
        problem = FixedPointProblem(Affine(0.3 * tf.eye(shape[1])), inputs)
        request = SolveRequest(tf.zeros(shape), **options)
        return solver.solve(problem, request).value

    describe = solve.experimental_get_compiler_ir(tf.zeros(shape))
    computations = re.split(r"\n(?=\S)", describe(stage="optimized_hlo"))
    (loop,) = re.findall(r"while\(.*body=.*", "\n".join(computations))
    return computations, loop


@IN_XLA
def test_xla_copies_no_history(name):
    """Columns that rotate would be copied in each evaluation, one by one."""
    computations, loop = _xla_program(SOLVERS[name], (8, 1000), max_iter=8)
    body = re.search(r"body=(%[\w.-]+)", loop).group(1)
    (text,) = (one for one in computations if one.startswith(f"{body} "))
    copies = re.findall(r"= f32\[8,1000\]\S* copy\(", text)
    assert "f32[8,1000]" in text
    assert len(copies) <= 1  # XLA copies the evaluated point.


def test_xla_does_not_keep_a_history_for_the_adjoint_solve():
    """Equal zeros would be one buffer, which the first solve must not overwrite."""
    broyden = solvers.Broyden(max_iter=8)
    deq = DEQ(
        DenseCell(1000), solver=broyden, gradient=gradients.ImplicitGradient(broyden)
    )
    deq.build((8, 1000))

    @tf.function(jit_compile=True, autograph=False)
    def differentiate(inputs):
        return tf.gradients(tf.reduce_sum(deq(inputs) ** 2), inputs)

    describe = differentiate.experimental_get_compiler_ir(tf.ones((8, 1000)))
    program = describe(stage="optimized_hlo")
    assert "f32[7,8,1000]" in program
    assert not re.findall(r"= f32\[7,8,1000\]\S* copy\(", program)


def _is_counted_by_xla(cls, tol):
    _, loop = _xla_program(cls(max_iter=7, tol=tol), (4, 8))
    return '"known_trip_count":{"n":"7"}' in loop


@pytest.mark.parametrize(
    "cls",
    [
        solvers.FixedPointIteration,
        solvers.Anderson,
        *map(slow, (solvers.Broyden, solvers.Aitken, solvers.GMRES)),
    ],
)
def test_xla_counts_the_iterations_of_a_fixed_budget(cls):
    assert _is_counted_by_xla(cls, None)


def test_xla_cannot_count_the_iterations_until_a_tolerance():
    assert not _is_counted_by_xla(solvers.FixedPointIteration, 1e-3)
