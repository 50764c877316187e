"""The experiments of `deq-keras reproduce`, with the published numbers.

2019 is Bai et al. (2019), "Deep Equilibrium Models"; 2021 is Bai et al. (2021),
"Stabilizing Equilibrium Models by Jacobian Regularization". Needs no TensorFlow.
"""

from typing import NamedTuple


class Experiment(NamedTuple):
    """What `deq-keras reproduce NAME` runs.

    Attributes:
        shows: String. Subject of the table.
        source: String. The papers' tables and figures.
        minutes: Positive integer. Expected time on two cores.
        quick_minutes: Positive integer. The same for `--quick`.
        run: String `module:function` of this package. The function takes a folder and
            keyword arguments, and returns `results.Results`.
        full: Dict of keyword arguments.
        quick: Dict of keyword arguments that replace some of `full`.
    """

    shows: str
    source: str
    minutes: int
    quick_minutes: int
    run: str
    full: dict
    quick: dict


def _by_weight(*values):
    """Returns published numbers of the weights 0.1, 0.6 and 1.2."""
    return dict(zip(("weight_01", "weight_06", "weight_12"), values, strict=True))


EXPERIMENTS = {
    "language": Experiment(
        "Transformer-XL and DEQ-Transformers of several training budgets on "
        "characters, with and without JR, three seeds",
        "2021, table 1 and figures 1c, 3, 7 and 8; 2019, figure 2",
        minutes=90,
        quick_minutes=5,
        run="trained:run",
        full={
            "config": "papers/language",
            "stopped": [6, 12, 60],
            "published": {
                "published perplexity": {
                    "transformer_xl": 24.1,
                    "deq_30": 24.0,
                    "deq_20": 26.0,
                    "deq_15": "diverged",
                    "deq_30_pre_ln": "diverged",
                    "jr_13": 24.9,
                    "jr_14_pre_ln": 24.5,
                    "jr_13_length_128": 23.8,
                },
                "published at NFE 12": {"deq_30": 29.2},
                "published time": {
                    "transformer_xl": 1.0,
                    "deq_30": 3.1,
                    "deq_20": 2.2,
                    "jr_13": 1.4,
                    "jr_14_pre_ln": 1.5,
                    "jr_13_length_128": 2.2,
                },
            },
        },
        quick={
            "variants": ["transformer_xl", "tied_12", "deq_15", "jr_13"],
            "overrides": [
                "seeds=[0, 1]",
                "data.steps_per_epoch=10",
                "phases.0.epochs=1",
                "phases.1.epochs=1",
                "variants.transformer_xl.phases=[{epochs: 2}]",
                "variants.tied_12.phases=[{epochs: 2}]",
                "evaluation.budgets=[6, 12, 13, 15]",
            ],
        },
    ),
    "vision": Experiment(
        "a small MDEQ on CIFAR-10, at its budget and stopped early, with and without "
        "JR, three seeds",
        "2021, table 2 and figures 1a, 1b and 10",
        minutes=60,
        quick_minutes=5,
        run="trained:run",
        full={
            "config": "papers/vision",
            "stopped": [4, 6],
            "published": {
                "published accuracy [%]": {"mdeq": 93.6, "mdeq_jr": 93.1},
                "published at NFE 6": {"mdeq": 89.1, "mdeq_jr": 93.1},
            },
        },
        # The embedded digits: CIFAR-10 is not in the package.
        quick={
            "config": "mdeq/digits",
            "variants": ["weight_0", "weight_06"],
            "overrides": ["seeds=[0, 1]", "phases.0.epochs=3"],
            "published": {},
        },
    ),
    "networks": Experiment(
        "explicit and monotone networks on CIFAR-10, trained like the small MDEQ, "
        "three seeds",
        "2021, table 2",
        minutes=85,
        quick_minutes=5,
        run="trained:run",
        full={
            "config": "papers/networks",
            "stopped": [],
            "published": {
                "published accuracy [%]": {
                    "resnet_18": 93.0,
                    "densenet_121": 95.0,
                    "monotone": 89.4,
                }
            },
        },
        # The embedded digits: CIFAR-10 is not in the package.
        quick={
            "variants": ["resnet_18", "monotone"],
            "overrides": [
                "data={name: digits, batch_size: 64}",
                "seeds=[0, 1]",
                "phases.0.epochs=1",
            ],
        },
    ),
    "penalty": Experiment(
        "accuracy at budgets for four weights of JR, and with weight decay, on digits, "
        "three seeds",
        "2021, table 3 and figure 10a",
        minutes=36,
        quick_minutes=5,
        run="trained:run",
        full={
            "config": "mdeq/digits",
            "overrides": ["seeds=[0, 1, 2]"],
            "stopped": [1, 2, 3, 4, 5, 6],
            "published": {
                "published at NFE 1": _by_weight(82.4, 85.8, 84.4),
                "published at NFE 6": _by_weight(92.9, 93.1, 92.7),
            },
        },
        quick={
            "variants": ["weight_0", "weight_12", "weight_decay"],
            "overrides": ["seeds=[0, 1]", "phases.0.epochs=3"],
        },
    ),
    "copy_memory": Experiment(
        "DEQ-Transformer, TCN, LSTM and GRU on copy memory over a delay of 400, one "
        "run",
        "2019, table 1",
        minutes=65,
        quick_minutes=5,
        run="trained:run",
        full={
            "config": "copy_memory/published",
            "stopped": [],
            "published": {
                "published loss": {
                    "deq_transformer": 3.5e-6,
                    "tcn": 2.7e-5,
                    "lstm": 0.0501,
                    "gru": 0.0491,
                }
            },
        },
        quick={
            "variants": ["deq_transformer", "gru"],
            "overrides": [
                "data.delay=20",
                "data.num_train=160",
                "data.num_test=32",
                "phases.0.epochs=1",
                "variants.deq_transformer.phases=[{epochs: 1}]",
            ],
        },
    ),
}


def arguments_of(name, is_quick):
    """Returns the keyword arguments of an experiment's function."""
    experiment = EXPERIMENTS[name]
    return {**experiment.full, **experiment.quick} if is_quick else experiment.full
