"""The names of the starts that a mixture may be made of."""

from deq_keras.starts.cell_start import CellStart
from deq_keras.starts.learned_start import LearnedStart
from deq_keras.starts.normal_start import NormalStart
from deq_keras.starts.zero_start import ZeroStart

UNMIXED = (CellStart, ZeroStart, NormalStart, LearnedStart)
SHORT_NAMES = {
    "cell": CellStart,
    "zeros": ZeroStart,
    "normal": NormalStart,
    "learned": LearnedStart,
}
