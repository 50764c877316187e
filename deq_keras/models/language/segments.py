"""Models that read texts segment by segment, in consecutive batches."""

import contextlib
import inspect
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf
from keras import tree

from deq_keras.layers.language.memory_layer import OTHER_ROWS

_DEFAULT_BATCH_SIZE = 32  # Keras uses it for arrays.


_Model: Any = object  # The models that the mixin precedes have its attributes.


class SegmentReading(_Model):
    """Mixin of models whose `segment_layer` remembers the previous segments.

    `fit` and `evaluate` read consecutive batches as consecutive segments of the same
    texts: row b of a batch continues row b of the previous batch, so all batches must
    have the same number of rows. Every epoch and evaluation starts with an empty
    memory. For independent texts, set the length of the memory to 0. All other calls
    use no memory, unless they are made within `reading_segments`.

    With a memory, `fit` and `evaluate` raise a ValueError if arrays have an incomplete
    last batch or `fit` would shuffle their rows. They warn if every row is a string,
    which the preprocessor reads as an independent text.
    """

    def reset_memory(self) -> None:
        """Empties the memory: the next call starts new texts."""
        self.segment_layer.reset_memory()

    def reset_metrics(self) -> None:
        """Resets metrics and memory. Keras calls this at the start of every epoch and
        evaluation."""
        super().reset_metrics()
        self.reset_memory()

    def fit(
        self,
        x: Any = None,
        y: Any = None,
        batch_size: Any = None,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        """See `keras.Model.fit`, and `SegmentReading` for the batches."""
        fit = super().fit
        if self.segment_layer.length:
            # KerasHub's models have another order of arguments than Keras'.
            given = inspect.signature(fit).bind(x, y, batch_size, *args, **kwargs)
            named = {**given.arguments.get("kwargs", {}), **given.arguments}
            # KerasHub's models make a dataset of arrays, and never shuffle it.
            shuffles = not hasattr(self, "preprocess_samples") and named.get(
                "shuffle", True
            )
            split = named.get("validation_split") or 0.0
            _check_segments(x, batch_size, split, shuffles)
            held_out = named.get("validation_data")
            if isinstance(held_out, (tuple, list)):
                size = named.get("validation_batch_size") or batch_size
                _check_segments(held_out[0], size)
        with _short_errors():
            return fit(x, y, batch_size, *args, **kwargs)

    def evaluate(
        self,
        x: Any = None,
        y: Any = None,
        batch_size: Any = None,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        """See `keras.Model.evaluate`, and `SegmentReading` for the batches."""
        if self.segment_layer.length and not kwargs.get("_use_cached_eval_dataset"):
            _check_segments(x, batch_size)
        with _short_errors():
            return super().evaluate(x, y, batch_size, *args, **kwargs)

    def test_step(self, data: Any) -> Any:
        with self.segment_layer.reading_segments():
            return super().test_step(data)

    @contextlib.contextmanager
    def reading_segments(self) -> Iterator[None]:
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
def _short_errors() -> Iterator[None]:
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


def _check_segments(
    x: Any, batch_size: Any, validation_split: float = 0.0, shuffles: bool = False
) -> None:
    """Raises or warns if the rows of `x` cannot be consecutive segments.

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
                    f"which continue each other. Received: {count} rows and "
                    f"batch_size={batch_size}, which leaves {rest} to the last batch. "
                    "Leave these rows out, choose another batch size, or set the "
                    "length of the memory to 0."
                )
        if shuffles and num_trained > batch_size:
            raise ValueError(
                "With a memory, row b of a batch continues row b of the batch before. "
                "Received: arrays of several batches and shuffle=True, the default. "
                "Pass shuffle=False if the rows are such segments; if they are "
                "independent texts, set the length of the memory to 0."
            )
    is_single = num_rows is not None and num_rows <= batch_size
    if isinstance(x, tf.data.Dataset):
        is_single = int(x.cardinality()) == 1
    if _has_strings(x) and not is_single:
        warnings.warn(
            "The memory continues from batch to batch within an epoch, but each string "
            "is read as a separate text. Set the length of the memory to 0, unless the "
            "strings of a batch continue the strings of the previous batch.",
            stacklevel=3,
        )


def _is_texts(x: Any) -> bool:
    return (
        isinstance(x, (list, tuple)) and len(x) > 0 and isinstance(x[0], (str, bytes))
    )


def _num_rows(x: Any) -> int | None:
    """Returns the number of rows of arrays or of a list of texts; else None."""
    if _is_texts(x):
        return len(x)
    leaves = [leaf for leaf in tree.flatten(x) if getattr(leaf, "shape", None)]
    return leaves[0].shape[0] if leaves else None


def _has_strings(x: Any) -> bool:
    if _is_texts(x):
        return True
    # Expands the composite specs of a distributed dataset, which lack a dtype.
    leaves = tf.nest.flatten(getattr(x, "element_spec", x), expand_composites=True)
    return any(
        tf.as_dtype(leaf.dtype) == tf.string
        if isinstance(leaf, (tf.Tensor, tf.TypeSpec))
        else isinstance(leaf, np.ndarray) and leaf.dtype.kind in "OSU"
        for leaf in leaves
    )
