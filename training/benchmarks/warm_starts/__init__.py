"""`deq-keras benchmark warm_starts RUN`: evaluations that a previous equilibrium saves.

The test images of a finished classification run move by some pixels a frame, and each
frame is solved from the cell's own start and from the equilibrium of the frame before.
Evaluations are counts: they need no quiet machine.
"""

import argparse
import json
from pathlib import Path

from ...config import reading as configs


def main(argv=None):
    """Runs the benchmark and returns the exit status.

    Args:
        argv: list of command-line arguments. `None`: those of the process.
    """
    arguments = _parser().parse_args(argv)
    from ...runs import variants
    from ...runs.work_directory import WorkDirectory
    from .. import environment
    from .evaluations import measure

    directory = WorkDirectory.open(arguments.run)
    configs.variant(directory.config, arguments.variant)
    job, model = variants.trained(directory, arguments.variant)
    model, images = job.servable(model)
    results = {
        "environment": environment.describe(),
        "speeds": [
            measure(model, images, speed, arguments.frames)
            for speed in arguments.speeds
        ],
    }
    text = json.dumps(results, indent=1)
    if arguments.out is not None:
        arguments.out.write_text(text + "\n")
    print(text)
    return 0


def _parser():
    parser = argparse.ArgumentParser(
        prog="deq-keras benchmark warm_starts",
        description="Counts evaluations on images that move, with and without the "
        "equilibrium of the frame before.",
    )
    parser.add_argument("run", help="the work directory of a classification run")
    parser.add_argument("--variant", metavar="NAME", required=True)
    parser.add_argument("--frames", type=int, default=32, help="default: 32")
    parser.add_argument(
        "--speeds",
        type=float,
        nargs="+",
        default=[0.0, 0.05, 0.1, 0.25, 0.5, 1.0],
        help="pixels a frame; default: 0 to 1",
    )
    parser.add_argument("--out", type=Path, help="JSON file to write")
    return parser
