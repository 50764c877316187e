"""Ranges of numbers that several configs share, as metadata of their fields.

The ranges allow every known use, but no number that would make tensors, graphs or files
too large. A field without a `maximum` has the default maximum of
`training.config.validation`.
"""

COUNT = {"minimum": 1}
NATURAL = {"minimum": 0}

# Seeds of NumPy and TensorFlow.
SEED = {"minimum": 0, "maximum": 2**31 - 1}

EPOCHS = {"minimum": 1, "maximum": 1_000_000}

# Examples that are solved at once.
BATCH = {"minimum": 1, "maximum": 2**20}

# Devices of one machine.
DEVICES = {"minimum": 1, "maximum": 1024}

# Seconds that one process waits for another: at most a day.
WAIT = {"minimum": 1, "maximum": 86_400}

# Examples that are drawn and held in memory.
DRAWN = {"minimum": 1, "maximum": 10_000_000}

# Every evaluation needs an entry in the trace, and a state in Broyden's graph.
BUDGET = {"minimum": 1, "maximum": 10_000}

# Limit for counts that unroll into graph nodes.
TERMS = {"minimum": 1, "maximum": 100}

# Filters and units: a square matrix of the largest width fills a machine's memory.
WIDTH = {"minimum": 1, "maximum": 2**17}
FILTERS = {"minimum": 1, "maximum": 2**14}

# Layers, each of which adds nodes to a graph.
LAYERS = {"minimum": 1, "maximum": 1000}

# Sides of a convolution's window.
WINDOW = {"minimum": 1, "maximum": 255}

# Sides of images, in pixels.
SIDE = {"minimum": 1, "maximum": 2**14}

# Rates of dropout.
RATE = {"minimum": 0.0, "maximum": 0.99}

# Parts of a whole.
SHARE = {"minimum": 0.0, "maximum": 1.0}

# Names used as file names and in tables.
NAME = {"pattern": r"[A-Za-z0-9][A-Za-z0-9_-]*", "max_length": 64}
