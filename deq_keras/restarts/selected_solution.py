"""What is known of a solve that was repeated from several states."""

from typing import NamedTuple

import tensorflow as tf

from deq_keras.structure import Nest


class SelectedSolution(NamedTuple):
    """The `deq_keras.solvers.Solution` of the restart that was chosen for each sample,
    and what the others say of it.

    Restarts that failed, of which the status is `DIVERGED`, agree with nothing.

    Attributes:
        value: Nest like the state; see `Solution`, as of the next six.
        point: Nest like the state.
        residual: Float tensor `(batch,)`.
        status: Int32 tensor `(batch,)`.
        num_evaluations: Int32 tensor `(batch,)`.
        batch_evaluations: Int32 scalar. Evaluations that the loop ran, each of all
            samples of all restarts.
        trace: Float tensor `(max_iter, batch)`.
        restart: Int32 tensor `(batch,)`. Which was chosen; 0 is the one that begins
            where a solve without restarts does.
        agreement: Float tensor `(batch,)` in [0, 1]. The share of all restarts, the
            chosen one included, that have its answer; without a function that reads
            answers, that ended within a hundredth of it, as `spread` measures.
        spread: Float tensor `(batch,)` in [0, 2]. The mean of |z - z'| / max(|z|, |z'|)
            over the restarts that did not fail, with the chosen equilibrium z and that
            of each restart z', itself included.
        total_evaluations: Int32 tensor `(batch,)`. Those of all restarts of a sample.
    """

    value: Nest
    point: Nest
    residual: tf.Tensor
    status: tf.Tensor
    num_evaluations: tf.Tensor
    batch_evaluations: tf.Tensor
    trace: tf.Tensor
    restart: tf.Tensor
    agreement: tf.Tensor
    spread: tf.Tensor
    total_evaluations: tf.Tensor
