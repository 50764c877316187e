"""The command `deq-keras demo`, which runs trained models of the package."""

import sys
import time
from pathlib import Path

from ..errors import InputError
from ..files.input_file import check_new

DEMOS = {
    "mazes": "finds the way through a maze; draws a GIF",
    "sudoku": "fills a Sudoku of 6 x 6 cells; draws a GIF",
    "digits": "classifies digits at several budgets; draws a figure",
    "deblur": "sharpens a blurred photograph; draws a figure, or a GIF",
    "characters": "continues a text",
}
SIZE, PROMPT = 33, "ROMEO:"
_OPTIONS = {
    "mazes": ("file", "size", "seed", "out"),
    "sudoku": ("file", "seed", "out"),
    "digits": ("out",),
    "deblur": ("file", "seed", "out"),
    "characters": ("prompt", "seed"),
}
_FILES = {
    "mazes": "maze.gif",
    "sudoku": "sudoku.gif",
    "digits": "digits.png",
    "deblur": "deblur.png",
}
_SUFFIXES = {
    "mazes": (".gif",),
    "sudoku": (".gif",),
    "digits": (".png", ".svg", ".pdf"),
    "deblur": (".png", ".svg", ".pdf", ".gif"),
}
# Number of evaluations that a terminal shows, at most.
_SHOWN = 30
_SECONDS_PER_FRAME = 0.1
_LENGTH = 300
_BUDGETS = (1, 2, 3, 4, 5, 6, 8, 10, 20)
# The demo `deblur` shows the image at these budgets; the last one is the equilibrium.
_DEBLUR_BUDGETS = (1, 2, 4, 8, 100)
# The largest height and width in pixels, and the noise of the training.
_LARGEST, _NOISE = 256, 0.02


def demo(arguments):
    """Runs the demo that `arguments.name` names."""
    if arguments.image is not None:
        if arguments.file is not None:
            raise InputError(
                "Name the file once. Received: "
                f"{arguments.image} and --file {arguments.file}."
            )
        arguments.file = arguments.image
    for option in ("file", "size", "seed", "prompt", "out"):
        value = getattr(arguments, option)
        if value is not None and option not in _OPTIONS[arguments.name]:
            raise InputError(
                f"--{option} is not an option of the demo {arguments.name}. "
                f"Received: {value}."
            )
    arguments.seed = arguments.seed or 0
    if arguments.name in _FILES:
        arguments.out = Path(arguments.out or _FILES[arguments.name])
        suffixes = _SUFFIXES[arguments.name]
        if arguments.out.suffix not in suffixes:
            raise InputError(
                f"--out must end in {' or '.join(suffixes)}. Received: {arguments.out}."
            )
        check_new(arguments.out)
    _DEMOS[arguments.name](arguments)


def _mazes(arguments):
    from ..data.reasoning import Mazes, read_mazes

    task = Mazes()
    if arguments.file is not None:
        problem = read_mazes(arguments.file)[0]
    else:
        size = SIZE if arguments.size is None else arguments.size
        if size % 2 == 0:
            raise InputError(f"--size must be odd. Received: {size}.")
        problem = _example(task, size, arguments.seed)
    _solve("mazes", task, problem, arguments.out, _maze_text)


def _sudoku(arguments):
    from ..data.reasoning import Sudoku, read_puzzles

    task = Sudoku(6)
    if arguments.file is not None:
        problem = read_puzzles(arguments.file, 6)
    else:
        problem = _example(task, 4, arguments.seed)
    _solve("sudoku_6x6", task, problem, arguments.out, _board_text)


def _example(task, level, seed):
    import numpy as np

    return task.examples(np.random.default_rng(seed), 1, level)


def _solve(preset, task, problem, out, as_text):
    """Solves a problem in the terminal, and draws it."""
    import numpy as np

    from deq_keras.diagnostics import Predictor
    from deq_keras.models import ReasonerTagger

    from ..experiments.reasoning import pictures

    model = ReasonerTagger.from_preset(preset)
    start = time.perf_counter()
    inputs = problem.inputs[:1]
    solution = Predictor(model)(inputs).solution
    num_evaluations = int(solution.num_evaluations[0])
    probabilities = pictures.probabilities(model, inputs, num_evaluations)
    predictions = probabilities.argmax(axis=-1)
    is_wrong = (predictions != problem.targets[0]) & (problem.weights[0] > 0)
    num_wrong = is_wrong.sum(axis=(1, 2))
    shown = pictures.spread(num_evaluations, _SHOWN)
    _show([as_text(problem.inputs[0], predictions[count - 1]) for count in shown])
    first_right = np.flatnonzero(num_wrong > 0).max(initial=-1) + 2
    if first_right <= num_evaluations:
        result = f"Right from evaluation {first_right} on"
    else:
        result = f"Not solved: {num_wrong[-1]} positions are wrong"
    print(
        f"{result}; the states converged after {num_evaluations} evaluations, "
        f"{time.perf_counter() - start:.1f} s."
    )
    shown = pictures.spread(num_evaluations, pictures.MOST_FRAMES)
    pictures.draw(out, task, problem, probabilities, shown)
    print(f"The picture is {out}.")


def _show(texts):
    """Prints the last text. On a terminal, prints earlier ones in its place."""
    if not sys.stdout.isatty():
        print(texts[-1])
        return
    lines = 0
    for text in texts:
        print(f"\033[{lines}F" * bool(lines), text, sep="")
        lines = text.count("\n") + 1
        time.sleep(_SECONDS_PER_FRAME)


def _maze_text(maze, predictions):
    """Returns a maze as blocks of two characters: walls, corridors and the path."""
    rows = []
    for pixels, marks in zip(maze, predictions, strict=True):
        cells = []
        for pixel, mark in zip(pixels, marks, strict=True):
            if pixel.all():
                cells.append("**" if mark else "  ")
            else:
                cells.append("SS" if pixel[1] else "GG" if pixel[0] else "██")
        rows.append("".join(cells))
    return "\n".join(rows)


def _board_text(board, predictions):
    return "\n".join(" ".join(str(digit + 1) for digit in row) for row in predictions)


def _digits(arguments):
    from deq_keras.layers import SolveScope
    from deq_keras.models import MDEQImageClassifier

    from .. import registry
    from ..data.images import digits
    from ..evaluation import plots

    _, test = digits.load()
    model = MDEQImageClassifier.from_preset("digits")
    rows = []
    for budget in _BUDGETS:
        with SolveScope(model, max_iter=budget, tol=0.0):
            measured = model.evaluate(
                test.images, test.labels, verbose=0, return_dict=True
            )
        accuracy = measured["sparse_categorical_accuracy"]
        residual = measured["deq_residual"]
        rows.append({"budget": budget, "accuracy": accuracy, "residual": residual})
        print(
            f"NFE {budget:2}  accuracy {100 * accuracy:.1f} %  residual {residual:.1e}"
        )
    score = registry.find("classification").score
    plots.plot_scores(arguments.out, {"digits": rows}, score)
    print(f"The picture is {arguments.out}.")


def _deblur(arguments):
    import numpy as np

    from deq_keras.diagnostics import Predictor
    from deq_keras.layers import Blur
    from deq_keras.metrics import PeakSignalToNoiseRatio
    from deq_keras.models import ImageRestorer

    from ..data.images import photographs
    from ..evaluation import plots

    if arguments.file is None:
        image = photographs.load()[1]["camera"]
    else:
        image = photographs.from_file(arguments.file)
    image = _center(image, _LARGEST)[None, ..., None] / np.float32(255)
    trained = ImageRestorer.from_preset("deblur")
    kernel = trained.backbone.deq.cell.operator.kernel
    if min(image.shape[1:3]) < max(kernel.shape):
        raise InputError(
            f"The image must have at least {max(kernel.shape)} pixels a side. "
            f"Received: {image.shape[2]} x {image.shape[1]} pixels."
        )
    operator = Blur(kernel, image.shape[1:])
    random = np.random.default_rng(arguments.seed)
    measured = np.asarray(operator(image))
    measured = measured + np.float32(_NOISE) * random.normal(size=image.shape)
    inputs = {
        "measurements": np.float32(measured),
        "noise_level": np.full((1, 1), _NOISE, "float32"),
    }
    start = time.perf_counter()
    predict = Predictor(trained.with_operator(operator))
    pictures = {"measured": measured}
    for budget in _DEBLUR_BUDGETS:
        prediction = predict(inputs, budget)
        count = int(prediction.solution.num_evaluations[0])
        name = f"{count} evaluation{'s' * (count > 1)}"
        if budget == _DEBLUR_BUDGETS[-1]:
            name = f"equilibrium, {name}"
        pictures[name] = np.asarray(prediction.outputs)
    seconds = time.perf_counter() - start
    labels = {}
    for name, picture in pictures.items():
        metric = PeakSignalToNoiseRatio()
        metric.update_state(image, np.clip(picture, 0, 1))
        label = f"{name}\nPSNR {float(metric.result()):.1f} dB"
        labels[label] = picture[0, ..., 0]
        print(label.replace("\n", ": "))
    residual = float(prediction.solution.residual[0])
    print(f"The residual of the equilibrium is {residual:.1e}; {seconds:.1f} s.")
    is_moving = arguments.out.suffix == ".gif"
    draw = plots.animate_images if is_moving else plots.plot_images
    draw(arguments.out, {**labels, "truth": image[0, ..., 0]})
    print(f"The picture is {arguments.out}.")


def _center(image, largest):
    """Returns the center of an image, of at most `largest` pixels a side."""
    for axis in (0, 1):
        side = min(image.shape[axis], largest)
        start = (image.shape[axis] - side) // 2
        image = image.take(range(start, start + side), axis=axis)
    return image


def _characters(arguments):
    from deq_keras.models import DEQTransformerCausalLM

    from ..evaluation.generation import generate

    model = DEQTransformerCausalLM.from_preset("characters")
    prompt = PROMPT if arguments.prompt is None else arguments.prompt
    print(generate(model, prompt, _LENGTH, 1.0, 5, arguments.seed))


_DEMOS = {
    "mazes": _mazes,
    "sudoku": _sudoku,
    "digits": _digits,
    "deblur": _deblur,
    "characters": _characters,
}
