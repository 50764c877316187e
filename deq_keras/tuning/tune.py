"""Choose the cheapest setting of a solver that keeps a promise."""

import hashlib
import itertools
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any

import numpy as np
import tensorflow as tf
from keras import tree

from deq_keras.core.checks import check_count, check_open_fraction
from deq_keras.core.predictions import check_predict
from deq_keras.core.rounding import full_float32
from deq_keras.core.structure import Nest
from deq_keras.diagnostics.subject import encoder, head, single_layer
from deq_keras.solvers import (
    Aitken,
    Anderson,
    Broyden,
    FixedPointIteration,
    FixedPointSolver,
)
from deq_keras.tuning.recording import Predict, Recorder, outcome
from deq_keras.tuning.result import Promise, Setting, Tuning, describe

_MAX_ITER = 50
_TOLS = (0.1, 0.03, 0.01, 3e-3, 1e-3, 3e-4, 1e-4, 3e-5, 1e-5)


@full_float32()
def tune(
    model: Any,
    data: Nest,
    promise: float | Promise = 0.002,
    predict: Predict | None = None,
    candidates: Sequence[FixedPointSolver] | None = None,
    batch_size: int = 64,
    progress: Callable[[int, int], None] | None = None,
) -> Tuning:
    """Chooses the cheapest solver of a trained model that keeps its predictions.

    The predictions of a tight solve are the reference: Anderson's method to `1e-6` or,
    if it fails, Broyden's or the layer's own. The prediction of a sample without a
    reference counts as changed. On the first half of the data, one solve per candidate
    records the prediction after each evaluation. `tune` derives the changed predictions
    and the cost of each budget and tolerance from these solves. A setting keeps the
    promise if the upper Clopper-Pearson bound of its fraction of changed predictions is
    at most the promise. The cheapest of these settings is measured once on the second
    half. The result reports whether this confirms the promise. No targets are needed.

    The cost is the mean number of evaluations per sample. A batch takes as long as its
    slowest sample unless the solver is compact. Weights, metrics and the solver of the
    layer do not change; see `Tuning.apply`.

    Args:
        model: Functional or sequential model with one `DEQ` layer, or a `DEQ` layer.
        data: Nest of arrays `(samples, ...)`. Inputs of `model` in random order, so
            that both halves have the same distribution.
        promise: Float in (0, 1), the largest fraction of changed predictions (with 95 %
            confidence), or a `Promise`. Defaults to `0.002`, which needs 1,497 samples
            in each half.
        predict: Function from the outputs of `model` to predictions, a nest of integer
            or Boolean tensors `(batch, ...)`. A prediction changes if one of its
            entries does. Defaults to `None`, the argmax over the last axis; a `DEQ`
            layer needs a function, because its outputs are states.
        candidates: Sequence of solvers. Their tolerances are ignored, and `max_iter` is
            the largest budget to consider. Defaults to `None`: fixed-point iteration
            with damping 1, 0.7 and 0.5, Aitken's method, Anderson's method with a
            history of 2, 5 and 10, and Broyden's method, all up to 50 evaluations; and
            the layer's solver.
        batch_size: Positive integer. Defaults to `64`.
        progress: Optional function, which is called with the number of solves so far
            and their total number. Defaults to `None`.

    Returns:
        A `Tuning`.

    Raises:
        ValueError: If the model does not have exactly one `DEQ` layer, the promise
            needs more samples, or no setting keeps it.

    Example:

    >>> deq = deq_keras.layers.DEQ(deq_keras.layers.DenseCell(4))
    >>> model = keras.Sequential([keras.Input((3,)), deq, keras.layers.Dense(2)])
    >>> x = np.random.default_rng(0).normal(size=(200, 3)).astype("float32")
    >>> solvers = [deq_keras.solvers.FixedPointIteration(20)]
    >>> tuning = deq_keras.tuning.tune(model, x, promise=0.05, candidates=solvers)
    >>> tuning.selection.num_samples
    100
    >>> print(tuning)  # doctest: +SKIP
    >>> tuning.apply(model)  # doctest: +SKIP
    """
    # 1. Split the data into halves.
    # 2. On the first half, record the prediction after each evaluation of each
    #    candidate. Stopping at a tolerance or a budget only cuts these records short:
    #    replayed in the loop of the solvers, they yield predictions of all settings.
    # 3. Choose the cheapest setting that keeps the promise. This choice is biased: of
    #    many settings, one keeps the promise on the first half by chance.
    # 4. Measure it once on the second half, which no choice has seen.
    layer = single_layer(model)
    if not layer.built:
        raise ValueError(
            "Expected a trained model. Call the layer, or load a saved model. "
            f"Received: the layer {layer.name!r}, which is not built."
        )
    promise = promise if isinstance(promise, Promise) else Promise(promise)
    promise = Promise(
        check_open_fraction("promise", promise.changed),
        check_open_fraction("confidence", promise.confidence),
    )
    solvers = _check_candidates(candidates, layer.solver)
    batch_size = check_count("batch_size", batch_size)
    first, second = _split_data(data, promise)
    read = _argmax if predict is None and model is not layer else check_predict(predict)
    outputs_of = (lambda state: state) if model is layer else head(model)
    recorder = Recorder(
        encoder(model), layer, lambda state: read(outputs_of(state)), batch_size
    )
    counter = itertools.count(1)
    total = (1 + len(solvers)) * recorder.num_batches(first)
    total += 3 * recorder.num_batches(second)

    def on_solve() -> None:
        if progress is not None:
            progress(next(counter), total)

    recordings, num_missing = recorder.record(first, solvers, on_solve)
    settings = []
    for solver, recording in zip(solvers, recordings, strict=True):
        config = solver.get_config()
        settings.append(
            [
                Setting(
                    solver.from_config({**config, "max_iter": budget, "tol": tol}),
                    outcome(evaluations, is_changed, promise),
                )
                for tol in _TOLS
                for budget, evaluations, is_changed in recording.read(tol)
            ]
        )
    every = [one for group in settings for one in group]
    kept = [one for one in every if one.outcome.bound <= promise.changed]
    if not kept:
        closest = min(every, key=lambda one: (one.outcome.bound, *_cost(one)))
        found = closest.outcome
        raise ValueError(
            f"No solver keeps the promise that {promise}. The closest is "
            f"{describe(closest.solver)}: {found.num_changed} of {found.num_samples} "
            f"predictions change, a bound of {100 * found.bound:.3g} %, including "
            f"{num_missing} samples that no tight solve brings to a residual of 1e-6. "
            "Promise less, add samples, pass candidates with a larger `max_iter`, or "
            "train the model to converge; in half precision, tune a float32 copy."
        )
    chosen = min(kept, key=_cost)
    compared = (chosen.solver, layer.solver)
    measurements, also_missing = recorder.measure(second, compared, on_solve)
    confirmation, previous = (outcome(*samples, promise) for samples in measurements)
    # Exports and reports name the data of a promise by this hash.
    digest = hashlib.sha256()
    for leaf in map(np.asarray, tree.flatten(data)):
        digest.update(f"{leaf.dtype.str} {leaf.shape}".encode())
        digest.update(np.ascontiguousarray(leaf).tobytes())
    return Tuning(
        solver=chosen.solver,
        promise=promise,
        selection=chosen.outcome,
        confirmation=confirmation,
        previous_solver=layer.solver,
        previous=previous,
        num_without_reference=num_missing + also_missing,
        settings=tuple(one for group in settings for one in _front(group)),
        data_hash=digest.hexdigest(),
        date=datetime.now(UTC).date().isoformat(),
    )


def _check_candidates(
    candidates: Sequence[FixedPointSolver] | None, own: FixedPointSolver
) -> list[FixedPointSolver]:
    if candidates is None:
        shared: dict[str, Any] = {"stop_mode": own.stop_mode, "compact": own.compact}
        found = [
            *(
                FixedPointIteration(_MAX_ITER, damping=d, **shared)
                for d in (1, 0.7, 0.5)
            ),
            Aitken(_MAX_ITER, **shared),
            *(Anderson(_MAX_ITER, history=m, **shared) for m in (2, 5, 10)),
            Broyden(_MAX_ITER, **shared),
        ]
        # A candidate may have all settings of the layer's solver.
        same = {**own.get_config(), "max_iter": _MAX_ITER}
        is_known = own.max_iter <= _MAX_ITER and any(
            type(one) is type(own) and {**one.get_config(), "tol": own.tol} == same
            for one in found
        )
        return found if is_known else [*found, own]
    is_list = isinstance(candidates, Sequence) and len(candidates) > 0
    if not is_list or not all(isinstance(one, FixedPointSolver) for one in candidates):
        raise ValueError(
            "`candidates` must be a non-empty list of solvers, such as "
            f"[deq_keras.solvers.Anderson(50)]. Received: candidates={candidates!r}."
        )
    return list(candidates)


def _argmax(outputs: Nest) -> tf.Tensor:
    leaves = tree.flatten(outputs)
    if len(leaves) != 1 or leaves[0].shape.rank < 2 or leaves[0].shape[-1] == 1:
        raise ValueError(
            "The argmax over the last axis needs one output (batch, ..., classes) with "
            "two classes or more. Pass `predict`, for example "
            "predict=lambda logits: logits > 0. Received: outputs of shape "
            f"{[tuple(leaf.shape) for leaf in leaves]}."
        )
    return tf.argmax(leaves[0], axis=-1)


def _split_data(data: Nest, promise: Promise) -> tuple[Nest, Nest]:
    counts = sorted({len(leaf) if np.ndim(leaf) else 0 for leaf in tree.flatten(data)})
    if len(counts) != 1:
        raise ValueError(
            "`data` must be arrays (samples, ...) with the same number of samples. "
            f"Received: arrays of {counts} samples."
        )
    needed = 2 * promise.num_samples
    if counts[0] < needed:
        raise ValueError(
            f"The promise that {promise} needs at least {needed:,} samples, "
            f"{promise.num_samples:,} in each half. Add samples, or promise less. "
            f"Received: {counts[0]:,} samples."
        )
    half = counts[0] // 2
    data = tree.map_structure(np.asarray, data)
    return (
        tree.map_structure(lambda leaf: leaf[:half], data),
        tree.map_structure(lambda leaf: leaf[half:], data),
    )


def _cost(setting: Setting) -> tuple:
    solver, found = setting
    return found.evaluations, found.num_changed, solver.max_iter, solver.tol


def _front(settings: list[Setting]) -> list[Setting]:
    """Returns settings that are cheaper than all others with as few changes."""
    ordered = sorted(settings, key=lambda one: (one.outcome.num_changed, *_cost(one)))
    front: list[Setting] = []
    for setting in ordered:
        if not front or setting.outcome.evaluations < front[-1].outcome.evaluations:
            front.append(setting)
    return front
