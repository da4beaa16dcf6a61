"""The public ResNet-50 v1 weights on real photographs of birds that ImageNet has a class for."""

import numpy as np
import pytest
import torch
from PIL import Image

from weiss.backbones import ResNet, load_weights, make_backbone, read_weights
from weiss.backbones.trunk import InputConversion

pytestmark = pytest.mark.data

IMAGENET_CLASS = {
    "001.Black_footed_Albatross": 146,
    "002.Laysan_Albatross": 146,
    "014.Indigo_Bunting": 14,
    "047.American_Goldfinch": 11,
    "067.Anna_Hummingbird": 94,
    "068.Ruby_throated_Hummingbird": 94,
    "073.Blue_Jay": 17,
    "076.Dark_eyed_Junco": 13,
    "089.Hooded_Merganser": 98,
    "090.Red_breasted_Merganser": 98,
    "100.Brown_Pelican": 144,
    "101.White_Pelican": 144,
}
EACH = 10


@pytest.fixture(scope="module")
def birds(cub):
    """Ten photographs of each species, ``(120, 3, 224, 224)`` uint8, and their classes."""
    images, classes = [], []
    for folder, number in IMAGENET_CLASS.items():
        for path in sorted((cub / folder).iterdir())[:EACH]:
            image = Image.open(path).convert("RGB")
            scale = 256 / min(image.size)
            size = round(image.width * scale), round(image.height * scale)
            left, top = (size[0] - 224) // 2, (size[1] - 224) // 2
            image = image.resize(size, Image.Resampling.BILINEAR)
            image = image.crop((left, top, left + 224, top + 224))
            images.append(torch.from_numpy(np.array(image)).permute(2, 0, 1))
            classes.append(number)
    return torch.stack(images), torch.tensor(classes)


def scores(network, birds):
    """How often the right class is first, and the probability it gets on average."""
    images, classes = birds
    network = torch.nn.Sequential(InputConversion(network.input), network).eval()
    with torch.no_grad():
        probabilities = torch.cat([network(part) for part in images.split(40)]).softmax(dim=1)
    right = probabilities.argmax(dim=1) == classes
    return right.float().mean().item(), probabilities.gather(1, classes[:, None]).mean().item()


def test_v1_knows_the_birds_and_v1_5_knows_them_less(real_weights, birds):
    v1, v1_5 = ResNet(50, "v1"), ResNet(50, "v1.5")
    load_weights(v1, real_weights)
    with pytest.raises(ValueError, match="must be those of ResNet-50 v1.5; .*Use .*'resnet50_v1'"):
        load_weights(v1_5, real_weights)
    v1_5.load_state_dict(read_weights(real_weights)[0])  # what the refusal is there to prevent
    right, probability = scores(v1, birds)
    right_v1_5, probability_v1_5 = scores(v1_5, birds)
    print(f"v1 {right:.3f} {probability:.3f}, v1.5 {right_v1_5:.3f} {probability_v1_5:.3f}")
    assert right >= 0.9
    assert probability >= 0.85
    assert right_v1_5 <= right - 0.03
    assert probability_v1_5 <= probability - 0.1


def test_a_backbone_starts_from_them_and_tells_species_apart(real_weights, birds):
    model = make_backbone("resnet50_v1", 64, weights=real_weights).eval()
    images, classes = birds
    with torch.no_grad():
        features = torch.cat([model.features(part) for part in images.split(40)])
    features = torch.nn.functional.normalize(features)
    nearest = (features @ features.T).fill_diagonal_(-1).argmax(dim=1)
    right = (classes[nearest] == classes).float().mean().item()
    print(f"nearest neighbour {right:.3f}")
    assert right >= 0.9
