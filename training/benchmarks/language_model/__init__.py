"""`deq-keras benchmark language_model`: what a DEQ-Transformer costs.

Training steps over their ideal, what injecting once saves, tokens generated one by one
over solving their prefix again, the peak memory of training steps against explicit
layers, and that of evaluating the model of WikiText-103. Ratios are of one run.
"""

from ..command import BenchmarkCommand


def _measurements():
    from . import cells, generation, memory

    return {
        "step": cells.step_costs,
        "inject": cells.injection_costs,
        "generation": generation.token_costs,
        "memory": memory.training_peaks,
        "evaluation": memory.evaluation_peak,
    }


main = BenchmarkCommand(
    "language_model",
    "Measures a DEQ-Transformer, on a quiet machine.",
    ("step", "inject", "generation", "memory", "evaluation"),
    _measurements,
)
