"""A search in which samples that are done leave the batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import tensorflow as tf
from keras import tree

from deq_keras.row_function import RowFunction
from deq_keras.solvers.search import Search
from deq_keras.solvers.solution import MAX_ITER
from deq_keras.structure import Nest

# Those that go on are copied where at least this share of the batch leaves.
_SMALLEST_SHARE = 0.125


class Remaining(NamedTuple):
    """The samples that are still in the batch, and what is known of all.

    Attributes:
        search: The `Search` of those that remain.
        indices: Int32 tensor `(remaining,)`. Where they stand in the whole batch.
        injection: Nest of tensors. Theirs.
        results: The `Results` of the whole batch.
    """

    search: Search
    indices: tf.Tensor
    injection: Nest
    results: Results

    @classmethod
    def of(cls, search: Search, take: Take, fn: RowFunction) -> Remaining:
        """Returns all samples of a search that has just begun.

        Their number is no longer static, also not to who optimises graphs, and would
        fold constants of it into a loop in which it changes.
        """
        everyone = tf.compat.v1.placeholder_with_default(
            tf.range(tf.size(search.status)), [None]
        )
        return cls(
            take(search, everyone),
            everyone,
            fn.rows_of(fn.injection, everyone),
            Results.of(search),
        )

    def without_those_done(self, take: Take, fn: RowFunction) -> Remaining:
        """Returns the samples that go on, or all while too few would leave."""
        goes_on = tf.equal(self.search.status, MAX_ITER) & self.search.is_running
        share = tf.reduce_mean(tf.cast(~goes_on, tf.float32))
        return tf.cond(
            ~self.search.is_running | (share >= _SMALLEST_SHARE),
            lambda: self._split(goes_on, take, fn),
            lambda: self,
        )

    def _split(self, goes_on: tf.Tensor, take: Take, fn: RowFunction) -> Remaining:
        leaving, staying = _where(~goes_on), _where(goes_on)
        left = Results.of(take(self.search, leaving))
        return Remaining(
            take(self.search, staying),
            tf.gather(self.indices, staying),
            fn.rows_of(self.injection, staying),
            self.results.with_rows(tf.gather(self.indices, leaving), left),
        )


class Results(NamedTuple):
    """What a search found, `(batch, ...)` each, also the trace."""

    best_point: tf.Tensor
    best_value: tf.Tensor
    best_error: tf.Tensor
    status: tf.Tensor
    sample_evaluations: tf.Tensor
    trace: tf.Tensor | tuple[()]

    @classmethod
    def of(cls, search: Search) -> Results:
        found = {name: getattr(search, name) for name in cls._fields}
        trace = tree.map_structure(tf.transpose, search.trace)
        return cls(**{**found, "trace": trace})

    def with_rows(self, indices: tf.Tensor, rows: Results) -> Results:
        """Returns these, with those of some samples."""
        return tree.map_structure(
            lambda leaf, new: tf.tensor_scatter_nd_update(leaf, indices[:, None], new),
            self,
            rows,
        )

    def entered(self, search: Search) -> Search:
        """Returns a search with these results."""
        found = self._asdict()
        trace = tree.map_structure(tf.transpose, self.trace)
        return search._replace(**{**found, "trace": trace})


Take = Callable[[Search, tf.Tensor], Search]


def _where(mask: tf.Tensor) -> tf.Tensor:
    return tf.cast(tf.where(mask)[:, 0], tf.int32)
