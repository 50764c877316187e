"""What is known of a graph."""

import tensorflow as tf

from deq_keras.core.graphs import compiled


class Doubled:
    def __init__(self):
        self.call = compiled(self._double)

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
