"""Measures solves and training steps beside torchdeq and libraries of JAX.

Each library has a process of its own, and only one works at a time: in each round all
take turns, in rotating order, with the same f and copied weights, in float32. Times are
medians of the rounds in milliseconds; ratios are medians of the ratios in each round.
Libraries of JAX treat a batch as one system, with one mixing and one stop; torchdeq
mixes for each sample and stops for the batch. The history of Anderson is 4 here, 4 in
jaxopt and 6 in torchdeq.
"""

import contextlib
import functools
import importlib
import importlib.util
import os
import tempfile
import time
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

import deq_keras
from training.costs import measuring
from training.costs.measuring import repeat

from . import solvers

# Modules of the libraries, and the module that calls them.
LIBRARIES = {
    "torchdeq": (("torch", "torchdeq"), "torchdeq_peer"),
    "jaxopt": (("jax", "jaxopt", "optimistix"), "jax_peer"),
    "optimistix": (("jax", "jaxopt", "optimistix"), "jax_peer"),
    "jax": (("jax", "jaxopt", "optimistix"), "jax_peer"),
}
# Take part in plain iteration only.
_PLAIN = ("optimistix", "jax")
ROWS = {
    "dense 32 x 1": ("dense", {"width": 32, "batch": 1}),
    "dense 32 x 64": ("dense", {"width": 32, "batch": 64}),
    "dense 512 x 1": ("dense", {"width": 512, "batch": 1}),
    "dense 512 x 256": ("dense", {"width": 512, "batch": 256}),
    "dense 4096 x 1": ("dense", {"width": 4096, "batch": 1}),
    "dense 4096 x 64": ("dense", {"width": 4096, "batch": 64}),
    "transformer layer": ("transformer_layer", {}),
    "conv block": ("conv_block", {}),
}
_SMALL = ("dense 32 x 1", "dense 32 x 64")
_LARGE = ("dense 4096 x 64", "conv block")
_BUDGET, _TOLERANCE_BUDGET, _TOL = 12, 100, 1e-4
_SHORTEST = 0.03  # Seconds of one library in a round.
_PAUSE = 0.05  # Threads of the last library still spin for a while.
_MEBIBYTE = 2**20

# A quarter above the medians in docs/results/costs.md.
_LIMITS = {
    ("dense 32 x 1", "solve, anderson", "ours over torchdeq"): 0.7,
    ("dense 32 x 64", "solve, fixed_point_iteration", "ours over torchdeq"): 1.8,
    ("dense 32 x 64", "solve, anderson", "ours over torchdeq"): 1.0,
    ("dense 32 x 64", "solve, broyden", "ours over torchdeq"): 0.85,
    ("dense 32 x 64", "step, anderson", "ours over torchdeq"): 0.75,
    ("dense 32 x 64", "solve, anderson", "XLA over jaxopt"): 5.5,
    ("dense 32 x 64", "step, anderson", "XLA over jaxopt"): 5.6,
}


class _Row:
    """A workload in this process, and in one of each library.

    Args:
        name: Key of `ROWS`.
        folder: Folder for the arrays of the workload.
        libraries: Names of `LIBRARIES` that take part.
    """

    def __init__(self, name, folder, libraries):
        workload, sizes = ROWS[name]
        self.workload = solvers.build(workload, sizes)
        self.request = {"name": workload, "path": str(Path(folder) / f"{name}.npz")}
        np.savez(self.request["path"], **self.workload.arrays)
        self.libraries = libraries

    def peers(self, processes, kind, solver, **numbers):
        """Returns calls of the libraries that offer a call, by their names."""
        calls = {}
        for library in self.libraries:
            if library in _PLAIN and solver != "fixed_point_iteration":
                continue
            if library == "optimistix" and not numbers.get("tol"):
                continue
            request = {**self.request, "kind": kind, "solver": solver, **numbers}
            calls[library] = functools.partial(
                processes[library], _answer, library=library, **request
            )
        return calls

    def check(self, processes):
        """Raises an error unless all libraries compute the same f and loss.

        Raises:
            RuntimeError: If a library has another f.
        """
        start = tf.zeros_like(self.workload.injection)
        cell = self.workload.cell
        expected = cell(start, cell.inject(self.workload.injection))
        for library in self.libraries:
            arguments = {**self.request, "library": library, "kind": "evaluate"}
            value = processes[library](_answer, **arguments)
            if not np.allclose(value, expected, rtol=1e-3, atol=1e-4):
                raise RuntimeError(f"f of {library} differs from f of this library.")

    def residuals(self, state):
        """Returns the relative residual of each sample."""
        cell = self.workload.cell
        value = cell(tf.constant(state), cell.inject(self.workload.injection))
        value, state = (np.reshape(one, (len(one), -1)) for one in (value, state))
        return np.linalg.norm(value - state, axis=1) / np.linalg.norm(value, axis=1)


@functools.cache
def _made(library, **request):
    module = importlib.import_module(f"benchmarks.{LIBRARIES[library][1]}")
    return module.make(library=library, **request)


def _answer(library, seconds=None, **request):
    """Returns the result of a library's call in its process, or the mean seconds."""
    call = _made(library, **request)
    return call() if seconds is None else _repeat(call, seconds)


def _first(library, **request):
    """Returns the seconds from f to the first result, in a fresh process."""
    importlib.import_module(f"benchmarks.{LIBRARIES[library][1]}")
    start = time.perf_counter()
    _made(library, **request)()
    return time.perf_counter() - start


def _first_of_ours(row, kind, solver, jit_compile):
    workload, sizes = ROWS[row]
    workload = solvers.build(workload, sizes)
    start = time.perf_counter()
    _ours(workload, kind, solver, jit_compile)()
    return time.perf_counter() - start


def _ours(workload, kind, solver, jit_compile, budget=_BUDGET, tol=0.0):
    """Returns a compiled call of a `DEQ` layer."""
    if kind == "step":
        return solvers.training_step(workload, solver, budget, jit_compile)
    config = {"class_name": solver, "max_iter": budget, "tol": tol}
    deq = solvers.layer(workload.cell, deq_keras.solvers.get(config))
    compiled = tf.function(deq, jit_compile=jit_compile)
    return functools.partial(compiled, workload.injection, training=False)


def _in_turns(ours, peers, effort, processes):
    """Returns times of all calls, and our times over the peers' times.

    Args:
        ours: Dict of calls in this process.
        peers: Dict of calls in other processes, which take `seconds`.
        effort: `measuring.Effort`.
        processes: Dict of `measuring.Worker`.
    """
    calls = {
        **{name: functools.partial(_repeat, call) for name, call in ours.items()},
        **{name: functools.partial(_seconds, call) for name, call in peers.items()},
    }
    for call in calls.values():
        call(0.0)  # Compiles.
    workers = tuple(processes.values())
    shortest = min(_SHORTEST, effort.seconds)
    before, rounds = measuring.processor_seconds(workers), []
    for i in range(effort.min_rounds):
        first = i % len(calls)
        order = [*calls][first:] + [*calls][:first]
        seconds = {}
        for name in order:
            time.sleep(_PAUSE if shortest else 0.0)
            seconds[name] = calls[name](shortest)
        rounds.append([seconds[name] for name in calls])
    times = dict(zip(calls, np.array(rounds).T, strict=True))
    ratios = {
        f"{own} over {peer}": measuring.spread(times[own] / times[peer])
        for own in ours
        for peer in calls
        if peer != own and (peer in peers or own == "XLA")
    }
    medians = {name: 1e3 * float(np.median(one)) for name, one in times.items()}
    others = measuring.other_processors(before, measuring.processor_seconds(workers))
    return {"ms": medians, **ratios, "other processors": others}


def _repeat(call, seconds):
    call()  # Fills the caches.
    return repeat(call, seconds)


def _seconds(call, seconds):
    return call(seconds=seconds)


@contextlib.contextmanager
def _started(libraries):
    with contextlib.ExitStack() as stack:
        yield {name: stack.enter_context(measuring.Worker()) for name in libraries}


def _installed(libraries):
    return [
        name
        for name in libraries
        if all(map(importlib.util.find_spec, LIBRARIES[name][0]))
    ]


def _each(rows, libraries, measure):
    """Returns `measure(row, processes)` for each row, after a check of f."""
    results, libraries = {}, _installed(libraries)
    with tempfile.TemporaryDirectory() as folder, _started(libraries) as processes:
        for name in rows:
            row = _Row(name, folder, libraries)
            row.check(processes)
            results[name] = measure(row, processes)
    return results


def calls(effort, rows=None, libraries=tuple(LIBRARIES)):
    """Returns times of solves and of training steps, by row and solver.

    A solve spends twelve evaluations, a step twelve in each of its solves. "ours" is
    the call of a `DEQ` layer in a function compiled without XLA, "XLA" with it.
    """

    def measure(row, processes):
        results = {}
        for kind in ("solve", "step"):
            for solver in solvers.SOLVERS:
                ours = {
                    name: _ours(row.workload, kind, solver, name == "XLA")
                    for name in ("ours", "XLA")
                }
                peers = row.peers(processes, kind, solver, budget=_BUDGET)
                if kind == "step" and solver == "broyden":
                    peers.pop("jaxopt", None)  # Its gradient is of another equation.
                results[f"{kind}, {solver}"] = _in_turns(ours, peers, effort, processes)
        return results

    return _each(rows or ROWS, libraries, measure)


def tolerance(effort, rows=None, libraries=tuple(LIBRARIES)):
    """Returns times to a residual of 1e-4 at rate .9, and the residuals reached."""

    def measure(row, processes):
        results = {}
        for solver in solvers.SOLVERS:
            ours = {
                name: _ours(
                    row.workload,
                    "solve",
                    solver,
                    name == "XLA",
                    _TOLERANCE_BUDGET,
                    _TOL,
                )
                for name in ("ours", "XLA")
            }
            state = ours["ours"]()
            # The tolerance of jaxopt is absolute and for the batch.
            peers = {}
            for library in row.libraries:
                tol = _TOL * (np.linalg.norm(state) if library == "jaxopt" else 1.0)
                numbers = {"budget": _TOLERANCE_BUDGET, "tol": float(tol)}
                found = row.peers(processes, "solve", solver, **numbers)
                peers.update({k: v for k, v in found.items() if k == library})
            reached = {name: call() for name, call in {**ours, **peers}.items()}
            results[solver] = {
                **_in_turns(ours, peers, effort, processes),
                "largest residual": {
                    name: float(row.residuals(np.array(one)).max())
                    for name, one in reached.items()
                },
            }
        return results

    return _each(rows or _SMALL, libraries, measure)


def eager(effort, rows=None, libraries=("torchdeq",)):
    """Returns times of eager calls and steps.

    Beside them are the compiled call, an eager call of `Dense` in the place of the
    layer, and the call operation by operation.
    """

    def measure(row, processes):
        results, inputs = {}, row.workload.injection
        plain = _model(keras.layers.Dense(inputs.shape[-1]), inputs)
        for solver in solvers.SOLVERS:
            deq = solvers.layer(
                row.workload.cell, solvers.exact_solver(solver, _BUDGET)
            )
            model = _model(deq, inputs)
            for kind in ("solve", "step"):
                call = functools.partial(model, training=False)
                if kind == "step":
                    call = functools.partial(_step, model, row.workload.target)
                ours = {
                    "ours": functools.partial(call, inputs),
                    "compiled": functools.partial(tf.function(call), inputs),
                    "Dense": functools.partial(plain, inputs),
                    "op by op": functools.partial(_op_by_op, call, inputs),
                }
                if kind == "step":
                    ours["Dense"] = functools.partial(
                        _step, plain, row.workload.target, inputs
                    )
                for one in (ours["ours"], ours["Dense"]):
                    for _ in range(8):  # The seventh call of a shape is traced.
                        one()
                peers = row.peers(processes, kind, solver, budget=_BUDGET)
                results[f"{kind}, {solver}"] = _in_turns(ours, peers, effort, processes)
        return results

    return _each(rows or _SMALL, libraries, measure)


def _model(layer, inputs):
    return keras.Sequential([keras.Input(inputs.shape[1:]), layer])


def _op_by_op(call, inputs):
    tf.config.run_functions_eagerly(True)
    try:
        return call(inputs)
    finally:
        tf.config.run_functions_eagerly(False)


def _step(model, target, inputs):
    with tf.GradientTape() as tape:
        state = model(inputs, training=True)
        loss = tf.reduce_mean(tf.square(state - target))
    return tape.gradient(loss, model.trainable_variables)


def fit(effort, width=32, batch=64, num_batches=100):
    """Returns the milliseconds of a step of `fit`, and those over a `Dense` layer's."""
    random = np.random.default_rng(0)
    inputs = random.normal(size=(num_batches * batch, width)).astype("float32")
    targets = random.normal(size=(num_batches * batch, 1)).astype("float32")
    rounds = {}
    for jit_compile in (False, True):
        for name in ("Dense", "default", "implicit"):
            cell = deq_keras.layers.DenseCell(width)
            middle = keras.layers.Dense(width, "tanh")
            if name != "Dense":
                options = {"gradient": name} if name == "implicit" else {}
                middle = deq_keras.layers.DEQ(cell, **options)
            head = keras.layers.Dense(1)
            model = keras.Sequential([keras.Input((width,)), middle, head])
            model.compile("adam", "mse", jit_compile=jit_compile)
            rounds[name, jit_compile] = functools.partial(
                model.fit, inputs, targets, batch_size=batch, verbose=0, shuffle=False
            )
    found = {key: [] for key in rounds}
    for i in range(effort.min_rounds + 1):
        for key, call in rounds.items():
            start = time.perf_counter()
            call()
            if i:  # The first epoch compiles.
                found[key].append((time.perf_counter() - start) / num_batches)
    found = {key: np.array(one) for key, one in found.items()}
    return {
        f"{name}{', XLA' if jit_compile else ''}": {
            "ms": 1e3 * float(np.median(one)),
            "over Dense": measuring.spread(one / found["Dense", jit_compile]),
        }
        for (name, jit_compile), one in found.items()
    }


def first(effort, rows=None, libraries=tuple(LIBRARIES)):
    """Returns seconds of first calls in fresh processes, with the compilation."""
    results, num_processes = {}, max(1, effort.min_rounds // 2)
    with tempfile.TemporaryDirectory() as folder:
        for name in rows or _SMALL:
            row = _Row(name, folder, _installed(libraries))
            for kind in ("solve", "step"):
                found = {}
                for library in row.libraries:
                    if library in _PLAIN:
                        continue
                    request = {"kind": kind, "solver": "anderson", "budget": _BUDGET}
                    found[library] = _median_of_processes(
                        num_processes, _first, library=library, **row.request, **request
                    )
                for own in ("ours", "XLA"):
                    found[own] = _median_of_processes(
                        num_processes,
                        _first_of_ours,
                        row=name,
                        kind=kind,
                        solver="anderson",
                        jit_compile=own == "XLA",
                    )
                results[f"{name}, {kind}"] = found
    return results


def _median_of_processes(count, function, **arguments):
    seconds = [measuring.in_fresh_process(function, **arguments) for _ in range(count)]
    return float(np.median(seconds))


def memory(effort, rows=None, libraries=tuple(LIBRARIES)):
    """Returns the peak growth of resident memory in a training step, in MiB.

    The control allocates 256 MiB more.
    """
    del effort
    if not Path("/proc/self/clear_refs").exists():
        return measuring.NOT_MEASURABLE
    results = {"control": measuring.in_fresh_process(_control_of_memory)}
    with tempfile.TemporaryDirectory() as folder:
        for name in rows or _LARGE:
            row = _Row(name, folder, _installed(libraries))
            request = {"kind": "step", "solver": "anderson"}
            found = {
                library: measuring.in_fresh_process(
                    _memory,
                    library=library,
                    budget=_BUDGET,
                    **row.request,
                    **request,
                )
                for library in row.libraries
                if library not in _PLAIN
            }
            for own in ("ours", "XLA"):
                found[own] = measuring.in_fresh_process(
                    _memory_of_ours, row=name, jit_compile=own == "XLA", **request
                )
            results[name] = found
    return results


def _memory(library, **request):
    return _growth(_made(library, **request))


def _memory_of_ours(row, kind, solver, jit_compile):
    workload, sizes = ROWS[row]
    return _growth(_ours(solvers.build(workload, sizes), kind, solver, jit_compile))


def _control_of_memory():
    return _growth(lambda: np.ones(2**25).sum())


def _growth(call):
    call()
    call()
    Path("/proc/self/clear_refs").write_text("5")  # Sets the peak to what is used now.
    before = _status("VmRSS")
    call()
    return (_status("VmHWM") - before) / _MEBIBYTE


def _status(name):
    for line in Path(f"/proc/{os.getpid()}/status").read_text().splitlines():
        if line.startswith(name):
            return 1024 * int(line.split()[1])
    raise RuntimeError(f"The system does not report {name}.")


def limits(effort, libraries=tuple(LIBRARIES)):
    """Returns the ratios that have a limit, for a weekly run.

    Raises:
        RuntimeError: If a ratio exceeds its limit.
    """
    found = calls(effort, _SMALL, libraries)
    medians = {
        (row, call, name): found[row][call][name]["median"]
        for row, call, name in _LIMITS
        if name in found[row][call]
    }
    slow = {
        key: (median, _LIMITS[key])
        for key, median in medians.items()
        if median > _LIMITS[key]
    }
    if slow:
        raise RuntimeError(f"Slower than the limits: {slow}.")
    return {", ".join(key): median for key, median in medians.items()}


MEASUREMENTS = {
    "calls": calls,
    "tolerance": tolerance,
    "eager": eager,
    "fit": fit,
    "first": first,
    "memory": memory,
    "limits": limits,
}


def _add_arguments(parser):
    parser.add_argument(
        "--rows", nargs="+", choices=tuple(ROWS), help="which rows; default: all"
    )


def main(argv=None):
    return measuring.run(
        "peers", __doc__, MEASUREMENTS, argv, _add_arguments, optional=("limits",)
    )


if __name__ == "__main__":
    main()
