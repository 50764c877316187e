"""What is known of a graph."""

import numpy as np
import tensorflow as tf

from deq_keras.core.graphs import (
    compiled,
    innermost_function,
    is_being_traced,
    is_compiled_by_xla,
)


def test_the_innermost_function():
    assert innermost_function() is None
    seen = {}

    @tf.function(autograph=False)
    def outer(x):
        own = seen["outer"] = innermost_function()

        @tf.function(autograph=False)
        def inner(x):
            seen["inner"] = innermost_function()
            assert is_being_traced(own)
            return x

        def branch():
            assert innermost_function() is own and is_being_traced(own)
            return inner(x)

        return tf.cond(x > 0, branch, lambda: x)

    outer(tf.constant(1))
    assert seen["inner"] is not seen["outer"]
    assert not is_being_traced(seen["outer"])


def test_functions_that_xla_compiles():
    seen = {}
    for jit_compile in (True, False):

        @tf.function(autograph=False, jit_compile=jit_compile)
        def function(x, jit_compile=jit_compile):
            seen[jit_compile] = is_compiled_by_xla()
            return x

        function(np.float32(1.0))
    assert seen == {True: True, False: False}
    assert not is_compiled_by_xla()


class Doubled:
    def __init__(self):
        self.call = compiled(self._double)

    def _double(self, x):
        return 2 * x


def test_instances_that_are_traced_once_cause_no_warning(caplog):
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
