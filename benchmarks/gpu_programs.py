"""Counts kernels, passes over memory and waits of XLA's programs for a GPU.

This needs no GPU. JAX brings XLA's compiler for GPUs (`pip install 'jax[cuda12]'`),
which compiles for a GPU that is only described, here an H100 with 80 GB. TensorFlow
contains another version of XLA. For each evaluation in the loop of a solver, it counts:

- `kernels`: Kernels and copies, which the GPU starts one after the other.
- `megabytes`: Memory that they read and write. A kernel reads each operand once.
- `waits`: Decisions for which the host may wait: the loop's own, and branches.

`kernels` and `megabytes` are of an evaluation without its branches and inner loops;
`branches` are the kernels and megabytes of each branch, and of one iteration of each
inner loop, such as four updates of Broyden's method.
"""

import functools
import importlib.util
import re
from typing import NamedTuple

import tensorflow as tf

import deq_keras
from training.costs import measuring, models
from training.errors import InputError

from . import solvers

_BYTES = {"pred": 1, "s8": 1, "u8": 1, "bf16": 2, "f16": 2, "f32": 4, "s32": 4}
_BYTES |= {"u32": 4, "f64": 8, "s64": 8, "u64": 8}
# Instructions that start no kernel.
_FREE = set("parameter tuple get-tuple-element bitcast constant after-all".split())
_CALLS = {"while", "conditional", "call"}
_SLICES = {"dynamic-slice", "slice", "gather"}
_SOLVE_BUDGET, _BATCH, _FEATURES = 12, 16384, 1024
_MDEQ_BATCH = 128
_MEMORY_BUDGETS = (6, 12, 30)


class Instruction(NamedTuple):
    """A line of a program."""

    name: str
    shape: str
    kind: str
    operands: tuple
    rest: str
    is_root: bool


class Cost(NamedTuple):
    """What a computation starts and moves, without the computations that it calls."""

    kernels: int
    megabytes: float


def parse(text):
    """Returns the computations of a program: dicts from names to `Instruction`s."""
    computations, current = {}, None
    for line in text.splitlines():
        if header := re.match(r"(?:ENTRY )?%(\S+) \(.*\{$", line):
            current = computations.setdefault(header[1], {})
        elif found := re.match(
            r"\s+(ROOT )?%(\S+) = (\(.*?\)|\S+) ([\w-]+)\((.*?)\)(.*)$", line
        ):
            root, name, shape, kind, operands, rest = found.groups()
            operands = tuple(re.findall(r"%([\w.\-]+)", operands))
            current[name] = Instruction(name, shape, kind, operands, rest, bool(root))
    return computations


def size(shape):
    """Returns the bytes of a shape such as `f32[2,3]{1,0}`, or of a tuple of them."""
    total = 0
    for dtype, dimensions in re.findall(r"(\w+)\[([\d,]*)\]", shape):
        count = _BYTES.get(dtype, 0)
        for dimension in filter(None, dimensions.split(",")):
            count *= int(dimension)
        total += count
    return total


def cost(computations, name):
    """Returns the `Cost` of a computation."""
    body = computations[name]
    launched = [one for one in body.values() if one.kind not in _FREE | _CALLS]
    moved = 0
    for one in launched:
        if one.kind == "fusion":
            (called,) = re.findall(r"calls=%([\w.\-]+)", one.rest)
            moved += _moved_by_fusion(computations[called])
        else:
            sizes = [size(body[each].shape) for each in {*one.operands} if each in body]
            moved += sum(sizes) + size(one.shape)
    return Cost(len(launched), moved / 1e6)


def _moved_by_fusion(body):
    """Returns the bytes that a fused kernel reads and writes.

    It reads only what it slices of an operand, and writes only what it updates of it.
    """

    def source(name):
        while body[name].kind == "bitcast":
            name = body[name].operands[0]
        return body[name]

    readers = {name: [] for name in body}
    for one in body.values():
        for operand in {*one.operands}:
            readers[operand].append(one)
    (root,) = [one for one in body.values() if one.is_root]
    outputs = root.operands if root.kind == "tuple" else (root.name,)
    moved, updated = 0, set()
    for output in map(source, outputs):
        if output.kind == "dynamic-update-slice":
            updated.add(source(output.operands[0]).name)
            output = body[output.operands[1]]
        moved += size(output.shape)
    for one in body.values():
        if one.kind != "parameter":
            continue
        uses = readers[one.name]
        while any(use.kind == "bitcast" for use in uses):
            uses = [
                deeper
                for use in uses
                for deeper in (readers[use.name] if use.kind == "bitcast" else [use])
            ]
        slices = [
            use
            for use in uses
            if use.kind in _SLICES and source(use.operands[0]) == one
        ]
        if one.name in updated or len(slices) == len(uses):
            moved += sum(size(use.shape) for use in slices)
        else:
            moved += size(one.shape)
    return moved


def loops(text):
    """Returns the outermost loops of a program in their order, as dicts."""
    computations = parse(text)
    bodies = {
        name: [each for one in body.values() for each in _loop_bodies(one)]
        for name, body in computations.items()
    }
    found = [name for names in bodies.values() for name in names]
    inner = {each for name in found for each in bodies[name]}
    return [_loop(computations, name) for name in found if name not in inner]


def _loop_bodies(instruction):
    is_loop = instruction.kind == "while"
    return re.findall(r"body=%([\w.\-]+)", instruction.rest) if is_loop else []


def _loop(computations, name):
    decisions = [
        one
        for one in computations[name].values()
        if one.kind in ("conditional", "while")
    ]
    branches = [
        cost(computations, branch)._asdict()
        for one in decisions
        for branch in _loop_bodies(one)
        or re.findall(
            r"%([\w.\-]+)", one.rest.partition("computation")[2].partition("}")[0]
        )
    ]
    return {
        **cost(computations, name)._asdict(),
        "waits": 1 + len(decisions),
        "branches": {str(i): branch for i, branch in enumerate(branches)},
    }


def _program(compiled, *arguments):
    """Returns XLA's program of a `tf.function`, as text, and the bytes it allocates."""
    if importlib.util.find_spec("jax") is None:
        raise InputError("JAX is not installed: pip install 'jax[cuda12]'")
    intermediate = compiled.experimental_get_compiler_ir(*arguments)
    # TensorFlow has the same lowerings for CPUs and GPUs, but lowers variables only for
    # a device that is there.
    (cpu, *_) = tf.config.list_logical_devices("CPU")
    module = intermediate(stage="stablehlo_serialized", device_name=cpu.name)
    return measuring.in_fresh_process(_compile, module=module)


def _compile(module):
    """Returns what the compiler does: only a worker imports JAX."""
    from . import xla_gpu_peer

    return xla_gpu_peer.compiled(module)


def solves(effort):
    """Returns the loops of solves of f(z) = z W, with `passes` over their state.

    f itself takes one kernel, and reads and writes the state once.
    """
    del effort
    kernel = tf.eye(_FEATURES)
    state = tf.zeros((_BATCH, _FEATURES))
    results = {}
    for name in solvers.SOLVERS:
        solver = solvers.exact_solver(name, _SOLVE_BUDGET)

        def solve(solver, state, kernel):
            request = deq_keras.solvers.SolveRequest(state)
            return solver.solve(lambda z: z @ kernel, request)

        compiled = tf.function(functools.partial(solve, solver), jit_compile=True)
        (loop,) = loops(_program(compiled, state, kernel)[0])
        passes = loop["megabytes"] / (size(f"f32[{_BATCH},{_FEATURES}]") / 1e6)
        results[name] = {**loop, "passes": passes}
    return results


def mdeq_tiny(effort):
    """Returns the loops of a training step of MDEQ-TINY: forward, adjoint."""
    del effort
    model = deq_keras.models.MDEQImageClassifier.from_preset(
        "mdeq_tiny_cifar10", load_weights=False
    )
    layer = model.backbone.deq
    layer.solver = deq_keras.solvers.Broyden(18)
    layer.gradient = deq_keras.gradients.ImplicitGradient(deq_keras.solvers.Broyden(20))
    layer.regularizer = None

    @functools.partial(tf.function, jit_compile=True)
    def step(images):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.square(model(images, training=True)))
        return tape.gradient(loss, model.trainable_variables)

    text, _ = _program(step, tf.zeros((_MDEQ_BATCH, 32, 32, 3)))
    return dict(zip(("forward", "adjoint"), loops(text), strict=True))


def memory(effort):
    """Returns the memory of training steps of the conv block in MiB; see `solvers`."""
    del effort
    workload = solvers.build("conv_block", "large")
    return {
        solver: {
            budget: _program(solvers.training_step(workload, solver, budget, True))[1]
            / 2**20
            for budget in _MEMORY_BUDGETS
        }
        for solver in (solvers.UNROLLED, *solvers.SOLVERS)
    }


def networks(effort):
    """Returns the memory of training steps of the networks of figure 6 in MiB."""
    del effort
    results = {}
    for label, network in models.MEMORY[models.FIGURE_6].items():
        model = models.build(**network)
        step, inputs = models.step_and_inputs(model, jit_compile=True)
        results[label] = _program(step, inputs)[1] / 2**20
    return results


MEASUREMENTS = {
    "solves": solves,
    "mdeq_tiny": mdeq_tiny,
    "memory": memory,
    "networks": networks,
}


def main(argv=None):
    return measuring.run("gpu_programs", __doc__, MEASUREMENTS, argv)


if __name__ == "__main__":
    main()
