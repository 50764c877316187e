"""The experiment `graphs`: its graphs, its explicit networks, and a run of all."""

import collections
import copy
import pickle
from pathlib import PurePath

import numpy as np
import pytest

from tests.training.runs import small_runs
from training.cli import main
from training.config import reading as configs
from training.evaluation.report import report
from training.experiments import graphs

TINY = {
    "experiment": "graphs",
    "tensorboard": False,
    "data": {"graph": "chains", "chain_length": 3, "updates_per_epoch": 2},
    "model": {"units": 3, "l2": 1e-3, "solver": {"class_name": "anderson"}},
    "phases": [{"epochs": 1}],
    "variants": {
        "equilibrium": {},
        **{n: {"model.network": n} for n in ("gcn", "mlp")},
    },
    "evaluation": {"budgets": [2, 8], "max_iter": 8},
}
# Pages 2, 0 and 1, with two words, whose links are a path, a loop and a double link.
PAGES = "id\twords\tclass\n2\t1,1\t1\n0\t0,1\t0\n1\t1,0\t2\n"
LINKS = "id\tid\n0\t1\n1\t2\n2\t2\n0\t1\n"


def _pages(folder):
    for name, text in (("node_feature_label", PAGES), ("graph_edges", LINKS)):
        path = folder / "new_data" / "texas" / f"out1_{name}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (folder / "splits").mkdir()
    masks = {
        f"{part}_mask": np.eye(3)[i] for i, part in enumerate(("train", "val", "test"))
    }
    np.savez(folder / "splits" / "texas_split_0.6_0.2_4.npz", **masks)
    return graphs.DataConfig(graph="texas", directory=str(folder))


def test_reads_pages_and_links(tmp_path):
    config = _pages(tmp_path)
    training, test, num_classes = graphs.GraphsJob.draw(config, 4)
    assert training[0]["features"].tolist() == [[[0, 1], [1, 0], [1, 1]]]
    assert training[0]["edges"].tolist() == [[[0, 1], [1, 0], [1, 2], [2, 1]]]
    assert (training[1].tolist(), test[1].tolist()) == ([[0, -1, -1]], [[-1, -1, 1]])
    assert num_classes == 3
    config = config.model_copy(update={"part": "validation"})
    _, validation, _ = graphs.GraphsJob.draw(config, 4)
    assert validation[1].tolist() == [[-1, 2, -1]]


csr_matrix = type("csr_matrix", (), {"__module__": __name__})


def _rows(values):
    """Returns a sparse matrix, which pickles like one of scipy."""
    rows = csr_matrix()
    nodes, rows.indices = np.nonzero(values)
    rows.data = values[values != 0]
    rows.indptr = np.append(0, np.cumsum(np.bincount(nodes, minlength=len(values))))
    rows._shape = values.shape
    return rows


def _papers(folder, **changed):
    """Writes papers 0 to 4 in Planetoid's format, the last three as 4, 2, 3."""
    words = np.array([[0, 1], [1, 0], [0, 0], [0, 1], [1, 1]], "float32")
    classes = np.eye(3)[[2, 0, 1, 1, 2]]
    graph = collections.defaultdict(list, {0: [1, 1], 1: [0, 4], 3: [3]})
    parts = {"allx": _rows(words[:2]), "ally": classes[:2], "graph": graph}
    parts |= {"tx": _rows(words[[4, 2, 3]]), "ty": classes[[4, 2, 3]], **changed}
    order = parts.pop("order", "4\n2\n3\n")
    (folder / "data").mkdir()
    for part, value in parts.items():
        with (folder / "data" / f"ind.cora.{part}").open("wb") as file:
            pickle.dump(value, file, protocol=2)
    (folder / "data" / "ind.cora.test.index").write_text(order)
    (folder / "splits").mkdir()
    masks = {f"{part}_mask": np.eye(5)[i] for i, part in enumerate(("train", "val"))}
    masks["test_mask"] = np.array([0, 0, 0, 1, 1])
    np.savez(folder / "splits" / "cora_split_0.6_0.2_0.npz", **masks)
    return graphs.DataConfig(graph="cora", directory=str(folder))


def test_reads_papers_and_citations(tmp_path):
    config = _papers(tmp_path)
    training, test, num_classes = graphs.GraphsJob.draw(config, 0)
    words = [[0, 1], [1, 0], [0, 0], [0, 1], [1, 1]]
    assert training[0]["features"].tolist() == [words]
    assert training[0]["edges"].tolist() == [[[0, 1], [1, 0], [1, 4], [4, 1]]]
    assert training[1].tolist() == [[2, -1, -1, -1, -1]]
    assert test[1].tolist() == [[-1, -1, -1, 1, 2]]
    assert num_classes == 3


@pytest.mark.parametrize(
    "changed, match",
    [
        ({"order": "4\n2\n2\n"}, "nodes 2 to 4 in test.index"),
        ({"ally": np.eye(3)}, "5 labels"),
        ({"graph": {0: [5]}}, "pairs of 5 nodes"),
        ({"graph": PurePath("a")}, "arrays instead of"),
        ({"allx": np.eye(2)}, "allx|data"),
    ],
)
def test_refuses_damaged_papers(changed, match, tmp_path):
    config = _papers(tmp_path, **changed)
    with pytest.raises(graphs.InputError, match=match):
        graphs.GraphsJob.draw(config, 0)


@pytest.mark.parametrize(
    "directory, seed, match",
    [(False, 0, "data.directory"), (True, 10, "0 to 9"), (True, 5, "_5.npz")],
)
def test_refuses_missing_pages(directory, seed, match, tmp_path):
    config = _pages(tmp_path)
    if not directory:
        config = config.model_copy(update={"directory": None})
    with pytest.raises(graphs.InputError, match=match):
        graphs.GraphsJob.draw(config, seed)
    config = graphs.DataConfig(graph="chains", directory=str(tmp_path))
    with pytest.raises(graphs.InputError, match="take no"):
        graphs.GraphsJob.draw(config, seed)


@pytest.mark.parametrize(
    "name, old, new, match",
    [
        ("node_feature_label", "2\t1,1\t1\n", "", "pairs of 2 nodes"),
        ("node_feature_label", "\n0\t0,1", "\n5\t0,1", "one row a node"),
        ("node_feature_label", "1,0", "1,nan", "numbers"),
        ("graph_edges", LINKS, "id\tid\n", "pairs of 3 nodes"),
    ],
)
def test_refuses_damaged_pages(name, old, new, match, tmp_path):
    config = _pages(tmp_path)
    path = tmp_path / "new_data" / "texas" / f"out1_{name}.txt"
    path.write_text(path.read_text().replace(old, new))
    with pytest.raises(graphs.InputError, match=match):
        graphs.GraphsJob.draw(config, 4)


def test_chains_know_their_class_at_the_first_node():
    features, edges, labels, *parts = graphs.chains(4, 0)
    assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(160))
    assert [len(part) for part in parts] == [8, 16, 136]
    matrix = np.zeros((160, 160))
    matrix[edges[:, 1], edges[:, 0]] = 1
    reached = sum(np.linalg.matrix_power(matrix, k) for k in range(4)) @ features
    np.testing.assert_array_equal(reached, np.eye(100)[labels])


def test_graph_convolution():
    random = np.random.default_rng(0)
    edges = np.array([[0, 1], [1, 2], [0, 2], [3, 0]])
    values = random.normal(size=(1, 4, 3)).astype("float32")
    layer = graphs.GraphConvolution(2, bias_initializer="ones")
    found = layer(values, edges[None])
    matrix = np.eye(4)
    matrix[edges[:, 1], edges[:, 0]] = 1
    scaled = matrix / np.sqrt(np.outer(matrix.sum(axis=1), matrix.sum(axis=0)))
    expected = scaled @ (values[0] @ layer.kernel.numpy() + 1)
    np.testing.assert_allclose(found[0], expected, rtol=1e-5)


@pytest.mark.slow
def test_a_run_compares_its_networks(tmp_path, capsys):
    config = copy.deepcopy(TINY)
    config["data"]["part"] = "validation"
    config["published"] = {"test accuracy": {"gcn": 10.0}}
    directory = small_runs.finished(tmp_path / "run", configs.resolve(config))
    for name in ("equilibrium", "gcn", "mlp"):
        (row, *_) = small_runs.evaluation(directory.path / name)["budgets"][::-1]
        right = row["accuracy"] * 12
        assert right == pytest.approx(round(right)) and 0 < right
    text = report(directory)
    assert "validation accuracy [%] at NFE" in text and "published" not in text
    assert main(["tune", str(directory.path), "--variant", "equilibrium"]) == 2
    assert "graphs are not tuned" in capsys.readouterr().err
