"""What every test starts from: fixed seeds, float32, and three ways to run it."""

import fcntl
import gc
import os
import subprocess
import sys

# The processes of a run share a GPU.
os.environ.setdefault("TF_FORCE_GPU_ALLOW_GROWTH", "true")

import keras
import pytest
import tensorflow as tf

from deq_keras.core import rounding

_IS_CHILD = "DEQ_KERAS_LARGE_TEST"


class Regime:
    """One of the ways in which TensorFlow runs a function.

    Args:
        name: `"eager"`, `"graph"` or `"xla"`.
    """

    def __init__(self, name):
        self.name = name

    def __call__(self, function):
        """Returns `function` as this regime runs it."""
        if self.name == "eager":
            return function
        # Converting by AutoGraph takes time, and changes nothing here.
        is_xla = self.name == "xla"
        return tf.function(function, autograph=False, jit_compile=is_xla)


@pytest.fixture(params=["eager", "graph", "xla"])
def regime(request):
    """Runs the test eagerly, in a graph and compiled by XLA."""
    return Regime(request.param)


@pytest.fixture(params=["eager", "graph"])
def exact_regime(request):
    """Runs the test where batched arithmetic is promised to be bit for bit."""
    return Regime(request.param)


@pytest.fixture(autouse=True)
def fresh_keras(request):
    """Seeds everything, and undoes a test's dtype policy and names."""
    keras.utils.set_random_seed(1)
    yield
    keras.config.set_dtype_policy("float32")
    # Collecting garbage after every test would take longer than the tests.
    is_slow = request.node.get_closest_marker("slow") is not None
    keras.utils.clear_session(free_memory=is_slow)


@pytest.fixture
def full_float32():
    """Computes in float32 on a GPU, where TensorFloat-32 is TensorFlow's default. For
    tests whose tolerance is smaller than the rounding of TensorFloat-32."""
    with rounding.full_float32():
        yield


@pytest.fixture(autouse=True)
def alone_if_large(request, fresh_keras, tmp_path_factory):
    """Keeps the tests that are marked as large from running side by side."""
    # The process of such a test has a parent that holds the lock.
    is_large = request.node.get_closest_marker("large") is not None
    if not is_large or _IS_CHILD in os.environ:
        yield
        return
    # Each process of a run has its folder in the same one.
    with open(tmp_path_factory.getbasetemp().parent / "large.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
        gc.collect()


def pytest_collection_finish():
    """Exempts all that was imported from garbage collection, which took an eighth of
    the time of the tests."""
    gc.collect()
    gc.freeze()
    # Graphs are many small objects: by default, every 700 of them start a collection.
    gc.set_threshold(20_000)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem):
    """Runs a test that is marked as large in a process of its own: TensorFlow keeps the
    weights of a model that `train_on_batch` has trained as long as the process lives.
    """
    if pyfuncitem.get_closest_marker("large") is None or _IS_CHILD in os.environ:
        return None
    test = [sys.executable, "-m", "pytest", "-q", "-n0", "-m", "large"]
    run = subprocess.run(
        [*test, pyfuncitem.nodeid],
        cwd=pyfuncitem.config.rootpath,
        env={**os.environ, _IS_CHILD: "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert run.returncode == 0, run.stdout
    return True


@pytest.fixture(scope="module", autouse=True)
def frozen_leftovers():
    """Exempts what a module leaves behind, graphs above all, from garbage collection:
    later tests that collect would take seconds to look through it."""
    yield
    gc.collect()
    gc.freeze()
