"""The experiment `imaging`, and the photographs of the package."""

import copy

import numpy as np
import pytest
from PIL import Image

from deq_keras import layers
from tests.training.runs import small_runs
from training.config import reading as configs
from training.data.images import photographs
from training.errors import InputError
from training.experiments import imaging
from training.runs.train import build, enter_phase

TINY = {
    "experiment": "imaging",
    "tensorboard": False,
    "data": {"operator": "blur", "width": 0.5, "size": 16, "num_train": 8},
    "model": {
        "gradient": {"class_name": "phantom", "num_steps": 1},
        "filters": 4,
        "num_layers": 2,
        "solver": {"class_name": "fixed_point_iteration", "max_iter": 2},
    },
    "phases": [{"epochs": 1}],
    "evaluation": {"budgets": [1, 2], "num_samples": 2, "max_iter": 2},
}
OPERATORS = ["blur", "inpainting", "downsampling", "radon"]
RANDOM = np.random.default_rng(0)


def make_job(*changes):
    config = configs.resolve(copy.deepcopy(TINY), changes)
    return imaging.ImagingJob(configs.variant(config, "model"))


def total_variation(images):
    down = np.diff(images, axis=1, append=images[:, -1:])
    right = np.diff(images, axis=2, append=images[:, :, -1:])
    return np.sqrt(down**2 + right**2).sum()


def test_photographs():
    train, test = photographs.load()
    assert sorted(test) == ["camera", "chelsea"] and len(train) == 5
    text = photographs._FILE.with_suffix(".md").read_text()
    for name, image in {**train, **test}.items():
        rows = [row for row in text.splitlines() if row.startswith(f"| `{name}`")]
        shape = f"{image.shape[0]} x {image.shape[1]}"
        split = "test" if name in test else "train"
        assert len(rows) == 1 and f"| {shape} | {split} |" in rows[0]
        assert image.dtype == "uint8" and image.std() > 5


def test_crops():
    image = np.arange(9 * 7, dtype="uint8").reshape(9, 7)
    tiles = photographs.crop_all({"one": image}, 3)
    assert tiles.shape == (6, 3, 3, 1)
    np.testing.assert_array_equal(tiles[3, :, :, 0], image[3:6, 3:6])
    crops = photographs.crop_at_random({"one": image}, 3, 40, np.random.default_rng(0))
    steps = {(int(c[0, 1, 0]) - int(c[0, 0, 0])) for c in crops}
    assert steps == {-7, -1, 1, 7}  # Mirrored and transposed.


@pytest.mark.parametrize("name", OPERATORS)
def test_measurements_have_the_noise_of_the_config(name):
    data = make_job(("data.operator", name), ("data.noise", 0.1)).data
    (_, images), (measured, tested), (noisy, same) = data(0)
    assert images.shape == (8, 16, 16, 1) and images.max() <= 1
    np.testing.assert_array_equal(tested, same)
    config = make_job(("data.operator", name)).config.data
    operator = imaging.build_operator(config)
    exact = operator(tested).numpy()
    known = operator.mask.astype(bool) if name == "inpainting" else ...
    for received, noise in ((measured, 0.1), (noisy, 0.2)):
        errors = (received - exact)[:, known]
        assert errors.std() == pytest.approx(noise, rel=0.05)
    if name == "inpainting":
        assert not measured[:, ~known].any()
    again, other = data(0)[0][0], data(1)[0][0]
    np.testing.assert_array_equal(again, data(0)[0][0])
    assert np.any(again != other)


def test_total_variation_denoiser_minimizes_its_objective():
    denoiser = imaging.TotalVariationDenoiser(num_steps=100)
    images = RANDOM.uniform(size=(1, 6, 5, 1)).astype("float32")
    denoiser.build(images.shape)
    denoiser.log_weight.assign(np.log(0.1))
    found = denoiser(images).numpy()

    def objective(x):
        return np.sum((x - images) ** 2) / 2 + 0.1 * total_variation(x)

    best = objective(found)
    assert best < 0.8 * objective(images)
    for _ in range(20):
        other = found + 0.02 * RANDOM.normal(size=found.shape)
        assert objective(other) > best
    flat = np.full((1, 6, 5, 1), 0.3, "float32")
    np.testing.assert_allclose(denoiser(flat), flat, atol=1e-6)


@pytest.mark.parametrize("self_supervised", [False, True])
def test_takes_a_step_and_measures(self_supervised, few_crops):
    job = make_job(("model.self_supervised", self_supervised))
    measured, images = job.feed.test
    with small_runs.eagerly():
        model, optimizer, (span,) = build(job)
        trainer = job.wrap_model(model)
        enter_phase(job, model, span, optimizer, trainer)
        batch = next(iter(job.feed.fit_arguments(range(1))["x"]))
        # The last convolution starts at zero, so the first step changes no other.
        trainer.train_on_batch(*batch)
        small_runs.take_step(trainer, *batch)
        predicted = np.clip(model.predict(measured, verbose=0), 0, 1)
    result = job.evaluate(model, [1, 2])
    assert set(result) == {"budgets", "doubled_noise"}
    one, two = result["budgets"]
    errors = np.mean((predicted - images) ** 2, axis=(1, 2, 3))
    assert two["psnr"] == pytest.approx(np.mean(-10 * np.log10(errors)), abs=1e-3)
    assert 0 < one["ssim"] < 1
    assert result["doubled_noise"][1]["psnr"] < two["psnr"]


def test_untied_cells_are_one_evaluation_each(few_crops, no_graphs):
    job = make_job(("model.num_untied", 2))
    model = job.build_model()
    deqs = [one for one in model._flatten_layers() if isinstance(one, layers.DEQ)]
    assert len(deqs) == 2
    assert len({id(w) for one in deqs for w in one.weights}) == len(model.weights)
    result = job.evaluate(model, [1, 4])
    assert [row["budget"] for row in result["budgets"]] == [2]
    assert [row["budget"] for row in result["doubled_noise"]] == [2]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model.cell": "half_quadratic", "data.operator": "radon"}, "model.*inverse"),
        ({"data.operator": "downsampling", "data.factor": 3}, "data.*factor"),
        ({"data.operator": "inpainting", "data.kept": 1e-9}, "data.*mask"),
        ({"data.size": 500}, "at least 500 x 500"),
        ({"data.noise_range": [0.2, 0.1]}, "data.noise_range.*Received"),
        (
            {"data.noise_range": [0.1, 0.2], "model.denoiser": "total_variation"},
            "model.*channels.*Received",
        ),
        ({"data.train_folder": "nowhere"}, "nowhere"),
        ({"model.self_supervised": True, "model.num_untied": 2}, "num_untied=2"),
    ],
)
def test_configs_that_do_not_fit_are_refused(changes, words, few_crops):
    with pytest.raises(InputError, match=f"(?s){words}"):
        job = make_job(*changes.items())
        job.data(0)
        job.build_model()


def test_images_of_a_folder(tmp_path):
    pixels = RANDOM.integers(0, 256, (20, 30), "uint8")
    (tmp_path / "inner").mkdir()
    Image.fromarray(pixels).save(tmp_path / "inner" / "one.png")
    (tmp_path / "notes.txt").write_text("no image")
    folder = str(tmp_path)
    (name,) = photographs.from_folder(folder)
    assert name == "inner/one.png"
    folders = [("data.train_folder", folder), ("data.test_folder", folder)]
    job = make_job(*folders)
    tile = job.feed.test[1][0, ..., 0]
    np.testing.assert_allclose(tile, pixels[:16, :16] / 255, atol=1e-7)
    assert layers.Blur is type(imaging.build_operator(job.config.data))
    (tmp_path / "broken.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    with pytest.raises(InputError, match="broken.png"):
        photographs.from_folder(folder)
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="must contain images"):
        photographs.from_folder(tmp_path / "empty")


@pytest.mark.slow
def test_a_run_compares_its_variants(tmp_path):
    mapping = copy.deepcopy(TINY)
    mapping["variants"] = {
        "equilibrium": {},
        "unrolled_2": {"model.gradient": "unrolled"},
        "untied_2": {"model.num_untied": 2},
        "total_variation": {"model.denoiser": "total_variation"},
        "tikhonov": {"model.denoiser": "zero", "model.cell": "half_quadratic"},
    }
    directory = small_runs.finished(tmp_path / "run", configs.resolve(mapping))
    text = (directory.path / "report.txt").read_text()
    for table in ("test PSNR [dB]", "test SSIM", "with twice the noise"):
        assert table in text
    assert text.count("tikhonov") >= 5


def test_restorers_read_noise_levels(tmp_path):
    job = make_job(("data.noise_range", [0.1, 0.2]))
    inputs, images = job.feed.training
    levels = inputs["noise_level"]
    assert levels.shape == (8, 1) and np.ptp(levels) > 0
    assert np.all((levels >= 0.1) & (levels <= 0.2))
    operator = imaging.build_operator(job.config.data)
    errors = inputs["measurements"] - operator(images).numpy()
    np.testing.assert_allclose(errors.std(axis=(1, 2, 3)), levels[:, 0], rtol=0.2)
    for (tested, _), noise in zip(job.data(0)[1:], (0.02, 0.04), strict=True):
        assert np.all(tested["noise_level"] == np.float32(noise))
    model, optimizer, (span,) = build(job)
    enter_phase(job, model, span, optimizer, model)
    batch = next(iter(job.feed.fit_arguments(range(1))["x"]))
    assert set(batch[0]) == {"measurements", "noise_level"}
    assert np.isfinite(model.train_on_batch(*batch)).all()
    job.feed.folder = tmp_path
    job.feed.save()
    stored = imaging.ImagingJob(job.config, folder=tmp_path).feed.samples
    for name, array in job.feed.samples.items():
        np.testing.assert_array_equal(stored[name], array)
