"""What the tests of the data need."""

import pytest


@pytest.fixture(scope="session")
def torchvision_transforms(torchvision):
    return torchvision.transforms
