"""What is known of a graph."""

import tensorflow as tf

from deq_keras import solvers
from deq_keras.core.graphs import compile_function, is_vectorized


class Doubled:
    def __init__(self):
        self.call = compile_function(self._double)

    def _double(self, x):
        return 2 * x


def test_instances_cause_no_retracing_warning(caplog):
    # TensorFlow's logger does not pass its records on, so the handler is added to it.
    logger = tf.get_logger()
    caplog.set_level("WARNING", logger=logger.name)  # Commands make it quieter.
    logger.addHandler(caplog.handler)
    try:
        assert [int(Doubled().call(tf.constant(3))) for _ in range(8)] == [6] * 8
        assert not caplog.messages
        for _ in range(8):
            tf.function(Doubled()._double, autograph=False)(tf.constant(3))
        assert "retracing" in caplog.text
    finally:
        logger.removeHandler(caplog.handler)


def test_recognizes_vectorized_maps_and_no_scope_of_a_user():
    """The second map of a function, and a branch in a map, have other scopes."""
    found = {}

    def note(name, x):
        found[name] = is_vectorized()
        return x

    @tf.function(autograph=False)
    def trace(x):
        with tf.name_scope("loop_body"):
            tf.compat.v1.placeholder_with_default(x, [None], name="mine")
            note("user", x)
        tf.vectorized_map(lambda row: note("first", row), x)
        with tf.name_scope("outer"):
            tf.vectorized_map(lambda row: note("scoped", row), x)
        second = lambda row: tf.cond(row > 0, lambda: note("branch", row), lambda: row)  # noqa: E731
        tf.vectorized_map(second, x)
        tf.vectorized_map(lambda row: tf.function(note)("function", row), x)
        return note("after", x)

    trace(tf.ones(2))
    note("eager", 0)
    inside = {"first", "scoped", "branch", "function"}
    assert found == {name: name in inside for name in found}
    assert len(found) == 7


def test_a_scope_of_a_user_does_not_disable_early_stopping():
    solver = solvers.FixedPointIteration(30, 1e-3)

    def count():
        request = solvers.SolveRequest(tf.zeros((1, 1)))
        return solver.solve(lambda z: 0.5 * z + 1.0, request).num_evaluations[0]

    def scoped():
        with tf.name_scope("loop_body"):
            return count()

    assert int(tf.function(scoped)()) == int(count()) < 15
