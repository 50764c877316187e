"""Models that read texts segment by segment, in consecutive batches."""

import contextlib

import tensorflow as tf
from keras import tree

from deq_keras.layers.language.memory_layer import OTHER_ROWS

_DEFAULT_BATCH_SIZE = 32  # Keras uses it for arrays.


class SegmentReading:
    """Mixin of models whose `segment_layer` remembers the previous segments.

    `fit` and `evaluate` read consecutive batches as consecutive segments of the same
    texts: row b of a batch continues row b of the previous batch, so all batches must
    have the same number of rows. Every epoch and evaluation starts with an empty
    memory. For independent texts, set the length of the memory to 0. All other calls
    use no memory, unless they are made within `reading_segments`.

    With a memory, `fit` and `evaluate` raise a ValueError if arrays have an incomplete
    last batch or `fit` would shuffle their rows.
    """

    def reset_memory(self):
        """Empties the memory: the next call starts new texts."""
        self.segment_layer.reset_memory()

    def reset_metrics(self):
        """Resets metrics and memory. Keras calls this at the start of every epoch and
        evaluation."""
        super().reset_metrics()
        self.reset_memory()

    def fit(self, x=None, y=None, batch_size=None, *args, **kwargs):
        """See `keras.Model.fit`, and `SegmentReading` for the batches."""
        if self.segment_layer.length:
            # Keras shuffles arrays by default. KerasHub's models make a dataset of them
            # first, which is never shuffled.
            shuffles = not hasattr(self, "preprocess_samples") and kwargs.get(
                "shuffle", True
            )
            split = kwargs.get("validation_split") or 0.0
            _check_segments(x, batch_size, split, shuffles)
            given = kwargs.get("validation_data")
            if isinstance(given, (tuple, list)):
                size = kwargs.get("validation_batch_size") or batch_size
                _check_segments(given[0], size)
        with _short_errors():
            return super().fit(x, y, batch_size, *args, **kwargs)

    def evaluate(self, x=None, y=None, batch_size=None, *args, **kwargs):
        """See `keras.Model.evaluate`, and `SegmentReading` for the batches."""
        if self.segment_layer.length and not kwargs.get("_use_cached_eval_dataset"):
            _check_segments(x, batch_size)
        with _short_errors():
            return super().evaluate(x, y, batch_size, *args, **kwargs)

    def test_step(self, data):
        with self.segment_layer.reading_segments():
            return super().test_step(data)

    @contextlib.contextmanager
    def reading_segments(self):
        """Returns a scope in which calls and `predict` continue the previous segments.
        It starts with an empty memory."""
        self.reset_memory()
        self.predict_function = None  # Traced again for the scope.
        try:
            with self.segment_layer.reading_segments():
                yield
        finally:
            self.predict_function = None


@contextlib.contextmanager
def _short_errors():
    """Replaces TensorFlow's error for another number of rows by a `ValueError`."""
    try:
        yield
    except tf.errors.InvalidArgumentError as error:
        if OTHER_ROWS not in str(error):
            raise
        raise ValueError(
            f"{OTHER_ROWS} With a memory all batches must have the same number of "
            "rows, which continue each other. Leave an incomplete last batch out, as "
            "`dataset.batch(batch_size, drop_remainder=True)` does, or set the length "
            "of the memory to 0."
        ) from None


def _check_segments(x, batch_size, validation_split=0.0, shuffles=False):
    """Raises `ValueError` if the rows of `x` cannot be consecutive segments.

    Cannot check the batch size and the order of datasets, which they do not reveal.
    """
    batch_size = batch_size or _DEFAULT_BATCH_SIZE
    num_rows = _num_rows(x)
    if num_rows is not None:
        num_trained = int(num_rows * (1.0 - validation_split))
        for count in (num_trained, num_rows - num_trained):
            rest = count % batch_size
            if rest and count > batch_size:
                raise ValueError(
                    "With a memory all batches must have the same number of rows, "
                    f"which continue each other. Received: {count} rows and batch_size="
                    f"{batch_size}, which leaves {rest} to the last batch. Leave these "
                    "rows out, choose another batch size, or set the length of the "
                    "memory to 0."
                )
        if shuffles and num_trained > batch_size:
            raise ValueError(
                "With a memory, row b of a batch continues row b of the batch before. "
                "Received: arrays of several batches and shuffle=True, the default. "
                "Pass shuffle=False if the rows are such segments; if they are "
                "independent texts, set the length of the memory to 0."
            )


def _num_rows(x):
    """Returns the number of rows of arrays or of a list of texts; else None."""
    if isinstance(x, (list, tuple)) and x and isinstance(x[0], (str, bytes)):
        return len(x)
    leaves = [leaf for leaf in tree.flatten(x) if getattr(leaf, "shape", None)]
    return leaves[0].shape[0] if leaves else None
