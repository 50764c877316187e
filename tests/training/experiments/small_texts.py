"""Runs of seconds on a text."""

SMALL = {
    "experiment": "language_model",
    "tensorboard": False,
    "data": {
        "source": "file",
        "batch_size": 4,
        "length": 8,
        "evaluation_batch_size": 2,
        "evaluation_length": 8,
    },
    "model": {
        "hidden_dim": 8,
        "num_heads": 2,
        "intermediate_dim": 16,
        "memory_length": 4,
        "solver": {"class_name": "anderson", "max_iter": 4},
    },
    "optimizer": {"learning_rate": 0.02, "clip_norm": 1.0},
    "phases": [{"epochs": 2}],
    "evaluation": {"budgets": [1, 4], "num_samples": 2, "max_iter": 5},
}
