"""Small tasks with the defaults: models, measurements, tables, and a short run."""

import re

import pytest

from tests.training.experiments.small_tasks import TWIN, config, job
from tests.training.runs import small_runs
from training.errors import InputError
from training.evaluation.plots import draw_comparison
from training.evaluation.report import report
from training.experiments.defaults import build as builds
from training.experiments.defaults.tables import numbers, of_tasks
from training.experiments.defaults.tasks import TASKS
from training.files import records
from training.runs.train import build, enter_phase
from training.runs.work_directory import WorkDirectory

FAST = ("parity",)


def test_phase_returns_to_auto():
    phases = [{"epochs": 1, "gradient": "unrolled"}, {"epochs": 1}]
    small = job("regression", phases=phases)
    model, optimizer, spans = build(small)
    gradients = []
    for span in spans:
        enter_phase(small, model, span, optimizer)
        gradients.append(type(model.get_layer("deq").gradient).__name__)
    assert gradients == ["UnrolledGradient", "NeumannGradient"]


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name in FAST else pytest.mark.slow)
        for name in TASKS
    ],
)
def test_every_task_is_measured(name):
    # The layer warns of the layer norm of Keras, in a task, if a penalty differentiates
    # the Jacobian.
    small = job(name, **{"model.regularizer": "residual"})
    model = small.build_model()
    own, long = small.evaluate(model, [12])["budgets"]
    with small_runs.eagerly():
        predictions = model.predict(small.feed.test.inputs, verbose=0)
    expected = TASKS[name].score(predictions, small.feed.test.targets)
    assert (own["budget"], long["budget"]) == (5, 12)
    assert own["score"] == pytest.approx(expected, rel=1e-4)
    assert 1 <= own["evaluations"] <= 5
    assert own["evaluations"] <= long["evaluations"] <= 12
    assert long["residual"] <= own["residual"]


@pytest.mark.slow
def test_memory_grows_with_what_is_kept():
    peaks = {}
    for layers in (2, 12):
        changes = {**TWIN, "model.solver.max_iter": layers}
        small = job("parity", variant="twin", variants={"twin": changes})
        peaks[layers] = builds.training_peak(small.config, small.feed.training)
    if peaks[2] is None:
        pytest.skip("The allocator keeps no statistics.")
    assert peaks[12] > 2 * peaks[2]


def test_updates_are_a_factor_of_the_steps_of_an_epoch():
    jobs = [job("regression", data__updates=u) for u in (1, 1.5, 0.1)]
    steps = [one.feed.steps_per_epoch for one in jobs]
    assert steps == [2, 3, 1]


def test_a_short_epoch_ends_between_executions():
    """An epoch has six steps, and Keras stops only after an execution."""
    for phases, expected in (
        ([{"epochs": 2}], 6),
        ([{"steps": 12}], 6),
        ([{"steps": 10}, {"epochs": 1}, {"steps": 4}], 2),
    ):
        found = job("regression", data__updates=3, phases=phases).steps_per_execution
        assert found == expected


def written(tmp_path, scores, radius=0.9, **changes):
    """Returns the directory of runs with these scores, of dicts of runs to scores."""
    directory = WorkDirectory.start(tmp_path / "run", config(**changes))
    with directory.in_use():
        for name, score in scores.items():
            folder = directory.run(name)
            rows = [
                {
                    "budget": budget,
                    "score": score - lost,
                    "residual": 0.01,
                    "evaluations": 7.0,
                }
                for budget, lost in ((5, 0.0), (12, 2.0))
            ]
            facts = {"own_budget": 5, "updates": 48, "memory": None}
            evaluation = {"parameters": 9, **facts, "budgets": rows}
            records.write_json(folder / records.EVALUATION, evaluation)
            found = 0.0 if radius is None else 0.75
            diagnosis = {
                "residual_quantiles": [{"budget": 1, "q25": 1, "q50": 1, "q75": 1}],
                **dict.fromkeys(("evaluations", "residual", "converged"), 1.0),
                "spectral_radius": {"mean": radius, "q90": radius, "converged": found},
                "samples": [{"residual": 0.1, "jacobian_norm": 0.2}],
            }
            records.write_json(folder / records.DIAGNOSIS, diagnosis)
            history = [{"epoch": 1, "phase": "p", "seconds": 2.0, "loss": 0.5}]
            records.write_csv(folder / records.HISTORY, history)
    return directory


TWO = {"a": {"model.units": 4}, "b": {"data.task": "parity"}}
SCORES = {
    "a.default/seed_0": 91.0,
    "a.default/seed_1": 95.0,
    "a.twin/seed_0": 90.0,
    "a.twin/seed_1": 92.0,
    "b.default/seed_0": 50.0,
    "b.twin/seed_0": 40.0,
}


def test_gap_is_to_the_best_reference_of_the_seed(tmp_path):
    twin = {"model.gradient": "unrolled"}
    names = {"default": {}, "twin": twin, "longer": {"phases.0.epochs": 3}}
    directory = written(
        tmp_path,
        {**SCORES, "a.longer/seed_0": float("nan"), "a.longer/seed_1": 94.0},
        tasks=TWO,
        seeds=[0, 1],
        variants=names,
        references=["twin", "longer"],
    )
    gaps = {name: run["gap"] for name, run in numbers(directory).items()}
    assert gaps["a.default/seed_0"] == 1.0 and gaps["a.default/seed_1"] == 1.0
    assert gaps["a.twin/seed_1"] == -2.0 and gaps["b.default/seed_0"] == 10.0


def test_a_table_has_a_line_for_each_task_and_variant(tmp_path):
    directory = written(tmp_path, SCORES, tasks=TWO, seeds=[0, 1])
    _, new, *_, last = of_tasks(directory).splitlines()[:5]
    cells = re.split(r"  +", new.strip())
    assert cells == [
        *("a", "default", "0/2", "93.00 +- 2.83", "2.00 +- 1.41", "91.00 +- 2.83"),
        *("0.0100 +- 0.0000", "0.900 +- 0.000", "0.75 +- 0.00", "7.0 +- 0.0"),
        *("48 +- 0", "2.0 +- 0.0", "-"),
    ]
    assert last.split()[:3] == ["b", "twin", "0/1"]
    assert "best of twin with the same seed" in of_tasks(directory).replace("\n", " ")
    assert of_tasks(directory) in report(directory)


def test_a_run_without_a_radius_has_not_failed(tmp_path):
    directory = written(tmp_path, {"default": 91.0}, radius=None)
    (run,) = numbers(directory).values()
    assert not run["failed"]
    assert (run["radius"], run["found"], run["gap"]) == (None, 0.0, None)


def test_reference_without_a_variant_raises():
    with pytest.raises(InputError, match="`references.1`.*Received"):
        config(tasks={"a": {"model.units": 4}}, references=["twin", "default2"])


def test_figures_compare_the_variants_of_each_task(tmp_path):
    directory = written(tmp_path, SCORES, tasks=TWO, seeds=[0, 1])
    draw_comparison(directory, "svg")
    names = {path.name for path in directory.path.glob("*.svg")}
    figures = ("history", "score", "residuals", "samples")
    assert names == {f"{name}-{task}.svg" for name in figures for task in "ab"}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The layer .* has no equilibrium")
def test_diverged_run_counts_and_others_continue(tmp_path):
    wild = {"model.solver": "fixed_point_iteration", "optimizer.learning_rate": 1e30}
    changed = config(
        phases=[{"epochs": 2}], variants={"wild": wild, "tame": {}}, references=["tame"]
    )
    directory = small_runs.finished(tmp_path / "run", changed)
    assert [run["failed"] for run in numbers(directory).values()] == [True, False]
    assert "1/1" in of_tasks(directory)
