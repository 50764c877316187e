"""Peak memory of training steps, each network in a fresh process."""

from ..benchmarks.measuring import does_grow, in_fresh_process
from ..errors import InputError
from . import results
from .progress import measured

BATCH, LENGTH = 15, 150


def run(folder, cases, scale, images=32):
    """Measures the cases and returns their `Results`.

    Args:
        folder: Folder of the experiment.
        cases: Tuple of `experiments.Case`. The first group is the control.
        scale: Positive integer. Divides the widths of language models.
        images: Positive integer. Batch of image models.

    Raises:
        InputError: If the memory of the control does not grow, because the allocator
            does not report it.
    """
    requests = {f"{case.group}: {case.label}": case for case in cases}
    found = measured(
        folder / "measurements",
        requests,
        lambda case: _measure(case, scale, images),
        lambda result: f"{result['step']:.0f} MiB",
    )
    _check_control(cases, found.values())
    rows = _rows(cases, found.values())
    note = (
        "Peak growth of allocated memory in a compiled step, without weights and "
        "Adam's moments, in a fresh process: the median of three steps. Language "
        f"models have 1/{scale} of the published width and heads, no dropout and a "
        f"vocabulary of 65; {BATCH} texts of {LENGTH} tokens, of which Transformers "
        f"remember {LENGTH}. Published numbers are GB, with weights; for inference "
        "they are relative."
    )
    return results.Results(rows, note, draw)


def _measure(case, scale, images):
    request = {
        "network": case.network,
        "batch": BATCH,
        "length": LENGTH,
        "scale": scale,
        **case.arguments,
    }
    if case.network["family"] in ("mdeq", "explicit_vision"):
        request["batch"] = images
    return in_fresh_process(".reproduce.memory.peak", request)


def peak(network, batch, length, scale, inference=False):
    """Returns the peak growth of a step in MiB, the size of a state and the weights.

    Args:
        network: Dict of arguments of `networks.build`.
        batch: Positive integer.
        length: Positive integer. Tokens.
        scale: Positive integer. Divides the widths of language models.
        inference: Boolean. Whether the step is one of inference. Defaults to `False`.
    """
    from ..evaluation.peak_memory import peak_growth
    from . import networks

    model = networks.build(scale=scale, **network)
    make = networks.inference_step if inference else networks.training_step
    state = 4 * batch * length * network.get("hidden_dim", 0) // scale / 2**20
    return {
        "step": peak_growth(make(model, batch, length)),
        "state": state,
        "weights": networks.num_weights(model),
    }


def _check_control(cases, found):
    control = {
        case.network["num_layers"]: result
        for case, result in zip(cases, found, strict=True)
        if case.group == cases[0].group
    }
    peaks = {layers: result["step"] for layers, result in control.items()}
    if not does_grow(peaks, next(iter(control.values()))["state"]):
        raise InputError(
            "Memory is not measurable here: the peak of an unrolled network must grow "
            "by a state for each of its layers. Use a CPU, or a device whose allocator "
            f"collects statistics. Received: MiB by layers={peaks}."
        )


def _rows(cases, found):
    rows, first = [], {}
    for case, result in zip(cases, found, strict=True):
        ours, published = first.setdefault(case.group, (result["step"], case.published))
        rows.append(
            {
                "group": case.group,
                "network": case.label,
                "weights [M]": result["weights"] / 1e6,
                "step [MiB]": result["step"],
                "relative": result["step"] / ours,
                "published": case.published,
                "published relative": case.published and case.published / published,
            }
        )
    return rows


def draw(rows):
    """Returns a figure: bars of the memory relative to the first of each group."""
    groups = {}
    for row in rows:
        groups.setdefault(row["group"], []).append(row)
    label = "peak memory / first of group"
    return results.bars(groups, "relative", "published relative", label)
