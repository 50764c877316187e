"""The small tasks: their examples, scores and cells."""

import itertools

import keras
import numpy as np
import pytest
import tensorflow as tf

import deq_keras
from tests.harness import check_round_trip
from tests.training.experiments.small_tasks import config, model_of
from training.experiments.defaults.cells import (
    AttentionCell,
    ConvolutionalCell,
    GatedCell,
    GraphCell,
    LeakyCell,
    MessagePassingCell,
    NormalizedCell,
)
from training.experiments.defaults.tasks import TASKS
from training.experiments.defaults.tasks.task import accuracy
from training.experiments.defaults.tasks.vectors import (
    explained_variance,
    smooth_function,
)

# One of each kind; the others take as long each.
FAST = ("digits_dense", "parity")


def draw(name, seed=1, train=40, test=20):
    """Returns the training and the test examples of a task."""
    sizes = {"data__train_examples": train, "data__test_examples": test}
    return TASKS[name].draw(config(data__task=name, **sizes).data, seed)


def drawn(name):
    """Small training examples of a task; their shapes are those that it says."""
    training, testing = draw(name)
    assert len(training.inputs) == 40 and len(testing.inputs) == 20
    assert training.inputs.dtype == np.float32
    return training


def searched(free, start):
    """The set of pixels that paths of free pixels lead to."""
    found, waiting = {start}, [start]
    while waiting:
        row, column = waiting.pop()
        for near in (
            (row - 1, column),
            (row + 1, column),
            (row, column - 1),
            (row, column + 1),
        ):
            is_inside = all(0 <= n < size for n, size in zip(near, free.shape))
            if is_inside and free[near] and near not in found:
                found.add(near)
                waiting.append(near)
    return found


class TestExamples:
    def test_sorting(self):
        training, testing = draw("sorting")
        assert training.inputs.shape == (40, 8, 12)
        assert testing.targets.shape == (20, 8)
        symbols = training.inputs[..., :4].argmax(axis=-1)
        np.testing.assert_array_equal(np.sort(symbols), training.targets)
        assert np.all(training.inputs[..., 4:] == np.eye(8))

    def test_regression(self):
        training, testing = draw("regression", 0, None, None)
        assert training.inputs.shape == (2048, 4) and testing.targets.shape == (1024, 1)
        noise = training.targets[:, 0] - smooth_function(training.inputs)
        assert noise.std() == pytest.approx(0.02, rel=0.1)
        x = np.array([[0.5, 1.0, 0.0, 0.0], [0.0, 0.0, 0.5, 1.0]])
        expected = [1.0 + 1.0, np.exp(-1.0) * np.cos(2.0)]
        np.testing.assert_allclose(smooth_function(x), expected)

    def test_digits(self):
        training, testing = draw("digits_dense", 0, None, None)
        assert training.inputs.shape == (1438, 8, 8, 1)
        assert testing.inputs.dtype == np.float32 and len(testing.targets) == 359
        assert training.inputs.mean() == pytest.approx(0.0, abs=1e-3)
        assert training.inputs.std() == pytest.approx(1.0, abs=1e-3)

    def test_parity(self):
        inputs, targets = drawn("parity")
        assert inputs.shape == (40, 16, 1)
        for bits, parities in zip(inputs[..., 0], targets, strict=True):
            expected = [int(sum(bits[: end + 1])) % 2 for end in range(16)]
            np.testing.assert_array_equal(parities, expected)

    def test_addition(self):
        inputs, targets = drawn("addition")
        assert inputs.shape == (40, 16, 2)
        for bits, sums in zip(inputs.astype(int), targets, strict=True):
            carry = 0
            for (first, second), digit in zip(bits, sums, strict=True):
                carry, expected = divmod(first + second + carry, 2)
                assert digit == expected

    def test_carries_travel(self):
        inputs = draw("addition", 0, None, None)[0].inputs
        assert inputs.mean() == pytest.approx(0.5, abs=0.01)
        is_different = inputs[..., 0] != inputs[..., 1]
        assert is_different.mean() == pytest.approx(0.9, abs=0.01)

    def test_permutations(self):
        inputs, targets = drawn("permutations")
        assert inputs.shape == (40, 12, 3) and set(targets.ravel()) == set(range(6))
        # That move the thing at i to p[i].
        matrices = [np.eye(3)[:, p] for p in itertools.permutations(range(3))]
        factor_matrices = (
            np.eye(3)[[0, 1, 2]],
            np.eye(3)[[1, 0, 2]],
            np.eye(3)[[0, 2, 1]],
        )
        for factors, products in zip(inputs.argmax(-1), targets, strict=True):
            product = np.eye(3)
            for factor, index in zip(factors, products, strict=True):
                product = factor_matrices[factor] @ product
                np.testing.assert_array_equal(matrices[index], product)

    def test_blobs(self):
        inputs, targets = drawn("blobs")
        assert inputs.shape == (40, 16, 16, 1)
        assert set(targets) == set(range(5))
        for image, count in zip(inputs[..., 0] > 0.5, targets, strict=True):
            sizes = []
            while image.any():
                start = tuple(np.argwhere(image)[0])
                blob = searched(image, start)
                sizes.append(len(blob))
                for pixel in blob:
                    image[pixel] = False
            assert len(sizes) == count
            assert set(sizes) <= {1, 4, 9}

    def test_flood(self):
        inputs, targets = drawn("flood")
        assert inputs.shape == (40, 8, 8, 2)
        for (free, source), labels in zip(
            np.moveaxis(inputs, -1, 1) > 0, targets, strict=True
        ):
            ((start),) = map(tuple, np.argwhere(source))
            assert free[start]
            np.testing.assert_array_equal(labels == -1, ~free)
            reached = {tuple(pixel) for pixel in np.argwhere(labels == 1)}
            assert reached == searched(free, start)

    def test_gated(self):
        inputs, targets = drawn("gated")
        assert inputs.shape == (40, 8)
        x = inputs.astype("float64")
        value = x[:, 0] * x[:, 1] + 0.5 * x[:, 2] * x[:, 3] + np.sin(2 * x[:, 4])
        np.testing.assert_array_equal(targets, value > 0)

    def test_tabular(self):
        inputs, targets = drawn("tabular_gated")
        x = inputs.astype("float64").T
        expected = np.sin(np.pi * x[0]) * x[1] - x[0] * x[3] / 2
        expected += np.exp(-4 * x[2] ** 2) * np.cos(2 * x[3])
        expected += x[4] * x[5] * np.sin(2 * x[1])
        assert 0.005 < np.std(targets[:, 0] - expected) < 0.04
        for name in ("tabular_gru", "tabular_leaky", "tabular_normalized"):
            np.testing.assert_array_equal(drawn(name).targets, targets)

    def test_field(self):
        sources, fields = drawn("field")
        around = np.pad(fields / 4.2, ((0, 0), (1, 1), (1, 1), (0, 0)))
        neighbors = (
            around[:, :-2, 1:-1]
            + around[:, 2:, 1:-1]
            + around[:, 1:-1, :-2]
            + around[:, 1:-1, 2:]
        )
        equation = 4.3 * fields / 4.2 - neighbors
        np.testing.assert_allclose(equation, sources, atol=1e-5)

    def test_groups(self):
        inputs, targets = drawn("groups")
        for filled, label in zip(inputs[..., 0] > 0, targets, strict=True):
            left, count = {tuple(p) for p in np.argwhere(filled)}, 0
            while left:
                left -= searched(filled, min(left))
                count += 1
            assert label == np.clip(count - 11, 0, 9)

    def test_seen_before(self):
        inputs, targets = drawn("seen_before")
        assert inputs.shape == (40, 16, 28)
        assert np.all(inputs[..., 12:] == np.eye(16))
        for tokens, labels in zip(inputs[..., :12].argmax(-1), targets, strict=True):
            expected = [token in tokens[:at] for at, token in enumerate(tokens)]
            np.testing.assert_array_equal(labels, expected)

    def test_brackets(self):
        inputs, targets = drawn("brackets")
        assert inputs.shape == (40, 16, 18)
        assert np.all(inputs[..., 2:] == np.eye(16))
        for is_opening, labels in zip(inputs[..., :2].argmax(-1), targets, strict=True):
            waiting, expected = [], np.zeros(16)
            for at, opens in enumerate(is_opening):
                if opens:
                    waiting.append(at)
                elif waiting:
                    expected[[waiting.pop(), at]] = 1
            np.testing.assert_array_equal(labels, expected)

    def test_distances(self):
        inputs, targets = drawn("distances")
        assert inputs.shape == (40, 20, 21)
        assert set(targets.ravel()) == set(range(8))
        for nodes, labels in zip(inputs, targets, strict=True):
            adjacency, marked = nodes[:, :20], nodes[:, 20]
            np.testing.assert_array_equal(adjacency, adjacency.T)
            assert np.all(np.diag(adjacency) == 0) and marked.sum() == 1
            # The number of walks of every length from the marked node.
            walks, expected = marked, np.full(20, 7)
            for length in range(20):
                is_new = (walks > 0) & (expected == 7)
                expected[is_new] = min(length, 6)
                walks = adjacency @ walks
            np.testing.assert_array_equal(labels, expected)

    def test_chain(self):
        inputs, targets = drawn("chain")
        assert inputs.shape == (40, 24, 6)
        chains, labels = inputs.reshape(40, 3, 8, 6), targets.reshape(40, 3, 8)
        assert np.all(chains[:, :, 1:, :2] == 0)
        ends = chains[:, :, 0, :2].argmax(axis=-1)
        assert np.all(labels == ends[..., None])
        cell = TASKS["chain"].cell(4)
        neighbors = [np.flatnonzero(row) for row in cell.adjacency]
        for node, others in enumerate(neighbors):
            expected = [n for n in (node - 1, node + 1) if 0 <= n < 24]
            assert list(others) == [n for n in expected if n // 8 == node // 8]

    @pytest.mark.parametrize("name", [n for n in TASKS if "digits" not in n])
    def test_a_seed_fixes_what_is_drawn(self, name):
        first, again, other = (draw(name, seed)[0] for seed in (0, 0, 1))
        np.testing.assert_array_equal(first.inputs, again.inputs)
        np.testing.assert_array_equal(first.targets, again.targets)
        assert np.any(first.inputs != other.inputs)


class TestScore:
    def test_accuracy_leaves_out_what_is_ignored(self):
        logits = np.eye(2)[[[0, 1, 1], [1, 0, 0]]]
        assert accuracy(logits, np.array([[0, 0, -1], [-1, 1, 1]])) == 25.0

    def test_loss_leaves_out_what_is_ignored(self):
        loss = TASKS["flood"].loss()
        logits = np.array([[[[2.0, 0.0], [0.0, 9.0]]]], "float32")
        value = loss(np.array([[[1, -1]]]), logits)
        assert float(value) == pytest.approx(np.log1p(np.exp(2.0)))

    def test_accuracy(self):
        logits = np.eye(3)[[[0, 1], [2, 2]]]
        assert accuracy(logits, np.array([[0, 1], [2, 0]])) == 75.0

    def test_explained_variance(self):
        targets = np.float32([[0.0], [2.0]])
        assert explained_variance(targets, targets) == 100.0
        assert explained_variance(np.ones((2, 1)), targets) == 0.0
        assert explained_variance(targets + 0.5, targets) == 75.0


class TestAttentionCell:
    def test_is_equivariant_to_permutations(self):
        keras.utils.set_random_seed(0)
        cell = AttentionCell(8, num_heads=2)
        generator = np.random.default_rng(0)
        inputs = generator.normal(size=(2, 5, 3)).astype("float32")
        state = generator.normal(size=(2, 5, 8)).astype("float32")
        order = [3, 1, 4, 0, 2]
        value = cell(state, cell.inject(inputs)).numpy()
        permuted = cell(state[:, order], cell.inject(inputs[:, order]))
        np.testing.assert_allclose(permuted, value[:, order], atol=1e-5)
        # Positions see one another.
        changed = inputs.copy()
        changed[:, 0] += 1.0
        second = cell(value, cell.inject(inputs)).numpy()
        value = cell(state, cell.inject(changed))
        second_changed = cell(value, cell.inject(changed)).numpy()
        assert np.all(np.abs(second - second_changed).max(axis=(0, 2)) > 1e-3)

    def test_second_order_gradient(self):
        # What a regularizer of the Jacobian differentiates: |J^T w|^2.
        keras.utils.set_random_seed(0)
        cell = AttentionCell(4, num_heads=2, dtype="float64")
        state, injection, weights, direction = tf.random.normal(
            (4, 1, 3, 4), seed=1, dtype="float64"
        )
        cell.inject(injection)

        def penalty(state):
            with tf.GradientTape() as tape:
                tape.watch(state)
                value = tf.reduce_sum(cell(state, injection) * weights)
            return tf.reduce_sum(tf.square(tape.gradient(value, state)))

        with tf.GradientTape() as tape:
            tape.watch(state)
            value = penalty(state)
        slope = tf.reduce_sum(tape.gradient(value, state) * direction)
        step = 1e-5 * direction
        expected = (penalty(state + step) - penalty(state - step)) / 2e-5
        np.testing.assert_allclose(slope, expected, rtol=1e-6)

    @pytest.mark.parametrize("sizes", [(6, 4), (0, 1), (4, 0)])
    def test_refuses_sizes(self, sizes):
        with pytest.raises(ValueError, match=f"units={sizes[0]}, num_heads={sizes[1]}"):
            AttentionCell(*sizes)


def numbers(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype("float32")


def weights(layer):
    return [weight.numpy() for weight in layer.weights]


class TestConvolutionalCell:
    def test_formula(self):
        keras.utils.set_random_seed(0)
        cell = ConvolutionalCell(4, groups=2)
        inputs, state = numbers(2, 5, 3), numbers(2, 5, 4, seed=1)
        value = cell(state, cell.inject(inputs))

        def convolution(layer, signal):
            kernel, bias = weights(layer)
            padded = np.pad(signal, ((0, 0), (1, 1), (0, 0)))
            windows = [padded[:, at : at + 3] for at in range(5)]
            products = [np.einsum("bwi,wio->bo", w, kernel) for w in windows]
            return np.stack(products, axis=1) + bias

        hidden = convolution(cell.convolution1, state)
        hidden = np.maximum(hidden + convolution(cell.injection_layer, inputs), 0)
        hidden = np.maximum(state + convolution(cell.convolution2, hidden), 0)
        groups = hidden.reshape(2, 5, 2, 2)
        mean = groups.mean(axis=(1, 3), keepdims=True)
        deviation = np.sqrt(groups.var(axis=(1, 3), keepdims=True) + 1e-5)
        expected = ((groups - mean) / deviation).reshape(2, 5, 4)
        np.testing.assert_allclose(value, expected, atol=1e-5)

    @pytest.mark.parametrize(
        "arguments", [(6, 1), (0, 1), (4, 3), (4, 0), (4, 1, 0)], ids=str
    )
    def test_refuses_arguments(self, arguments):
        with pytest.raises(ValueError, match=f"Received: filters={arguments[0]}, "):
            ConvolutionalCell(*arguments)


class TestGatedCell:
    def test_formula(self):
        keras.utils.set_random_seed(0)
        cell = GatedCell(4)
        inputs, state = numbers(3, 2), numbers(3, 4, seed=1)
        value = cell(state, cell.inject(inputs))

        def dense(layer, vectors):
            kernel, bias = weights(layer)
            return vectors @ kernel + bias

        gate = dense(cell.gate, state) + dense(cell.gate_injection, inputs)
        gate = 1 / (1 + np.exp(-gate))
        candidate = dense(cell.candidate, state)
        candidate = np.tanh(candidate + dense(cell.candidate_injection, inputs))
        expected = gate * candidate + (1 - gate) * state / 2
        np.testing.assert_allclose(value, expected, atol=1e-6)


class TestMessagePassingCell:
    def test_formula(self):
        keras.utils.set_random_seed(0)
        # A node in the middle, one with an edge of its own, one alone.
        adjacency = [[0, 1, 3, 0], [1, 0, 0, 0], [3, 0, 0, 0], [0, 0, 0, 0]]
        cell = MessagePassingCell(5, adjacency)
        inputs, state = numbers(2, 4, 3), numbers(2, 4, 5, seed=1)
        value = cell(state, cell.inject(inputs))
        (kernel,) = weights(cell.message)
        injection_kernel, bias = weights(cell.injection_layer)
        own = inputs @ injection_kernel + bias
        sent = state @ kernel
        heard = np.zeros_like(sent)
        heard[:, 0] = 0.25 * sent[:, 1] + 0.75 * sent[:, 2]
        heard[:, 1] = heard[:, 2] = sent[:, 0]
        np.testing.assert_allclose(value, np.tanh(heard + own), atol=1e-6)

    def test_refuses_what_is_not_square(self):
        with pytest.raises(ValueError, match=r"square.*\(1, 2\)"):
            MessagePassingCell(2, [[0, 1]])


class TestGraphCell:
    def test_formula(self):
        keras.utils.set_random_seed(0)
        cell = GraphCell(5)
        # The first sample has a path of three nodes, the second one without edges.
        adjacency = np.zeros((2, 3, 3), "float32")
        adjacency[0, [0, 1, 1, 2], [1, 0, 2, 1]] = 1.0
        nodes, state = numbers(2, 3, 4), numbers(2, 3, 5, seed=1)
        value = cell(state, cell.inject({"adjacency": adjacency, "nodes": nodes}))
        (own,), (message,) = weights(cell.own), weights(cell.message)
        kernel, bias = weights(cell.injection_layer)
        sent = state @ message
        heard = np.zeros_like(sent)
        heard[0, 0] = heard[0, 2] = sent[0, 1]
        heard[0, 1] = (sent[0, 0] + sent[0, 2]) / 2
        hidden = np.maximum(state @ own + heard + nodes @ kernel + bias, 0)
        kernel, bias = weights(cell.update)
        new = state + hidden @ kernel + bias
        new -= new.mean(axis=-1, keepdims=True)
        expected = new / np.sqrt(new.var(axis=-1, keepdims=True) + 1e-3)
        np.testing.assert_allclose(value, expected, atol=1e-5)


class TestCells:
    CELLS = {
        "convolutional": lambda: ConvolutionalCell(4),
        "convolutional_2d": lambda: ConvolutionalCell(4, rank=2),
        "gated": lambda: GatedCell(4, retention=1.0),
        "graph": lambda: GraphCell(4),
        "leaky": lambda: LeakyCell(4, rate=0.3),
        "normalized": lambda: NormalizedCell(4),
        "message_passing": lambda: MessagePassingCell(4, np.ones((5, 5))),
        "attention": lambda: AttentionCell(4, num_heads=2),
    }

    @pytest.mark.parametrize("name", CELLS)
    def test_config_is_plain(self, name):
        check_round_trip(self.CELLS[name]())

    @pytest.mark.parametrize("name", CELLS)
    def test_mixed_precision(self, name):
        shapes = {"convolutional_2d": (2, 5, 5, 3)}
        is_of_vectors = name in ("gated", "leaky", "normalized")
        shape = shapes.get(name, (2, 3) if is_of_vectors else (2, 5, 3))
        inputs = np.ones(shape, "float32")
        if name == "graph":
            adjacency = np.ones((2, 5, 5), "float32")
            inputs = {"adjacency": adjacency, "nodes": inputs}
        keras.config.set_dtype_policy("mixed_bfloat16")
        layer = deq_keras.layers.DEQ(self.CELLS[name]())
        assert layer(inputs).dtype == "bfloat16"

    @pytest.mark.parametrize(
        "name",
        [
            pytest.param(name, marks=() if name in FAST else pytest.mark.slow)
            for name in TASKS
        ],
    )
    def test_saves(self, name, tmp_path):
        model, examples = model_of(name)
        model.save(tmp_path / "model.keras")
        loaded = keras.models.load_model(tmp_path / "model.keras")
        np.testing.assert_array_equal(loaded(examples.inputs), model(examples.inputs))
