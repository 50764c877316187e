"""The command `deq-keras reproduce`: results of the papers, at a small size."""

from pathlib import Path
from typing import NamedTuple

from ..errors import InputError
from ..evaluation.summary import align
from ..files import records


class Experiment(NamedTuple):
    """A config, whose `published` has the numbers of a paper, and how it is run.

    2019 is Bai et al. (2019), "Deep Equilibrium Models"; 2021 is Bai et al. (2021),
    "Stabilizing Equilibrium Models by Jacobian Regularization".

    Attributes:
        config: String. A shipped config.
        shows: String. Subject of the comparison.
        source: String. The tables and figures of the papers.
        minutes: Positive integer. Expected time on two cores.
        quick_minutes: Positive integer. The same for `--quick`.
        quick_variants: Tuple of the variants of `--quick`.
        quick_overrides: Tuple of strings `a.b=c` that make `--quick` small.
        overrides: Tuple of strings `a.b=c` that always apply.
        quick_config: String. The config of `--quick`. `None`: the same.
    """

    config: str
    shows: str
    source: str
    minutes: int
    quick_minutes: int
    quick_variants: tuple
    quick_overrides: tuple
    overrides: tuple = ()
    quick_config: str | None = None


EXPERIMENTS = {
    "language": Experiment(
        "deq_transformer/characters_published",
        "Transformer-XL and DEQ-Transformers of several training budgets on "
        "characters, with and without JR, three seeds",
        "2021, table 1 and figures 1c, 3, 7 and 8; 2019, figure 2",
        minutes=90,
        quick_minutes=5,
        quick_variants=("transformer_xl", "tied_12", "deq_15", "jr_13"),
        quick_overrides=(
            "seeds=[0, 1]",
            "data.steps_per_epoch=10",
            "phases.0.epochs=1",
            "phases.1.epochs=1",
            "variants.transformer_xl.phases=[{epochs: 2}]",
            "variants.tied_12.phases=[{epochs: 2}]",
            "evaluation.budgets=[6, 12, 13, 15]",
        ),
    ),
    "vision": Experiment(
        "mdeq/cifar10_published",
        "a small MDEQ on CIFAR-10, at its budget and stopped early, with and without "
        "JR, three seeds",
        "2021, table 2 and figures 1a and 10",
        minutes=60,
        quick_minutes=5,
        quick_variants=("weight_0", "weight_06"),
        quick_overrides=("seeds=[0, 1]", "phases.0.epochs=3"),
        # The embedded digits: CIFAR-10 is not in the package.
        quick_config="mdeq/digits",
    ),
    "networks": Experiment(
        "mdeq/cifar10_networks",
        "explicit and monotone networks on CIFAR-10, trained like the small MDEQ, "
        "three seeds",
        "2021, table 2",
        minutes=85,
        quick_minutes=5,
        quick_variants=("resnet_18", "monotone"),
        quick_overrides=(
            "data={name: digits, batch_size: 64, validation_examples: 200}",
            "seeds=[0, 1]",
            "phases.0.epochs=1",
        ),
    ),
    "penalty": Experiment(
        "mdeq/digits",
        "accuracy at budgets for four weights of JR, and with weight decay, on digits, "
        "three seeds",
        "2021, table 3 and figure 10a",
        minutes=36,
        quick_minutes=5,
        quick_variants=("weight_0", "weight_12", "weight_decay"),
        quick_overrides=("seeds=[0, 1]", "phases.0.epochs=3"),
        overrides=("seeds=[0, 1, 2]",),
    ),
    "copy_memory": Experiment(
        "copy_memory/long",
        "DEQ-Transformer, TCN, LSTM and GRU on copy memory over a delay of 400, one "
        "run",
        "2019, table 1",
        minutes=65,
        quick_minutes=5,
        quick_variants=("deq_transformer", "gru"),
        quick_overrides=(
            "data.delay=20",
            "data.num_train=160",
            "data.num_test=32",
            "phases.0.epochs=1",
            "variants.deq_transformer.phases=[{epochs: 1}]",
        ),
    ),
}


class Measurement(NamedTuple):
    """A table of memory or time of training steps; see `Experiment`."""

    shows: str
    source: str
    minutes: int
    quick_minutes: int


MEASUREMENTS = {
    "memory": Measurement(
        "peak memory of training steps of DEQs, beside explicit networks",
        "2019, tables 2 and 3; 2021, table 5, section 4 and figure 6",
        minutes=30,
        quick_minutes=2,
    ),
    "runtime": Measurement(
        "time of training and inference of DEQs over explicit networks",
        "2019, table 4; 2021, table 1",
        minutes=30,
        quick_minutes=2,
    ),
}


def reproduce(arguments):
    """Lists the experiments, or runs what `arguments.name` names."""
    from ..runs.work_directory import WorkDirectory, is_run

    name, is_quick = arguments.name, arguments.quick
    if name is None:
        return _list(arguments)
    if name in MEASUREMENTS:
        return _measure(arguments)
    config = resolve(name, is_quick, arguments.overrides)
    ending = "-quick" if is_quick else ""
    path = Path(arguments.work_dir or f"runs/reproduce-{name}{ending}")
    # An interrupted command continues.
    enter = WorkDirectory.resume if is_run(path) else WorkDirectory.start
    directory = enter(path, config)
    experiment = EXPERIMENTS[name]
    minutes = experiment.quick_minutes if is_quick else experiment.minutes
    print(f"{name}: {experiment.source}; about {minutes} minutes", flush=True)
    from ..runs import distribution, variants

    devices = distribution.start(config.distribution)
    return variants.run(variants.make_jobs(directory, distribution=devices), directory)


def _measure(arguments):
    """Prints a table, and writes its numbers as JSON."""
    name = arguments.name
    if arguments.overrides:
        raise InputError(
            f"{name} measures networks of the papers and has no config. Leave --set "
            f"out. Received: --set {' '.join(arguments.overrides)}."
        )
    ending = "-quick" if arguments.quick else ""
    path = Path(arguments.work_dir or f"runs/reproduce-{name}{ending}") / f"{name}.json"
    if path.exists():
        raise InputError(
            f"{path} has numbers of an earlier measurement. Choose a new --work-dir."
        )
    from ..costs import measuring, models

    path.parent.mkdir(parents=True, exist_ok=True)
    effort = measuring.QUICK if arguments.quick else measuring.Effort()
    results = measuring.take({name: models.MEASUREMENTS[name]}, effort)
    records.write_json(path, results)
    return 0


def _list(arguments):
    if arguments.quick or arguments.overrides or arguments.work_dir is not None:
        raise InputError(
            "--quick, --set and --work-dir are options of an experiment. Name one of "
            f"{', '.join([*EXPERIMENTS, *MEASUREMENTS])}. Received: name=None."
        )
    rows = [["name", "minutes", "--quick", "of the papers", "shows"]]
    for name, one in {**EXPERIMENTS, **MEASUREMENTS}.items():
        times = [f"{one.minutes}", f"{one.quick_minutes}"]
        rows.append([name, *times, one.source, one.shows])
    print(align(rows, left=len(rows[0])))
    print("\nTimes are for two cores that do nothing else.")


def resolve(name, is_quick, overrides=()):
    """Returns the config of an experiment.

    Raises:
        InputError: If an override is invalid, or replaces a variant that is compared.
    """
    # Imported here: without YAML, the parser of all commands still works.
    from ..config import reading as configs
    from ..config import shipped

    one = EXPERIMENTS[name]
    if not is_quick:
        return configs.load(shipped.find(one.config), [*one.overrides, *overrides])
    path = shipped.find(one.quick_config or one.config)
    config = configs.load(path, [*one.quick_overrides, *overrides])
    added = set(config.variants) - set(configs.load(path).variants)
    if added or not set(one.quick_variants) <= set(config.variants):
        raise InputError(
            f"--quick compares the variants {', '.join(one.quick_variants)}. Change "
            "their values, such as --set variants.NAME=VALUES, and keep their names. "
            f"Received: variants={', '.join(config.variants)}."
        )
    chosen = {key: config.variants[key] for key in one.quick_variants}
    return configs.resolve(configs.to_mapping(config), [("variants", chosen)])
