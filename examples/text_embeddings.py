"""Losses do not care what is embedded: sentences, by the letters in them, grouped by language.

A sentence is a bag of letter pairs, the network one vector for each, averaged. Sentences that did
not train look for the nearest of those that did; right is one in the same language.

    python examples/text_embeddings.py
"""

import argparse
from zlib import crc32

import torch
from torch import Tensor, nn

from weiss import MeanFieldContrastiveLoss, parameter_groups, retrieval_metrics

SENTENCES = {
    "English": "it rains since this morning/where is the next station/we have eaten too much bread"
    "/my brother plays the violin/she writes a long letter/the night was cold and clear"
    "/nobody knows the answer yet/please close the window/the children sleep upstairs"
    "/tomorrow we go to the sea/this house is very old/I would like a glass of water",
    "German": "seit heute morgen regnet es/wo ist der nächste Bahnhof/wir haben zu viel Brot "
    "gegessen/mein Bruder spielt Geige/sie schreibt einen langen Brief/die Nacht war kalt und klar"
    "/noch weiß niemand die Antwort/bitte schließ das Fenster/die Kinder schlafen oben"
    "/morgen fahren wir ans Meer/dieses Haus ist sehr alt/ich möchte gern ein Glas Wasser",
    "French": "il pleut depuis ce matin/où est la prochaine gare/nous avons mangé trop de pain"
    "/mon frère joue du violon/elle écrit une longue lettre/la nuit était froide et claire"
    "/personne ne connaît encore la réponse/ferme la fenêtre s'il te plaît"
    "/les enfants dorment en haut/demain nous allons à la mer/cette maison est très vieille"
    "/je voudrais un verre d'eau",
    "Italian": "piove da questa mattina/dov'è la prossima stazione/abbiamo mangiato troppo pane"
    "/mio fratello suona il violino/lei scrive una lunga lettera/la notte era fredda e chiara"
    "/nessuno sa ancora la risposta/chiudi la finestra per favore/i bambini dormono di sopra"
    "/domani andiamo al mare/questa casa è molto vecchia/vorrei un bicchiere d'acqua",
}
NUM_PAIRS, EMBEDDING_SIZE = 1024, 32


def letter_pairs(sentences: list[str]) -> tuple[Tensor, Tensor]:
    """Return the letter pairs of all sentences in a row, and where each sentence begins."""
    texts = [f" {sentence.lower()} " for sentence in sentences]
    pairs = [crc32(text[at : at + 2].encode()) for text in texts for at in range(len(text) - 1)]
    starts = torch.tensor([0, *(len(text) - 1 for text in texts[:-1])]).cumsum(0)
    return torch.tensor(pairs) % NUM_PAIRS, starts


def main() -> None:
    """Train, and measure before and after with sentences that did not train."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer steps")
    steps = 60 if parser.parse_args().quick else 200

    torch.manual_seed(0)
    texts = {name: words.split("/") for name, words in SENTENCES.items()}
    known = letter_pairs([text for each in texts.values() for text in each[:8]])
    asked = letter_pairs([text for each in texts.values() for text in each[8:]])
    known_labels = torch.arange(len(texts)).repeat_interleave(8)
    asked_labels = torch.arange(len(texts)).repeat_interleave(4)

    network = nn.EmbeddingBag(NUM_PAIRS, EMBEDDING_SIZE)
    nn.init.normal_(network.weight, std=0.1)  # pairs that never train should not be loud
    loss = MeanFieldContrastiveLoss(len(texts), EMBEDDING_SIZE)
    optimizer = torch.optim.AdamW(parameter_groups(network, loss, lr=1e-2, class_lr=0.5))

    def precision() -> float:
        with torch.no_grad():
            found = retrieval_metrics(network(*asked), asked_labels, network(*known), known_labels)
        return found["precision_at_1"]

    before = precision()
    for _ in range(steps):
        optimizer.zero_grad()
        loss(network(*known), known_labels).backward()
        optimizer.step()
    print(f"new sentences, P@1: {before:.2f} before training, {precision():.2f} after")


if __name__ == "__main__":
    main()
