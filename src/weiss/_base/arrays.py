"""The type of a numpy array, whatever its shape and dtype."""

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
