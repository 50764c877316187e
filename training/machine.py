"""Facts about machine and software, for bug reports and measurements."""

import datetime
import importlib.metadata
import os
import platform
import subprocess
import time
from pathlib import Path

_PACKAGES = (
    "deq-keras",
    "tensorflow",
    "keras",
    "keras-hub",
    "numpy",
    "ai-edge-litert",
    "onnxruntime",
    "tf2onnx",
)
# Instructions that decide how fast TensorFlow computes, as Linux names them.
_INSTRUCTIONS = ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_bf16")
# Variables of the environment that change speed or results.
_VARIABLES = (
    "CUDA_VISIBLE_DEVICES",
    "KERAS_BACKEND",
    "KERAS_HOME",
    "NVIDIA_TF32_OVERRIDE",
    "OMP_NUM_THREADS",
    "TF_DETERMINISTIC_OPS",
    "TF_ENABLE_ONEDNN_OPTS",
    "TF_NUM_INTEROP_THREADS",
    "TF_NUM_INTRAOP_THREADS",
    "TF_XLA_FLAGS",
    "XLA_FLAGS",
)


def environment():
    """Returns the machine, the versions, the commit and the time, for JSON."""
    status = _git("status", "--porcelain")
    flags = (processor("flags") or "").split()
    query = "--query-gpu=name,driver_version,memory.total"
    gpus = _output("nvidia-smi", query, "--format=csv,noheader") or ""
    return {
        "time": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "commit": _git("rev-parse", "HEAD"),
        "uncommitted_changes": None if status is None else bool(status),
        "processor": processor("model name") or platform.machine(),
        "processors_usable": len(os.sched_getaffinity(0))
        if hasattr(os, "sched_getaffinity")
        else os.cpu_count(),
        "instructions": [name for name in _INSTRUCTIONS if name in flags],
        "gpus": gpus.splitlines(),
        "system": platform.platform(),
        "python": platform.python_version(),
        "versions": {name: _version(name) for name in _PACKAGES},
        "variables": {
            name: os.environ[name] for name in _VARIABLES if name in os.environ
        },
    }


def settings():
    """Returns TensorFlow's settings that change speed or results, by name.

    Imports TensorFlow.
    """
    import tensorflow as tf

    # TensorFlow uses oneDNN by default on processors of this kind.
    has_onednn = platform.machine() in ("x86_64", "AMD64")
    has_onednn &= os.environ.get("TF_ENABLE_ONEDNN_OPTS", "1") != "0"
    return {
        "oneDNN": _on(has_onednn),
        "TF32": _on(tf.config.experimental.tensor_float_32_execution_enabled()),
        "XLA": f"{tf.config.optimizer.get_jit() or 'off'} by default",
    }


def processor(key):
    """Returns a field of `/proc/cpuinfo` as a string, or `None` if it is unknown."""
    path = Path("/proc/cpuinfo")
    for line in path.read_text().splitlines() if path.exists() else ():
        if line.startswith(key):
            return line.split(":", 1)[1].strip()
    return None


def _version(package):
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _git(*arguments):
    """Output of git in the checkout of this package; `None` outside of a checkout."""
    root = Path(__file__).resolve().parents[1]
    if not (root / ".git").exists():
        return None
    return _output("git", "-C", str(root), *arguments)


def _output(*command):
    """Output of a program; `None` if it is missing or fails."""
    try:
        result = subprocess.run(command, capture_output=True, text=True)
    except FileNotFoundError:
        return None
    return result.stdout.strip() if result.returncode == 0 else None


def report():
    """Returns the lines of `deq-keras doctor`, pairs of a name and a text.

    Imports TensorFlow.
    """
    import keras
    import tensorflow as tf

    facts = environment()
    policy = keras.config.dtype_policy().name
    changes = " with uncommitted changes" if facts["uncommitted_changes"] else ""
    devices = [
        f"{one.device_type} {one.name.rpartition(':')[2]}"
        for one in tf.config.list_physical_devices()
    ]
    return [
        ("system", facts["system"]),
        ("Python", facts["python"]),
        *((name, version or "missing") for name, version in facts["versions"].items()),
        ("commit", f"{facts['commit'] or 'unknown'}{changes}"),
        ("processor", facts["processor"]),
        ("processors", str(facts["processors_usable"])),
        ("instructions", ", ".join(facts["instructions"]) or "unknown"),
        ("devices", ", ".join(devices)),
        ("GPUs", "; ".join(facts["gpus"]) or "-"),
        *settings().items(),
        ("Keras", f"backend {keras.backend.backend()}, dtype policy {policy}"),
        ("environment", assignments(facts["variables"]) or "-"),
        ("self-test", _self_test()),
    ]


def assignments(facts):
    """Returns a dict as text, `NAME=VALUE, ...`."""
    return ", ".join(f"{name}={value}" for name, value in facts.items())


def _on(is_on):
    return "on" if is_on else "off"


def _self_test():
    """Trains a model for a step, solves, and compares with a linear solve."""
    import keras
    import numpy as np

    import deq_keras

    start = time.perf_counter()
    random = np.random.default_rng(0)
    kernel, inputs = 0.2 * random.normal(size=(8, 8)), random.normal(size=(4, 8))
    problem = deq_keras.solvers.FixedPointProblem(lambda z, u: z @ kernel + u, inputs)
    request = deq_keras.solvers.SolveRequest(np.zeros((4, 8)), tol=1e-12)
    solution = deq_keras.solvers.Anderson(max_iter=60).solve(problem, request)
    expected = np.linalg.solve((np.eye(8) - kernel).T, inputs.T).T
    error = float(np.abs(solution.value - expected).max())
    deq = deq_keras.layers.DEQ(deq_keras.layers.DenseCell(8), seed=0)
    model = keras.Sequential([deq, keras.layers.Dense(1)])
    model.compile("adam", "mse")
    loss = model.train_on_batch(inputs.astype("float32"), inputs[:, :1])
    is_passed = error < 1e-8 and np.all(np.isfinite(loss))
    seconds = time.perf_counter() - start
    verdict = "passed" if is_passed else "FAILED"
    return f"{verdict}: error of a linear solve {error:.0e}, {seconds:.1f} s"
