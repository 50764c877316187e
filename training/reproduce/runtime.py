"""Times of training and inference relative to an explicit network, in turns."""

from ..benchmarks.measuring import Effort, compare, in_fresh_process
from . import results
from .memory import BATCH, LENGTH
from .progress import measured

# Fraction of the training steps with a penalty, as in the scripts of 2021.
_PENALIZED = 0.4
_TOLERATED = Effort().tolerated


def run(folder, pairs, scale, effort):
    """Measures the pairs and returns their `Results`.

    Args:
        folder: Folder of the experiment.
        pairs: Tuple of `experiments.Pair`.
        scale: Positive integer. Divides the widths.
        effort: Dict of the fields of a `measuring.Effort`.
    """
    found = measured(
        folder / "measurements",
        {pair.label: pair for pair in pairs},
        lambda pair: in_fresh_process(
            ".reproduce.runtime.ratios",
            {
                "network": pair.network,
                "explicit": pair.explicit,
                "scale": scale,
                "effort": effort,
            },
        ),
        _line,
    )
    rows = [
        _row(pair, result) for pair, result in zip(pairs, found.values(), strict=True)
    ]
    note = (
        "Time of a step over the explicit network's, measured in turns in one "
        f"process: medians with quartiles. 1/{scale} of the published width and heads, "
        f"no dropout and a vocabulary of 65; {BATCH} texts of {LENGTH} tokens. With "
        f"JR, {_PENALIZED:.0%} of the training steps have the penalty. \\*: other "
        "processes used the machine meanwhile."
    )
    return results.Results(rows, note, draw)


def ratios(network, explicit, scale, effort):
    """Returns the ratios of training and inference of two networks.

    The training step with a penalty counts as often as it occurs in training.

    Args:
        network: Dict of arguments of `networks.build`.
        explicit: Dict of the same arguments, for the explicit network.
        scale: Positive integer. Divides the widths.
        effort: Dict of the fields of a `measuring.Effort`.
    """
    from . import networks

    effort = Effort(**effort)
    reference = networks.build(scale=scale, **explicit)
    model = networks.build(scale=scale, **network)

    def ratio(make, numerator):
        steps = (make(one, BATCH, LENGTH) for one in (numerator, reference))
        return _numbers(compare(*steps, effort))

    training = ratio(networks.training_step, model)
    if network["regularizer"] is not None:
        plain = networks.build(scale=scale, **{**network, "regularizer": None})
        without = ratio(networks.training_step, plain)
        training = {
            name: _PENALIZED * training[name] + (1 - _PENALIZED) * without[name]
            for name in training
        }
    return {
        "training": training,
        "inference": ratio(networks.inference_step, model),
    }


def _numbers(ratio):
    others = ratio.numerator.other_processors
    return {
        "median": ratio.median,
        "lower": ratio.lower_quartile,
        "upper": ratio.upper_quartile,
        "seconds": ratio.numerator.median / 1e3,
        "other processors": 0.0 if others is None else others,
    }


def _line(result):
    training, inference = (result[key]["median"] for key in ("training", "inference"))
    return f"training {training:.2f}, inference {inference:.2f}"


def _row(pair, result):
    row = {"network": pair.label}
    for name, published in (("training", pair.training), ("inference", pair.inference)):
        numbers = result[name]
        is_disturbed = numbers["other processors"] > _TOLERATED
        row |= {
            name: numbers["median"],
            f"{name} quartiles": f"{numbers['lower']:.2f} to {numbers['upper']:.2f}"
            + (" \\*" if is_disturbed else ""),
            f"{name} [s]": numbers["seconds"],
            f"{name} published": published,
        }
    return row


def draw(rows):
    """Returns a figure: bars of the ratios of training and of inference."""
    groups = {
        name: [
            {
                "network": row["network"],
                "ratio": row[name],
                "published": row[f"{name} published"],
            }
            for row in rows
        ]
        for name in ("training", "inference")
    }
    return results.bars(groups, "ratio", "published", "time / explicit network's")
