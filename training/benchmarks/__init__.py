"""Benchmarks of the library: `deq-keras benchmark NAME`.

`runner` parses, collects, reports and writes. `measuring` times calls. `costs` compares
solves and training steps on `workloads` with the evaluations of f that they need. Every
other module declares the measurements of its subject in `BENCHMARKS`.
"""

# Benchmark -> module of this package that declares it. Free of TensorFlow.
MODULES = {
    "compaction": "compaction",
    "distribution": "training_runs",
    "gradients": "gradients",
    "half_precision": "half_precision",
    "input_pipeline": "training_runs",
    "language_model": "language_model",
    "mdeq": "mdeq",
    "options": "compaction",
    "serving": "serving",
    "solvers": "solvers",
    "splittings": "compaction",
    "tensorboard": "training_runs",
    "time_to_accuracy": "time_to_accuracy",
    "warm_starts": "serving",
}
