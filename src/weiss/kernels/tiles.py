"""How a small problem is cut up for the fused kernels: the best of those tried on an H200."""

from typing import NamedTuple

MANY = 4096
"""Classes from which on tiles may be large, and a GPU is still full."""
FILLING = 800
"""Programs that fill a GPU."""


class Tiles(NamedTuple):
    """Sizes of tiles, as the programs want them.

    Attributes:
        multiply: of the cosines of batch and fields.
        interact: of what makes of them the loss and its slopes.
        gradients: of the gradients.
    """

    multiply: dict[str, int]
    interact: dict[str, int]
    gradients: dict[str, int]

    def shares(self, batch: int, num_classes: int) -> int:
        """Return in how many shares `interact` takes the batch, to fill a GPU."""
        columns = _times(num_classes, self.interact["COLUMNS"])
        return max(1, min(FILLING // columns, _times(batch, self.interact["ROWS"]), 8))


_FEW = Tiles(
    {"ROWS": 16, "COLUMNS": 32, "STEP": 64, "num_warps": 4},
    {"ROWS": 32, "COLUMNS": 16},
    {"SIDE": 16, "ACROSS": 64, "STEP": 32, "num_warps": 4},
)
_MANY = Tiles(
    {"ROWS": 64, "COLUMNS": 64, "STEP": 32, "num_warps": 4},
    {"ROWS": 8, "COLUMNS": 64},
    {"SIDE": 32, "ACROSS": 256, "STEP": 32, "num_warps": 8},
)


def tiles_of(num_classes: int, embedding_size: int) -> Tiles:
    """Return the tiles for a number of classes; none wider than a vector, or 16.

    Args:
        num_classes: C.
        embedding_size: D.
    """
    tiles = _FEW if num_classes < MANY else _MANY
    width = max(1 << (embedding_size - 1).bit_length(), 16)
    across = min(tiles.gradients["ACROSS"], width)
    warps = min(tiles.gradients["num_warps"], max(across // 32, 1))
    gradients = {**tiles.gradients, "ACROSS": across, "num_warps": warps}
    return tiles._replace(gradients=gradients)


def _times(length: int, of: int) -> int:
    return -(-length // of)
