"""The published data sets by their short names."""

from weiss.data.cars import CARS
from weiss.data.cub import CUB
from weiss.data.inshop import INSHOP, INSHOP_JOINED
from weiss.data.official import OfficialSet
from weiss.data.sop import SOP

OFFICIAL: dict[str, OfficialSet] = {
    official.name: official for official in (CUB, CARS, SOP, INSHOP, INSHOP_JOINED)
}
