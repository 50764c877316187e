"""Trainings in several precisions side by side, on the same batches."""

import time

import numpy as np

import deq_keras

from . import families

REGIMES = {
    "float32": ("float32", False),
    "mixed_bfloat16": ("mixed_bfloat16", False),
    "mixed_float16": ("mixed_float16", False),
    "float32, XLA": ("float32", True),
    "mixed_bfloat16, XLA": ("mixed_bfloat16", True),
}

# Steps in which functions are compiled, and caches are filled.
_WARM_UP = 2


def compare(effort, name, steps=30, regimes=tuple(REGIMES)):
    """Trains a family in several regimes; the models take each batch in turns.

    Args:
        effort: a `timing.Effort`, whose `min_rounds` bounds `steps` where it is quick.
        name: of the family.
        steps: int. Training steps of each.
        regimes: names of `REGIMES`, the one first to which others are compared.

    Returns:
        A dict of a dict for each regime: `step_ms`, the median of a training step;
        `speedup`, of the first regime's step over its own, and its `quartiles`;
        `loss`, the mean of the last third of the steps; `loss_difference`, the mean
        distance from the first regime's loss in them over that; `skipped`, the steps
        that loss scaling left out; `evaluations`, the mean NFE of the last step;
        `parts_ms`, those of the layer's step, of `deq_keras.diagnostics.StepTimer`.
    """
    steps = min(steps, 2 * effort.min_rounds) if effort.seconds < 1 else steps
    models = [families.build(name, *REGIMES[regime], steps) for regime in regimes]
    losses, seconds, evaluations = _trained(models, steps)
    last = slice(2 * steps // 3, None)
    results = {}
    for index, (regime, family) in enumerate(zip(regimes, models, strict=True)):
        ratios = seconds[_WARM_UP:, 0] / seconds[_WARM_UP:, index]
        reference, loss = losses[last, 0].mean(), losses[last, index]
        timer = deq_keras.diagnostics.StepTimer(family.layer, REGIMES[regime][1])
        timer.measure(family.inputs)  # Compiles.
        parts = timer.measure(family.inputs)._asdict()
        results[regime] = {
            "step_ms": float(1e3 * np.median(seconds[_WARM_UP:, index])),
            "speedup": float(np.median(ratios)),
            "quartiles": np.quantile(ratios, [0.25, 0.75]).tolist(),
            "loss": float(loss.mean()),
            "loss_difference": float(
                np.abs(loss - losses[last, 0]).mean() / abs(reference)
            ),
            "skipped": steps - int(family.model.optimizer.iterations),
            "evaluations": evaluations[index],
            "parts_ms": {part: 1e3 * value for part, value in parts.items()},
        }
    return results


def _trained(models, steps):
    """Returns losses and seconds, arrays `(steps, models)`, and the last NFE."""
    losses, seconds = np.zeros((2, steps, len(models)))
    evaluations = [None] * len(models)
    for step in range(steps):
        for index, family in enumerate(models):
            family.model.reset_metrics()
            start = time.perf_counter()
            logs = family.model.train_on_batch(*family.batches[step], return_dict=True)
            losses[step, index] = logs["loss"]  # Waits for the step.
            seconds[step, index] = time.perf_counter() - start
            evaluations[index] = float(logs[f"{family.layer.name}_evaluations"])
    return losses, seconds, evaluations
