"""Two attributes in one embedding: which character it is, and of which font family.

A sample with several labels is a member of several classes, each with its field. Here every glyph
has two: its character and the family of its font. A narrow network is trained with MFCWMS on both
(multi-hot labels), on the character alone, and on the family alone; then images of characters that
nobody has trained on look for others of the same character, and of the same family.

Every class of a batch pulls the same in all, however many samples share it. So a batch holds eight
images of each of its characters, about as many as of each family; in shuffled batches most
characters stand alone and families would hardly be learned.

The fields say more: the fields of the families span a few directions of the embedding. Seen in
these alone, or with these taken out, one embedding answers either question.

    python examples/two_attributes.py --out docs/images
"""

import argparse
from pathlib import Path

import torch
from few_glyphs import (
    EMBEDDING_SIZE,
    Glyphs,
    batches_of,
    embed,
    new_network,
    scores,
    some_glyphs,
    train,
)
from torch import Tensor
from torch.nn.functional import one_hot

from weiss import make_loss
from weiss.distances import unit
from weiss.plots.attributes import Found, attribute_rows

SETTINGS = {"alpha": 2.0, "beta": 20.0, "delta": 0.3}
FAMILIES = ("DejaVuSansMono", "DejaVuSans", "DejaVuSerif", "STIXGeneral", "cm")
SHOWN = 9


def families_of(glyphs: Glyphs) -> Tensor:
    """Return ``(N,)`` the family of each image's font: DejaVuSerif-Bold is a DejaVuSerif."""
    number = [
        next(f for f, name in enumerate(FAMILIES) if x.startswith(name)) for x in glyphs.fonts
    ]
    return torch.tensor(number)


def parts(embeddings: Tensor, fields: Tensor) -> tuple[Tensor, Tensor]:
    """Split embeddings into what lies in the span of some fields, and the rest.

    Args:
        embeddings: ``(N, D)``.
        fields: ``(F, D)``, fewer than D.

    Returns:
        Coordinates in the span ``(N, F)``, and what is left ``(N, D)``.
    """
    basis_DF = torch.linalg.qr(unit(fields).T).Q
    inside_NF = embeddings @ basis_DF
    return inside_NF, embeddings - inside_NF @ basis_DF.T


def neighbours_of(
    query: int, embeddings: Tensor, glyphs: Glyphs, families: Tensor, title: str
) -> Found:
    """Return the nearest images of a query, each with what it shares with it."""
    near = unit(embeddings) @ unit(embeddings)[query]
    near[query] = -2.0
    rows = near.topk(SHOWN).indices.tolist()
    shares = [
        (
            bool(glyphs.characters[row] == glyphs.characters[query]),
            bool(families[row] == families[query]),
        )
        for row in rows
    ]
    pixels = glyphs.images[:, 0].numpy()
    return Found(title, pixels[query], [pixels[row] for row in rows], shares)


def main() -> None:
    """Train three networks, print how they retrieve by either attribute, and draw neighbours."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("demo"), help="folder for the picture")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--characters", type=int, default=200)
    parser.add_argument("--epochs", type=int, default=14)
    parser.add_argument("--quick", action="store_true", help="few of everything: does it run?")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.characters, arguments.epochs = 12, 1

    known = some_glyphs("train", arguments.characters)
    unseen = some_glyphs("test", arguments.characters)
    of_known, of_unseen = families_of(known), families_of(unseen)
    characters = one_hot(known.characters, arguments.characters)
    families = one_hot(of_known, len(FAMILIES))
    trained_on = {
        "character": known.characters,
        "family": of_known,
        "both": torch.cat([characters, families], dim=1),
    }
    seen = {}
    for name, labels in trained_on.items():
        network = new_network(arguments.seed)
        num_classes = labels.shape[1] if labels.ndim == 2 else int(labels.max()) + 1
        loss = make_loss("mf_cwms", num_classes, EMBEDDING_SIZE, **SETTINGS)
        train(
            network,
            loss,
            known.images,
            labels,
            batches_of(known, arguments.seed, per_class=8),
            arguments.epochs,
        )
        seen[name] = embed(network, unseen.images)
        if name == "both":
            inside, rest = parts(seen[name], loss.fields.detach()[-len(FAMILIES) :])
            seen["both, without the families' span"] = rest
            seen["both, in the families' span"] = inside

    print(
        f"{arguments.characters} characters train ({len(known.images)} images, "
        f"{arguments.epochs} epochs, seed {arguments.seed}), {arguments.characters} others test"
    )
    print(f"{'trained on':34}  character: MAP@R    P@1   family: MAP@R    P@1")
    torch.manual_seed(arguments.seed)
    by_chance = {"nothing: random vectors": torch.randn(len(unseen.images), EMBEDDING_SIZE)}
    for name, embeddings in (by_chance | seen).items():
        ours = (*scores(embeddings, unseen.characters), *scores(embeddings, of_unseen))
        print(f"{name:34}  {ours[0]:16.1f}  {ours[1]:5.1f}  {ours[2]:14.1f}  {ours[3]:5.1f}")

    drawn = torch.randperm(
        len(unseen.images), generator=torch.Generator().manual_seed(arguments.seed)
    )
    rows = [
        [
            neighbours_of(query, seen[name], unseen, of_unseen, title)
            for name, title in (
                ("character", "trained on characters"),
                ("family", "trained on families"),
                ("both", "trained on both"),
                ("both, without the families' span", "... without families' span"),
                ("both, in the families' span", "... in families' span"),
            )
        ]
        for query in drawn[:3].tolist()
    ]
    picture = arguments.out / "two_attributes.png"
    attribute_rows(rows, ("character", "font family"), picture)
    print(f"look at {picture}")


if __name__ == "__main__":
    main()
