"""Arrays as the analysis passes them around: times, places and counts, and what is so or not."""

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
