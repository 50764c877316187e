"""Figures of runs."""

import numpy as np
import pytest

from tests.regimes import slow
from training.cli import main
from training.config import reading as configs
from training.evaluation import plots
from training.files import records
from training.runs.work_directory import WorkDirectory

ROWS = [
    {
        "epoch": epoch + 1,
        "phase": "tied" if epoch < 2 else "equilibrium",
        "seconds": 1.0,
        "loss": 1.0 / (epoch + 1),
        "val_loss": 1.5 / (epoch + 1),
        "deq_residual": 0.0 if epoch == 0 else 0.1,
        "val_deq_residual": 0.1,
        "deq_adjoint_residual": 5.0,
        "deq_evaluations": 4.0,
        "val_deq_evaluations": 4.0 + 0.1 * epoch,
        "deq_adjoint_evaluations": 12.0,
        **({} if epoch < 2 else {"deq_penalty": 0.3}),
        "deq_jacobian_norm": 0.4,
        "deq_spectral_radius": 0.9,
    }
    for epoch in range(4)
]
EXPLICIT = [{name: row[name] for name in ("phase", "loss", "val_loss")} for row in ROWS]


@pytest.fixture
def figures(monkeypatch):
    """The figures that functions would save."""
    saved = []
    monkeypatch.setattr(plots, "_save", lambda figure, path: saved.append(figure))
    return saved


@pytest.fixture
def drawn(tmp_path, figures):
    """Returns a function that draws histories and returns the panels by their title."""

    def draw(histories):
        plots.plot_history(tmp_path / "history.png", histories)
        figure = figures[-1]
        figure.draw_without_rendering()
        return {axes.get_title(loc="left"): axes for axes in figure.axes}

    return draw


def _curves(axes):
    """Returns the values of all lines but those that mark phases."""
    return [list(line.get_ydata()) for line in axes.lines if len(line.get_xdata()) > 2]


def test_panels_of_a_history(drawn):
    panels = drawn({"model": ROWS})
    assert list(panels) == [
        "loss (dashed: validation)",
        "residual (dashed: validation)",
        "NFE (dashed: validation)",
        "adjoint residual",
        "adjoint NFE",
        "penalty (dashed: norm of J)",
        "spectral radius",
    ]
    loss, residual, evaluations, *adjoint, jacobian, radius = panels.values()
    assert [_curves(axes) for axes in adjoint] == [[[5.0] * 4], [[12.0] * 4]]
    assert _curves(loss) == [[1, 1 / 2, 1 / 3, 1 / 4], [1.5, 0.75, 0.5, 0.375]]
    assert residual.get_yscale() == "log" and _curves(residual)[1] == [0.1] * 4
    assert _curves(evaluations)[0] == [4.0] * 4
    assert _curves(jacobian)[0][2:] == [0.3, 0.3] and _curves(jacobian)[1] == [0.4] * 4
    assert _curves(radius) == [[0.9] * 4]
    # The second phase starts after the second epoch.
    assert [line.get_xdata()[0] for line in loss.lines[2:]] == [2.5]


def test_explicit_network_has_only_a_loss(drawn):
    assert len(drawn({"untied": EXPLICIT})) == 1
    panels = drawn({"untied": EXPLICIT, "model/seed_1": ROWS, "model/seed_2": [*ROWS]})
    loss = panels["loss (dashed: validation)"]
    assert len(panels) == 7 and len(_curves(loss)) == 6
    labels = [text.get_text() for text in loss.figure.legends[0].get_texts()]
    assert labels == ["untied", "model"]


def test_residuals_of_zero_have_a_linear_axis(drawn):
    solved = {"deq_residual": 0.0, "val_deq_residual": 0.0}
    panels = drawn({"model": [{**row, **solved} for row in ROWS]})
    residual = panels["residual (dashed: validation)"]
    assert residual.get_yscale() == "linear" and _curves(residual)[0] == [0.0] * 4


@pytest.mark.parametrize("suffix", ["svg", slow("png"), slow("pdf")])
def test_formats_of_figures(suffix, tmp_path, small, capsys):
    directory = WorkDirectory.start(tmp_path / "run", configs.resolve(small))
    with directory.in_use():
        records.write_csv(directory.run("model") / records.HISTORY, ROWS)
    path = str(directory.path)
    assert main(["report", path]) == 0
    assert not list(directory.path.rglob("history.[!c]*"))
    assert main(["report", path, "--format", suffix]) == 0
    starts = {"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF"}
    for folder in (directory.path, directory.folder("model")):
        content = (folder / f"history.{suffix}").read_bytes()
        assert content.startswith(starts[suffix])
    assert capsys.readouterr().out.count("4 / 1") == 2


def test_residuals_of_seeds_have_a_geometric_band(tmp_path, figures):
    def diagnosis(median):
        row = {"budget": 1, "q25": median / 3, "q50": median, "q75": 3 * median}
        return {"residual_quantiles": [row, {**row, "budget": 2}]}

    runs = {"a/seed_0": diagnosis(0.01), "a/seed_1": diagnosis(1.0), "b": diagnosis(1)}
    plots.plot_residuals(tmp_path / "residuals.png", runs)
    (axes,) = figures[0].axes
    seeds, single = axes.lines
    np.testing.assert_allclose(seeds.get_ydata(), [0.1, 0.1])
    deviation = 10 ** np.sqrt(2)
    for band, (low, high) in zip(
        axes.collections, [(0.1 / deviation, 0.1 * deviation), (1 / 3, 3)], strict=True
    ):
        heights = band.get_paths()[0].vertices[:, 1]
        np.testing.assert_allclose([heights.min(), heights.max()], [low, high])
    np.testing.assert_allclose(single.get_ydata(), [1, 1])


def test_samples_are_points_of_all_seeds(tmp_path, figures):
    rows = [{"residual": 0.1, "jacobian_norm": 0.5}]
    rows.append({"residual": 0.2, "jacobian_norm": 0.7})
    runs = {"a/seed_0": {"samples": rows}, "a/seed_1": {"samples": rows[:1]}}
    plots.plot_samples(tmp_path / "samples.png", runs)
    (axes,) = figures[0].axes
    (points,) = axes.lines
    np.testing.assert_allclose(points.get_xdata(), [0.5, 0.7, 0.5])
    np.testing.assert_allclose(points.get_ydata(), [0.1, 0.2, 0.1])
