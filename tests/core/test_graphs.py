"""Values that functions read when they are called, and what is known of a graph."""

import threading

import numpy as np
import pytest
import tensorflow as tf

from deq_keras.core.graphs import (
    CallTimeValue,
    compiled,
    innermost_function,
    is_being_traced,
    is_compiled_by_xla,
)


class Setting:
    """A number that changes between two calls."""

    def __init__(self):
        self.number = 3
        self.value = CallTimeValue(lambda: self.number, lambda: 6, tf.int32)


def _plain(value):
    return tf.function(lambda x: x * value(), autograph=False)


def _nested(value):
    inner = _plain(value)
    return tf.function(lambda x: inner(x), autograph=False)


def _in_a_branch(value):
    @tf.function(autograph=False)
    def function(x):
        return tf.cond(x > 0, lambda: x * value(), lambda: x)

    return function


def _in_a_loop(value):
    @tf.function(autograph=False)
    def function(x):
        (x,) = tf.while_loop(lambda x: x < 1, lambda x: (x + value(),), (x - x,))
        return 2 * x

    return function


def _called_in_a_branch(value):
    inner = _plain(value)

    @tf.function(autograph=False)
    def function(x):
        return tf.cond(x > 0, lambda: inner(x), lambda: x)

    return function


def _compiled(value):
    return tf.function(lambda x: x * value(), autograph=False, jit_compile=True)


@pytest.mark.parametrize(
    "make",
    [_plain, _nested, _in_a_branch, _in_a_loop, _called_in_a_branch, _compiled],
)
def test_a_function_reads_the_value_of_each_call(make):
    setting = Setting()
    function = make(setting.value)
    for number in (3, 4, 5):
        setting.number = number
        assert int(function(tf.constant(2))) == 2 * number
    assert function.experimental_get_tracing_count() == 1


def test_eager_calls_read_the_value():
    setting = Setting()
    assert setting.value().dtype == tf.int32
    setting.number = 7
    assert int(setting.value()) == 7


def test_the_value_is_that_of_the_calling_thread():
    local = threading.local()
    local.number = 1
    value = CallTimeValue(lambda: getattr(local, "number", 10), lambda: 0, tf.int32)
    function = _nested(value)
    results = [int(function(tf.constant(2)))]
    thread = threading.Thread(
        target=lambda: results.append(int(function(tf.constant(2))))
    )
    thread.start()
    thread.join()
    assert results == [2, 20]


def test_an_error_of_reading_reaches_the_caller():
    values = iter([1])
    value = CallTimeValue(lambda: next(values), lambda: 0, tf.int32)
    function = _plain(value)
    function(tf.constant(2))
    with pytest.raises(StopIteration):
        function(tf.constant(2))


def test_a_value_that_is_known_while_tracing_is_a_constant():
    value = CallTimeValue(lambda: 3, lambda: 0, tf.int32, known=lambda: 5)
    assert int(_plain(value)(tf.constant(2))) == 10


@pytest.mark.parametrize("make", [_plain, _nested, _in_a_loop])
def test_a_saved_function_has_the_default(make, tmp_path):
    setting = Setting()
    module = tf.Module()
    module.call = make(setting.value)
    concrete = module.call.get_concrete_function(tf.TensorSpec((), tf.int32))
    tf.saved_model.save(module, tmp_path, signatures=concrete)
    setting.number = 4
    loaded = tf.saved_model.load(tmp_path)
    assert int(loaded.call(tf.constant(2))) == 12
    (result,) = loaded.signatures["serving_default"](tf.constant(2)).values()
    assert int(result) == 12


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
    logger.addHandler(caplog.handler)
    try:
        assert [int(Doubled().call(tf.constant(3))) for _ in range(8)] == [6] * 8
        assert not caplog.messages
        for _ in range(8):
            tf.function(Doubled()._double, autograph=False)(tf.constant(3))
        assert "retracing" in caplog.text
    finally:
        logger.removeHandler(caplog.handler)
