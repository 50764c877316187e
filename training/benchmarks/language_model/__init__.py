"""`deq-keras benchmark language_model`: what a DEQ-Transformer costs.

Training steps over their ideal, what injecting once saves, tokens generated one by one
over solving their prefix again, the peak memory of training steps against explicit
layers, and that of evaluating the model of WikiText-103. Ratios are of one run.
"""

from training.benchmarks.language_model.command import main

__all__ = ["main"]
