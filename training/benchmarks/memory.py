"""Peak memory of a training step, each in a fresh process."""

from . import fresh_process, resident_memory


def peak_memory(workload, name, num_evaluations, repeats=5, **build_arguments):
    """Returns the peak growth of memory in a training step, in MiB.

    A child process compiles the step, runs it once, and then measures how far the
    resident memory rises in further steps.

    Args:
        workload: one of `arrays.NAMES`.
        name: a solver's name or `"unrolled"`, as `TrainingStep` takes it.
        num_evaluations: int. The exact budget of the forward and of the adjoint solve.
        repeats: int. Steps that are watched. Defaults to `5`.
        **build_arguments: of `workloads.build`; JSON values.
    """
    request = {
        "workload": workload,
        "name": name,
        "num_evaluations": num_evaluations,
        "repeats": repeats,
        "build_arguments": build_arguments,
    }
    return fresh_process.run(
        "training.benchmarks.memory",
        request,
        environment=resident_memory.ENVIRONMENT,
    )


def _measure(workload, name, num_evaluations, repeats, build_arguments):
    from . import workloads
    from .training_step import TrainingStep

    built = workloads.build(workload, **build_arguments)
    step = TrainingStep(built, name, num_evaluations)
    return resident_memory.peak_growth(step, repeats)


if __name__ == "__main__":
    fresh_process.answer(_measure)
