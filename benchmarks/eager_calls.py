"""Time of eager calls and steps of small states, beside compiled ones.

python -m benchmarks.eager_calls
"""

import functools

import keras
import numpy as np
import tensorflow as tf

import deq_keras
from benchmarks import measuring

SOLVERS = ("fixed_point_iteration", "anderson", "broyden")


def calls(effort, width=32, batches=(1, 64), max_iter=12):
    """Returns ratios of eager over compiled calls, and of calls op by op over eager."""
    results = {}
    for solver in SOLVERS:
        for batch in batches:
            config = {"class_name": solver, "max_iter": max_iter, "tol": 0.0}
            deq = deq_keras.layers.DEQ(
                deq_keras.layers.DenseCell(width), config, gradient="implicit"
            )
            model = keras.Sequential([keras.Input((width,)), deq])
            inputs = np.random.default_rng(0).normal(size=(batch, width))
            inputs = tf.constant(inputs, "float32")
            step = functools.partial(_step, model)
            for name, call in (("call", model), ("step", step)):
                eager = functools.partial(call, inputs)
                compiled = functools.partial(tf.function(call), inputs)
                results[f"{solver}, batch {batch}, {name}"] = {
                    "eager over compiled": measuring.compare(eager, compiled, effort),
                    "op by op over eager": measuring.compare(
                        functools.partial(_op_by_op, eager), eager, effort
                    ),
                }
    return results


def _step(model, inputs):
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(model(inputs, training=True) ** 2) + sum(model.losses)
    return tape.gradient(loss, model.trainable_variables)


def _op_by_op(call):
    tf.config.run_functions_eagerly(True)
    try:
        return call()
    finally:
        tf.config.run_functions_eagerly(False)


MEASUREMENTS = {"calls": calls}


def main(argv=None):
    return measuring.run("eager_calls", __doc__, MEASUREMENTS, argv)


if __name__ == "__main__":
    main()
