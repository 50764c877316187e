"""Builds, trains and evaluates a reasoner."""

from deq_keras.metrics import ExactMatch
from deq_keras.models import ContinuousBatchingModel

from ...data.reasoning import held_out_examples, read_mazes, read_puzzles
from ...data.reasoning.dataset import (
    example_specs,
    in_batches,
    training_dataset,
    validation_batches,
)
from ...errors import InputError, config_errors
from ...evaluation.budgets import measure_at_budgets
from ...files import records
from ...runs.feed import Feed
from ...runs.job import Job
from .build import SmoothedCrossEntropy, build_reasoner, build_task
from .level_measurement import LevelMeasurement, correlation, exact_match
from .pictures import check_picture, draw_solving, plot_accuracy
from .tables import LEVELS

# Functions that read a user's file as a list of `Examples`.
_READERS = {
    "mazes": read_mazes,
    "sudoku_4x4": lambda path: [read_puzzles(path, 4)],
    "sudoku_6x6": lambda path: [read_puzzles(path, 6)],
}


class ReasoningFeed(Feed):
    """The problems of a `ReasoningTask`, which the task draws."""

    @property
    def steps_per_epoch(self):
        return self.config.data.updates_per_epoch

    def fit_arguments(self, steps):
        config = self.config.data
        training = training_dataset(
            self.data, config.levels, config.batch_size, self.config.seed, steps
        )
        validation = validation_batches(
            self.data, config.validation, config.evaluation_batch_size, config.seed
        )
        return {
            "x": self.distribution.batches(training),
            "validation_data": self.distribution.batches(validation),
            "steps_per_epoch": self.steps_per_epoch,
        }

    def select_samples(self):
        first = self.test_examples(self.config.data.test[0])
        return first.inputs[: self.config.evaluation.num_samples]

    def test_examples(self, level):
        """Returns the `Examples` of a `LevelConfig`."""
        return held_out_examples(
            self.data, level.level, level.examples, self.config.data.seed
        )

    def test_inputs(self, model):
        del model
        return {
            f"level {test.level}": self.test_examples(test).inputs
            for test in self.config.data.test
        }

    def read_problems(self, path):
        if self.data.name not in _READERS:
            raise InputError(
                f"Files are read for the tasks {', '.join(_READERS)}. Received: the "
                f"task {self.data.name}, data={path}."
            )
        return _READERS[self.data.name](path)


class ReasoningJob(Job):
    """One variant of a reasoner. `load_data` returns the `ReasoningTask`."""

    feed_class = ReasoningFeed
    monitor = "val_exact_match"

    @classmethod
    def load_data(cls, config, folder):
        task = build_task(config.task)
        for level in config.levels:
            task.check_level(level)
        for held_out in (*config.validation, *config.test):
            held_out_examples(task, held_out.level, 1, config.seed)
        return task

    def build_model(self):
        if self.config.evaluation.picture is not None:
            check_picture(self.data, self.config.evaluation.picture.level)
        return build_reasoner(self.config.model, self.data, self.config.precision)

    def wrap_model(self, model):
        """See `Job`. With `segments`, returns a `ContinuousBatchingModel`."""
        segments, data = self.config.segments, self.config.data
        if segments is None:
            return model
        if segments.in_progress <= data.batch_size:
            raise InputError(
                "`segments.in_progress` must be larger than a batch, the samples that "
                "every training step admits. Received: in_progress="
                f"{segments.in_progress}, batch_size={data.batch_size}."
            )
        examples = example_specs(self.data, data.levels, data.batch_size)
        with config_errors("segments"):
            return ContinuousBatchingModel(
                model,
                examples,
                segments.in_progress,
                segments.max_segments,
                segments.finished,
                segments.inherited,
            )

    def objective(self):
        return {
            "loss": SmoothedCrossEntropy(self.config.label_smoothing),
            "weighted_metrics": [ExactMatch()],
        }

    def evaluate(self, model, budgets):
        """See `Job`. Returns the rows of the last test level.

        Writes the measurements of all levels, their plot and a picture into the folder.
        """
        measure = LevelMeasurement(model, self.config, budgets)
        levels = []
        for test in self.config.data.test:
            levels.append(measure(test.level, self.feed.test_examples(test)))
            print(_line(levels[-1]), flush=True)
        records.write_json(
            self.folder / LEVELS,
            {"correlation": _correlation(levels), "levels": levels},
        )
        plot_accuracy(self.folder / "accuracy.png", levels)
        picture, task = self.config.evaluation.picture, self.data
        if picture is not None:
            seed = self.config.data.seed
            examples = held_out_examples(task, picture.level, 1, seed)
            path = self.folder / f"{task.name}.gif"
            draw_solving(path, task, model, examples, picture.evaluations)
        return {"budgets": levels[-1]["budgets"]}

    def measure(self, predict, budgets, model=None, data=None):
        size = self.config.data.evaluation_batch_size
        groups = data or [self.feed.test_examples(self.config.data.test[-1])]
        batches = [batch for group in groups for batch in in_batches(group, size)]
        pairs = [(batch.inputs, batch) for batch in batches]

        def score(logits, batch):
            return {"exact_match": exact_match(logits, batch)["exact_match"]}

        return measure_at_budgets(predict, pairs, score, budgets)

    def prepare_export(self, model):
        return model, self.feed.samples[:2]


def _correlation(levels):
    """Returns the correlation over the examples of all levels."""
    evaluations, difficulty = (
        [number for level in levels for number in level[name]]
        for name in ("evaluations", "difficulty")
    )
    return correlation(evaluations, difficulty)


def _line(level):
    best = max(level["budgets"], key=lambda row: row["exact_match"])
    return (
        f"level {level['level']}: {best['exact_match']:.1%} exact at NFE "
        f"{best['budget']}"
    )
