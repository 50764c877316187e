"""Training on several devices at once, each with its part of every batch."""

import contextlib

import tensorflow as tf

from ...data.pipeline import BatchShard
from ...errors import InputError, LostWorker
from ..data_wait import Stopwatch
from . import random_states
from .fit_repair import repair
from .normalization import synchronize
from .own_losses import keep_apart
from .preprocessing import Preprocessing
from .summed_gradients import sum_before_use

# What collective operations end with.
_LOST = (
    tf.errors.AbortedError,
    tf.errors.CancelledError,
    tf.errors.DeadlineExceededError,
    tf.errors.UnavailableError,
)


class Replicas:
    """The replicas of a `tf.distribute` strategy, all in step.

    A batch of the config is that of all replicas together, and a step is what one
    device does with it: the mean of the losses, the sum of the gradients before they
    are clipped, the statistics of normalisation over the whole batch. What is drawn is
    drawn by each replica for itself.

    Args:
        strategy: the `tf.distribute.Strategy`.
        worker: the `BatchShard` of every batch that this process makes.

    Attributes:
        strategy: see above.
        worker: see above.
        drops_remainder: see `OneDevice`.
        is_chief: see `OneDevice`.
        stopwatch: see `OneDevice`.
    """

    drops_remainder = True

    def __init__(self, strategy, worker):
        self.strategy = strategy
        self.worker = worker
        self.is_chief = worker.index == 0
        self.stopwatch = Stopwatch()
        self._preprocessed = Preprocessing()

    @property
    def num_replicas(self):
        """The replicas of all workers."""
        return self.strategy.num_replicas_in_sync

    @property
    def _replicas_here(self):
        return self.num_replicas // self.worker.count

    def check(self, job):
        """Raises `InputError` if a `Job` cannot be trained so."""
        self._preprocessed = Preprocessing()  # Of a model before.
        if job.batch_sizes is None:
            raise InputError(
                f"`distribution.strategy` must be single for {job.config.experiment}: "
                f"its job does not tell `batch_sizes`. Received: "
                f"strategy={job.config.distribution.strategy}."
            )
        if job.config.jit_compile is True:
            raise InputError(
                "`jit_compile` must be false or auto where several devices train: XLA "
                "compiles for one. Received: jit_compile=True, "
                f"strategy={job.config.distribution.strategy}."
            )
        for name, size in job.batch_sizes.items():
            if size % self.num_replicas:
                raise InputError(
                    f"`{name}` must be a multiple of {self.num_replicas}, the number "
                    f"of replicas. Received: {name.rpartition('.')[2]}={size}."
                )
        if not job.steps_per_epoch:
            raise InputError(
                "`data.batch_size` must be at most the number of training examples, "
                "since replicas leave out smaller batches. Received: "
                f"batch_size={job.batch_sizes['data.batch_size']}."
            )

    def scope(self):
        """Returns the context in which models, optimizers and their state are made."""
        return self.strategy.scope()

    def begin(self, model, optimizer):
        """Makes a new model and its optimizer train as one device would."""
        repair(model)
        self._preprocessed.take_over_from(model)
        synchronize(model)
        keep_apart(model)
        random_states.begin_at(model, self.worker.index * self._replicas_here)
        sum_before_use(optimizer)

    def continue_from(self, model):
        """Completes the state of a model that was new, or restored."""
        random_states.spread(self.strategy, model)

    def batches(self, make):
        """Returns what `fit` reads, see `OneDevice`: every replica's rows, for ever.

        Endless, since the end of a finite dataset costs Keras a second an epoch.
        """

        def of_worker(context):
            del context
            batches = self._preprocessed(make(self.worker)).repeat()
            return self.stopwatch.over(batches).flat_map(self._of_replicas)

        # On the host, as Keras feeds a single device: what waits there is measured.
        options = tf.distribute.InputOptions(experimental_fetch_to_device=False)
        return self.strategy.distribute_datasets_from_function(of_worker, options)

    def validation_steps(self, num_examples, batch_size):
        """Returns the argument of `fit`.

        Raises:
            InputError: if a replica has no row of the last batch, which not all of
                TensorFlow's operations bear.
        """
        rest = num_examples % batch_size
        if 0 < rest < self.num_replicas:
            raise InputError(
                f"`data.evaluation_batch_size` must leave at least {self.num_replicas} "
                f"of the {num_examples} validation examples, one for each replica, to "
                f"the last batch, or none. Received: evaluation_batch_size={batch_size}"
                f", which leaves {rest}."
            )
        return -(-num_examples // batch_size)

    @contextlib.contextmanager
    def in_step(self):
        """Ends what is done together with other workers, when one of them is lost."""
        try:
            yield
        except _LOST as error:
            if self.worker.count == 1:
                raise
            raise LostWorker(
                "Another worker has ended or cannot be reached, so this one ends too. "
                "When all have ended, continue with --resume in all of them."
            ) from error

    def least(self, number):
        """Returns the least of the numbers that all workers give, an int."""
        numbers = self.strategy.experimental_distribute_values_from_function(
            lambda context: tf.constant([int(number)])
        )
        return int(tf.reduce_min(self.strategy.gather(numbers, axis=0)))

    def _of_replicas(self, *batch):
        """Returns the dataset of the replicas' parts of a worker's batch."""
        count = self._replicas_here
        parts = [BatchShard(index, count).rows(*batch) for index in range(count)]
        datasets = [tf.data.Dataset.from_tensors(part) for part in parts]
        whole = datasets[0]
        for dataset in datasets[1:]:
            whole = whole.concatenate(dataset)
        return whole
