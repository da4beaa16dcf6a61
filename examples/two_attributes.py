"""Two attributes in one embedding: which character it is, and of which font family.

A sample with several labels is a member of several classes, each with its field. Here every glyph
has two: its character and the family of its font. A narrow network is trained with MFCWMS on both
(multi-hot labels), on the character alone, and on the family alone; then images of characters that
nobody has trained on look for others of the same character, and of the same family.

Every class of a batch pulls the same in all, however many samples share it. So a batch holds eight
images of each of its characters, about as many as of each family; in shuffled batches most
characters stand alone and families are hardly learned (--per-class, --shuffled, --average).

The fields say more: the fields of the families span a few directions of the embedding. Seen in
these alone, or with these taken out, one embedding answers either question. The picture shows the
first seed, the table at the end all of them.

    python examples/two_attributes.py --seeds 0 1 2 --out docs/images
"""

import argparse
from collections.abc import Sequence
from typing import Any

import torch
from few_glyphs import (
    BATCH_SIZE,
    CWMS,
    EMBEDDING_SIZE,
    Glyphs,
    Row,
    at_least,
    batches_of,
    embed,
    markdown,
    new_network,
    options_from,
    options_of,
    scores,
    seed_by_seed,
    some_glyphs,
    tell,
    train,
)
from torch import Tensor
from torch.nn.functional import one_hot

from weiss import make_loss
from weiss.figures import Found, attribute_rows
from weiss.theory.distances import unit

FAMILIES = ("DejaVuSansMono", "DejaVuSans", "DejaVuSerif", "STIXGeneral", "cm")
SHOWN = 9
NOTHING = "nothing (random vectors)"
WITHOUT, WITHIN = "both, families' span taken out", "both, in the families' span"
SCORES = ("character_map_at_r", "character_p_at_1", "family_map_at_r", "family_p_at_1")


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


def train_and_look(
    known: Glyphs, unseen: Glyphs, seed: int, arguments: argparse.Namespace
) -> dict[str, Tensor]:
    """Return embeddings of the unseen characters, for each of the three ways to train."""
    of_known = families_of(known)
    characters = one_hot(known.characters, arguments.characters)
    trained_on = {
        "character": known.characters,
        "family": of_known,
        "both": torch.cat([characters, one_hot(of_known, len(FAMILIES))], dim=1),
    }
    torch.manual_seed(seed)
    seen = {NOTHING: torch.randn(len(unseen.images), EMBEDDING_SIZE)}
    for name, labels in trained_on.items():
        network = new_network(seed)
        num_classes = labels.shape[1] if labels.ndim == 2 else int(labels.max()) + 1
        options = CWMS | {"average": arguments.average}
        loss = make_loss("mf_cwms", num_classes, EMBEDDING_SIZE, **options)
        batches = batches_of(known, seed, per_class=arguments.per_class)
        train(network, loss, known.images, labels, batches, arguments.epochs)
        seen[name] = embed(network, unseen.images)
        if name == "both":
            inside, rest = parts(seen[name], loss.fields.detach()[-len(FAMILIES) :])
            seen[WITHOUT] = rest
            seen[WITHIN] = inside
    return seen


def tables(rows: Sequence[Row]) -> list[list[str]]:
    """Return the first table of docs/several_labels.md: scores in per cent, a number a seed."""
    lines = []
    for name in dict.fromkeys(row["trained_on"] for row in rows):
        of_name = [row for row in rows if row["trained_on"] == name]
        lines.append([name, *(seed_by_seed(of_name, score, "{:.1f}".format) for score in SCORES)])
    header = ["trained on", "character: MAP@R", "P@1", "family: MAP@R", "P@1"]
    return [markdown(header, lines)]


def read_options() -> argparse.Namespace:
    """Return the options, those that make no sense refused in words."""
    parser = options_of(__doc__ or "", characters=200, epochs=14)
    batches = parser.add_mutually_exclusive_group()
    batches.add_argument(
        "--per-class", type=at_least(1), default=8, help="images of a character in a batch"
    )
    batches.add_argument("--shuffled", action="store_true", help="any images in a batch")
    parser.add_argument("--average", choices=("classes", "samples"), default="classes")
    arguments = options_from(parser, characters=16, epochs=1, seeds=[0])
    if arguments.shuffled:
        arguments.per_class = None
        return arguments
    together, left = divmod(BATCH_SIZE, arguments.per_class)
    if left:
        parser.error(f"argument --per-class: must divide the batch size, {BATCH_SIZE}")
    if together > arguments.characters:
        parser.error(
            f"argument --per-class: a batch of {BATCH_SIZE} has {together} characters then, and "
            f"there are {arguments.characters} (--characters)"
        )
    return arguments


def main() -> None:
    """Train three networks, print how they retrieve by either attribute, and draw neighbours."""
    arguments = read_options()
    known = some_glyphs("train", arguments.characters)
    unseen = some_glyphs("test", arguments.characters)
    of_unseen = families_of(unseen)
    batches = "shuffled" if arguments.shuffled else f"{arguments.per_class} a character"
    print(
        f"{arguments.characters} characters train ({len(known.images)} images, "
        f"{arguments.epochs} epochs, batches: {batches}, average over {arguments.average}), "
        f"{arguments.characters} others test"
    )
    print(f"{'trained on':30} seed  character: MAP@R    P@1   family: MAP@R    P@1")
    rows: list[dict[str, Any]] = []
    drawn: dict[str, Tensor] = {}
    for seed in arguments.seeds:
        seen = train_and_look(known, unseen, seed, arguments)
        drawn = drawn or seen
        for name, embeddings in seen.items():
            ours = (*scores(embeddings, unseen.characters), *scores(embeddings, of_unseen))
            found = dict(zip(SCORES, ours, strict=True))
            rows.append({"trained_on": name, "seed": seed, **found})
            print(
                f"{name:30} {seed:4}  {ours[0]:16.1f}  {ours[1]:5.1f}  {ours[2]:14.1f}  "
                f"{ours[3]:5.1f}",
                flush=True,
            )
    print("\nIn per cent; seeds", *arguments.seeds)
    tell(arguments, rows, tables(rows))

    generator = torch.Generator().manual_seed(arguments.seeds[0])
    queries = torch.randperm(len(unseen.images), generator=generator)[:3].tolist()
    blocks = [
        [
            neighbours_of(query, drawn[name], unseen, of_unseen, title)
            for name, title in (
                ("character", "trained on characters"),
                ("family", "trained on families"),
                ("both", "trained on both"),
                (WITHOUT, "... without families' span"),
                (WITHIN, "... in families' span"),
            )
        ]
        for query in queries
    ]
    picture = arguments.out / "two_attributes.png"
    attribute_rows(blocks, ("character", "font family"), picture)
    print(f"look at {picture}")


if __name__ == "__main__":
    main()
