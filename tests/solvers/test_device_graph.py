"""Loops of solves copy few values to the host, and none of their history."""

import re

import pytest
import tensorflow as tf
from tensorflow.python.framework import function_def_to_graph

from deq_keras import gradients, layers, solvers
from tests.regimes import slow

FORBIDDEN = {"Where", "PyFunc", "EagerPyFunc", "PyFuncStateless", "Assert", "Unique"}
BRANCHES = {"If", "StatelessIf", "Case", "StatelessCase"}
LOOPS = {"While", "StatelessWhile"}
# Operations that TensorFlow computes on the host if their operands are int32 scalars.
HOST = {"Less", "LessEqual", "Greater", "GreaterEqual", "Equal", "NotEqual", "Identity"}
# Whether a sample is to be decided, whether all improve, and whether squares left the
# range of float32.
MOST_COPIES = 3
SOLVERS = {
    "picard": solvers.FixedPointIteration(damping=0.5, patience=2),
    "noisy": solvers.FixedPointIteration(noise=1e-4),
    "anderson": solvers.Anderson(mixing=0.8, stop_mode="rel_max"),
    "broyden": solvers.Broyden(history=5),
    "aitken": solvers.Aitken(),
    "gmres": solvers.GMRES(),
    "bicgstab": solvers.BiCGStab(),
}


SLOW = ("noisy", "aitken", "bicgstab")


class Affine(solvers.FixedPointFunction):
    """f(z) = 0.3 z + b, with what linear solvers need."""

    def __call__(self, state, bias):
        return 0.3 * state + bias

    def constant_term(self, bias):
        return bias


def _solve(solver, bias, **request):
    problem = solvers.FixedPointProblem(Affine(), bias)
    request = solvers.SolveRequest(tf.zeros_like(bias), seed=1, **request)
    return solver.solve(problem, request).value


def _loops(function, *shape):
    """Returns the loops of a traced function: graphs of condition and body, and the
    number of parallel iterations."""
    traced = tf.function(function, [tf.TensorSpec(shape)], autograph=False)
    graph = traced.get_concrete_function().graph
    library = {f.signature.name: f for f in graph.as_graph_def().library.function}
    graphs = {
        name: function_def_to_graph.function_def_to_graph(definition)
        for name, definition in library.items()
    }
    return [
        (
            graphs[operation.get_attr("cond").name],
            _with_inner(graphs[operation.get_attr("body").name], graphs),
            operation.get_attr("parallel_iterations"),
        )
        for one in _with_inner(graph, graphs)
        for operation in one.get_operations()
        if operation.type in LOOPS
    ]


def _with_inner(graph, graphs):
    """Returns a graph and the graphs that its operations call."""
    found = [graph]
    for operation in graph.get_operations():
        for value in operation.node_def.attr.values():
            for name in (value.func.name, *(f.name for f in value.list.func)):
                if name in graphs:
                    found += _with_inner(graphs[name], graphs)
    return found


def _is_counter(tensor):
    """Whether a scalar is computed from int32 scalars, which are on the host."""
    if tensor.shape.rank not in (0, None) or tensor.dtype.is_floating:
        return False
    if tensor.dtype == tf.int32 or tensor.op.type == "Const":
        return True
    return tensor.op.type in HOST and all(map(_is_counter, tensor.op.inputs))


def _num_copies(condition, body):
    """Returns how many values the host waits for in an iteration."""
    predicates = [
        operation.inputs[0]
        for graph in body
        for operation in graph.get_operations()
        if operation.type in BRANCHES
    ]
    copies = {p.ref() for p in predicates if not _is_counter(p)}
    return len(copies) + (not _is_counter(condition.outputs[0]))


def _check(loops, most_copies=MOST_COPIES):
    assert loops
    for condition, body, _ in loops:
        types = {one.type for graph in body for one in graph.get_operations()}
        assert not types & FORBIDDEN
        assert _num_copies(condition, body) <= most_copies


@pytest.mark.parametrize(
    "name", [slow(name) if name in SLOW else name for name in SOLVERS]
)
def test_iteration_copies_few_values(name):
    def solve(bias):
        return _solve(SOLVERS[name], bias, max_iter=tf.constant(6))

    _check(_loops(solve, None, 8))


def test_fixed_budget_copies_no_condition():
    solver = solvers.FixedPointIteration(max_iter=7, tol=None)
    ((condition, _, _),) = _loops(lambda bias: _solve(solver, bias), None, 8)
    assert _is_counter(condition.outputs[0])


@pytest.mark.parametrize(
    "gradient", ["implicit", "truncated", slow("reversible"), slow("unrolled")]
)
def test_training_step_copies_few_values(gradient):
    solver = solvers.FixedPointIteration(damping=0.8, max_iter=8)
    deq = layers.DEQ(layers.DenseCell(8), solver, gradient, regularizer=None)
    deq.build((None, 3))

    def step(inputs):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(deq(inputs, training=True))
        return tape.gradient(loss, deq.trainable_variables)

    loops = _loops(step, None, 3)
    # The gradient of a loop reads the predicate of each branch.
    _check(loops, MOST_COPIES + 1)
    for _, body, parallel_iterations in loops:
        types = {one.type for graph in body for one in graph.get_operations()}
        # More would make memory depend on which iterations the threads start first.
        assert "MatMul" not in types or parallel_iterations == 1


def _xla_program(function, inputs):
    compiled = tf.function(function, jit_compile=True, autograph=False)
    return compiled.experimental_get_compiler_ir(inputs)(stage="optimized_hlo")


@pytest.mark.slow
@pytest.mark.parametrize("cls", [solvers.Anderson, solvers.Broyden])
def test_xla_copies_no_history(cls):
    """Rotating columns would be copied in each evaluation, one by one."""
    program = _xla_program(lambda b: _solve(cls(max_iter=8), b), tf.zeros((8, 1000)))
    names = re.findall(r"while\(.*body=(%[\w.-]+)", program)
    computations = re.split(r"\n(?=\S)", program)
    bodies = [one for one in computations if one.split(" ")[0] in names]
    assert all("f32[8,1000]" in body for body in bodies)
    body = "".join(bodies)
    # XLA copies the evaluated point.
    assert len(re.findall(r"= f32\[8,1000\]\S* copy\(", body)) <= 1


@pytest.mark.slow
def test_xla_does_not_copy_the_history_for_the_adjoint():
    """The first solve must not overwrite zeros that the second one shares."""
    broyden = solvers.Broyden(max_iter=8)
    gradient = gradients.ImplicitGradient(broyden)
    deq = layers.DEQ(layers.DenseCell(1000), broyden, gradient)
    deq.build((8, 1000))
    program = _xla_program(
        lambda x: tf.gradients(tf.reduce_sum(deq(x) ** 2), x), tf.ones((8, 1000))
    )
    assert "f32[7,8,1000]" in program
    assert not re.findall(r"= f32\[7,8,1000\]\S* copy\(", program)


@pytest.mark.slow
@pytest.mark.parametrize("tol, is_counted", [(None, True), (1e-3, False)])
def test_xla_counts_the_iterations_of_a_fixed_budget(tol, is_counted):
    solver = solvers.Anderson(max_iter=7, tol=tol)
    program = _xla_program(lambda bias: _solve(solver, bias), tf.zeros((4, 8)))
    assert ('"known_trip_count":{"n":"7"}' in program) == is_counted
