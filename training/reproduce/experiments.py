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


class Case(NamedTuple):
    """A network of a table of memory.

    Attributes:
        group: String. Cases that are compared with each other; the first is 1.
        label: String. Name of the network, unique in its group.
        network: Dict of arguments of `networks.build`, in published widths.
        published: Float. The published memory in GB, or `None`.
        arguments: Dict of further arguments of `memory.peak`.
    """

    group: str
    label: str
    network: dict
    published: float | None = None
    arguments: dict = {}


class Pair(NamedTuple):
    """A row of a table of run times: an equilibrium over an explicit network.

    Attributes:
        label: String. Name of the equilibrium, unique.
        network: Dict of arguments of `networks.build`, in published widths.
        explicit: Dict of the same arguments of the explicit network.
        training: Float. The published ratio of training steps, or `None`.
        inference: Float. The published ratio of inference, or `None`.
    """

    label: str
    network: dict
    explicit: dict
    training: float | None = None
    inference: float | None = None


def _broyden(forward, backward):
    """Returns the solvers of 2019: Broyden in both directions, at its whole budget."""
    adjoint = {"class_name": "broyden", "max_iter": backward, "tol": 0.0}
    return {
        "solver": {"class_name": "broyden", "max_iter": forward, "tol": 0.0},
        "gradient": {"class_name": "implicit", "solver": adjoint},
        "regularizer": None,
    }


def _anderson(forward, backward, regularizer=None):
    """Returns the solvers of 2021: Anderson forward and Broyden for the adjoint.

    The penalty acts in every step. In training it acts in some, which need as much
    memory and more time than the others.
    """
    solver = {"class_name": "anderson", "max_iter": forward, "tol": 0.0, "history": 6}
    gradient = _broyden(forward, backward)["gradient"]
    return {"solver": solver, "gradient": gradient, "regularizer": regularizer}


def _transformer_xl(width, inner, num_layers, **changes):
    """Returns a Transformer-XL, tied or with recomputed layers by its changes."""
    sizes = {"hidden_dim": width, "num_heads": 10, "intermediate_dim": inner}
    layers = {"memory_length": 150, "num_layers": num_layers}
    return {"family": "transformer_xl", **sizes, **layers, **changes}


def _deq_transformer(width, inner, components, **changes):
    """Returns a DEQ-Transformer with the solvers of `_broyden` or `_anderson`."""
    sizes = {"hidden_dim": width, "num_heads": 10, "intermediate_dim": inner}
    memory = {"family": "deq_transformer", "memory_length": 150}
    return {**memory, **sizes, **components, **changes}


def _adaptive(components, **changes):
    """Returns the DEQ-Transformer of medium size with adaptive embeddings."""
    return _deq_transformer(700, 48000, components, **changes)


def _levels(sizes, num_layers, auxiliary_frequency, **changes):
    """Returns a TrellisNet of explicit levels."""
    levels = {"num_layers": num_layers, "auxiliary_frequency": auxiliary_frequency}
    return {"family": "trellisnet", **sizes, **levels, **changes}


def _deq_trellisnet(sizes, **changes):
    """Returns a DEQ-TrellisNet with the solvers of 2019."""
    return {"family": "deq_trellisnet", **sizes, **_broyden(51, 81), **changes}


def _unrolled(num_layers):
    """Returns the control of the memory: a tied layer, which is unrolled."""
    layers = _transformer_xl(700, 1100, num_layers, weight_tied=True)
    return {**layers, "family": "unrolled_transformer"}


def _mdeq(budget, regularizer=None):
    """Returns a multiscale DEQ with a penalty or `None`."""
    preset = {"family": "mdeq", "preset": "mdeq_large_cifar10"}
    return {**preset, "budget": budget, "regularizer": regularizer}


def _explicit_vision(network):
    return {"family": "explicit_vision", "network": network, "upsampling": 4}


_JR = {"class_name": "jacobian"}
_TRELLIS_PTB = {"hidden_dim": 400, "intermediate_dim": 1000, "memory_length": 1}
_TRELLIS = {"hidden_dim": 512, "intermediate_dim": 1600, "memory_length": 1}
_LEVELS_70 = _levels(_TRELLIS, 70, 25)
_LAYERS_18 = _transformer_xl(700, 1100, 18)
_PLAIN_2019 = _adaptive(_broyden(31, 40))
_PLAIN_30 = _adaptive(_anderson(30, 35))
_PLAIN_20 = _adaptive(_anderson(20, 20))
_POST_LN = _adaptive(_anderson(13, 13, _JR))
_PRE_LN = _adaptive(_anderson(14, 14, _JR), normalize_first=True)
_NEUMANN = {
    "solver": {"class_name": "anderson", "max_iter": 51, "tol": 0.0},
    "gradient": {"class_name": "neumann", "num_terms": 20},
}

_CONTROL = "control, must grow"
_PTB = "TrellisNet, Penn Treebank (2019, table 2)"
_WT103 = "TrellisNet, WikiText-103 (2019, table 3)"
_XL_SMALL = "Transformer, small (2019, table 3)"
_XL_MEDIUM = "Transformer, medium (2019, table 3)"
_XL_ADAPTIVE = "Transformer, medium adaptive (2019, table 3; 2021, table 5)"
_INFERENCE = "inference, medium adaptive (2021, section 4)"
_VISION = "CIFAR-10, batch 32 (2021, figure 6)"

_DEQ_2019 = "DEQ-Transformer, Broyden 31 + 40"
_TRELLIS_2019 = "DEQ-TrellisNet, Broyden 51 + 81"
_TRELLIS_NEUMANN = "DEQ-TrellisNet, Anderson 51 + Neumann 20"

MEMORY = (
    Case(_CONTROL, "unrolled 6 times", _unrolled(6)),
    Case(_CONTROL, "unrolled 12 times", _unrolled(12)),
    Case(_CONTROL, "unrolled 24 times", _unrolled(24)),
    Case(_PTB, "60 levels", _levels(_TRELLIS_PTB, 60, 12), 8.5),
    Case(_PTB, "60 levels, recomputed", _levels(_TRELLIS_PTB, 60, 12, recompute=True)),
    Case(_PTB, _TRELLIS_2019, _deq_trellisnet(_TRELLIS_PTB), 1.2),
    Case(_PTB, _TRELLIS_NEUMANN, _deq_trellisnet(_TRELLIS_PTB, **_NEUMANN)),
    Case(_WT103, "70 levels", _LEVELS_70, 24.7),
    Case(_WT103, "70 levels, recomputed", {**_LEVELS_70, "recompute": True}, 5.2),
    Case(_WT103, _TRELLIS_2019, _deq_trellisnet(_TRELLIS), 3.3),
    Case(_WT103, _TRELLIS_NEUMANN, _deq_trellisnet(_TRELLIS, **_NEUMANN)),
    Case(
        _XL_SMALL,
        "16 tied layers",
        _transformer_xl(500, 3250, 16, weight_tied=True),
        6.8,
    ),
    Case(_XL_SMALL, "4 layers", _transformer_xl(500, 250, 4), 4.8),
    Case(_XL_SMALL, _DEQ_2019, _deq_transformer(500, 2500, _broyden(31, 40)), 1.1),
    Case(_XL_MEDIUM, "16 layers", _transformer_xl(450, 1930, 16), 8.5),
    Case(_XL_MEDIUM, _DEQ_2019, _deq_transformer(480, 42800, _broyden(31, 40)), 2.7),
    Case(_XL_ADAPTIVE, "18 layers", _LAYERS_18, 9.0),
    Case(_XL_ADAPTIVE, "18 tied layers", {**_LAYERS_18, "weight_tied": True}),
    Case(_XL_ADAPTIVE, "18 layers, recomputed", {**_LAYERS_18, "recompute": True}),
    Case(_XL_ADAPTIVE, _DEQ_2019, _PLAIN_2019, 3.7),
    Case(_XL_ADAPTIVE, "DEQ post-LN, Anderson 30 + 35", _PLAIN_30, 3.9),
    Case(_XL_ADAPTIVE, "DEQ post-LN, Anderson 20 + 20", _PLAIN_20, 3.6),
    Case(_XL_ADAPTIVE, "DEQ pre-LN + JR, Anderson 14 + 14", _PRE_LN, 4.8),
    Case(_XL_ADAPTIVE, "DEQ post-LN + JR, Anderson 13 + 13", _POST_LN, 4.8),
    Case(_XL_ADAPTIVE, "DEQ post-LN + JR, length 300", _POST_LN, 6.5, {"length": 300}),
    # The ratio is published, without numbers of GB.
    Case(
        _INFERENCE,
        "DEQ, Broyden 30",
        _adaptive(_broyden(30, 1)),
        1.0,
        {"inference": True},
    ),
    Case(_INFERENCE, "DEQ + JR, Anderson 13", _POST_LN, 0.5, {"inference": True}),
    Case(_VISION, "ResNet-101", _explicit_vision("resnet_101")),
    Case(_VISION, "DenseNet-121", _explicit_vision("densenet_121")),
    Case(_VISION, "MDEQ, Anderson 17", _mdeq(17)),
    Case(_VISION, "MDEQ + JR, Anderson 6", _mdeq(6, _JR)),
)

# In the published sizes, an evaluation of f computes as much as all explicit layers.
_ONE_LAYER = {"intermediate_dim": 1100}

RUNTIME = (
    Pair(_TRELLIS_2019, _deq_trellisnet(_TRELLIS), _LEVELS_70, 2.40, 1.64),
    Pair(_DEQ_2019, _PLAIN_2019, _LAYERS_18, 2.82, 1.76),
    Pair("DEQ post-LN, Anderson 30 + 35", _PLAIN_30, _LAYERS_18, 3.1),
    Pair("DEQ post-LN, Anderson 20 + 20", _PLAIN_20, _LAYERS_18, 2.2),
    Pair("DEQ pre-LN + JR, Anderson 14 + 14", _PRE_LN, _LAYERS_18, 1.5),
    Pair("DEQ post-LN + JR, Anderson 13 + 13", _POST_LN, _LAYERS_18, 1.4),
    Pair(
        "one explicit layer as f, Anderson 30 + 35",
        {**_PLAIN_30, **_ONE_LAYER},
        _LAYERS_18,
    ),
    Pair(
        "one explicit layer as f, JR, Anderson 13 + 13",
        {**_POST_LN, **_ONE_LAYER},
        _LAYERS_18,
    ),
)


def _by_weight(*values):
    """Returns published numbers of the weights 0.1, 0.6 and 1.2."""
    return dict(zip(("weight_01", "weight_06", "weight_12"), values, strict=True))


EXPERIMENTS = {
    "memory": Experiment(
        "peak memory of a training step: equilibria beside explicit networks, tied and "
        "recomputed",
        "2019, tables 2 and 3; 2021, table 5 and figure 6",
        minutes=15,
        quick_minutes=3,
        run="memory:run",
        full={"cases": MEMORY, "scale": 5, "images": 32},
        quick={
            "cases": tuple(
                case for case in MEMORY if case.group in (_CONTROL, _XL_SMALL)
            ),
        },
    ),
    "runtime": Experiment(
        "time of training and inference over the explicit network's; needs a quiet "
        "machine",
        "2019, table 4; 2021, table 1",
        minutes=18,
        quick_minutes=4,
        run="runtime:run",
        full={
            "pairs": RUNTIME,
            "scale": 5,
            "effort": {"seconds": 20.0, "min_rounds": 5, "attempts": 2},
        },
        quick={
            "pairs": RUNTIME[-1:],
            "effort": {"seconds": 0.2, "min_rounds": 2, "attempts": 1},
        },
    ),
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
