"""Bad input: each mistake gets a message that says what must hold, what came, what to do."""

import pytest
import torch
from budgets import OURS

import weiss
from weiss import MeanFieldClassWiseMultiSimilarityLoss, MeanFieldContrastiveLoss
from weiss.losses import Contrastive

EACH_FORM = ["contrastive", "mf_cwms"]
X = torch.randn(4, 3)
Y = torch.tensor([0, 1, 1, 2])


def loss_named(name, **arguments):
    return weiss.make_loss(name, 5, 3, **arguments)


BAD_FOR_ALL = {
    "list of labels": (X, [0, 1, 1, 2], TypeError, "labels must be a torch.Tensor .* got list"),
    "array": (X.numpy(), Y, TypeError, "embeddings must be a torch.Tensor .* got ndarray"),
    "float labels": (X, Y.float(), TypeError, r"integer class indices .*float32.*labels.long\(\)"),
    "bool labels": (X, Y.bool(), TypeError, "integer class indices .* got torch.bool"),
    "too few labels": (X, Y[:3], ValueError, r"one row for each of the 4 embeddings .* \(3,\)"),
    "3-d labels": (X, Y[:, None, None], ValueError, r"labels must have shape \(4,\) or"),
    "3-d embeddings": (X[None], Y, ValueError, r"shape \(batch, embedding_size\).*\(1, 4, 3\)"),
    "1-d embeddings": (X[0], Y, ValueError, r"shape \(batch, embedding_size\).*got \(3,\)"),
    "integer embeddings": (X.long(), Y, TypeError, "must be floating point .* got torch.int64"),
    "empty batch": (X[:0], Y[:0], ValueError, r"at least one row .* \(0, 3\).*Skip empty"),
    "labels elsewhere": (X, Y.to("meta"), ValueError, "labels must be on cpu.*got meta"),
    "sparse": (X, torch.eye(4).to_sparse(), TypeError, "labels must be a dense .*sparse_coo"),
    "complex": (X, torch.eye(4) * 1j, TypeError, "dense tensor of real numbers .*complex64"),
    "half-hot": (X, torch.full((4, 5), 0.5), ValueError, "must be 0 or 1 .* got 0.5"),
    "counts": (X, torch.full((4, 5), 2), ValueError, "must be 0 or 1 .* got 2"),
    "nan label": (X, torch.full((4, 5), float("nan")), ValueError, "must be 0 or 1 .* got nan"),
    "no class": (
        X,
        torch.tensor([[1, 0, 0, 0, 0], [0] * 5, [1] * 5, [0] * 5]),
        ValueError,
        "at least one class .*row 1 of",
    ),
}


@pytest.mark.parametrize("name", EACH_FORM)
@pytest.mark.parametrize("mistake", BAD_FOR_ALL)
def test_a_bad_batch_is_refused_with_the_name_of_the_loss(name, mistake):
    embeddings, labels, error, message = BAD_FOR_ALL[mistake]
    loss = loss_named(name)
    with pytest.raises(error, match=message) as caught:
        loss(embeddings, labels)
    assert type(loss).__name__ in str(caught.value)


BAD_FOR_FIELDS = {
    "label too large": (
        X,
        Y + 3,
        r"^labels must lie in \[0, 5\) for MeanFieldClassWiseMultiSimilarityLoss; got 5\. "
        r"Re-index classes from 0 or raise num_classes\.$",
    ),
    "label far too large": (X, Y * 1000, r"labels must lie in \[0, 5\) .*; got 2000\."),
    "negative label": (X, Y - 1, r"labels must lie in \[0, 5\) .*; got -1\."),
    "embedding size": (torch.randn(4, 7), Y, "must have 3 columns.*got 7.*embedding_size=7"),
    "multi-hot width": (X, torch.eye(4), r"shape \(4, 5\) .*; got \(4, 4\)"),
    "a column of labels": (X, Y[:, None], r"got \(4, 1\).*pass labels.squeeze\(1\)"),
    "embeddings elsewhere": (X.to("meta"), Y, r"must be on cpu.*got meta.*loss.to\('meta'\)"),
}


@pytest.mark.parametrize("mistake", BAD_FOR_FIELDS)
def test_a_batch_that_does_not_fit_the_fields_is_refused(mistake):
    embeddings, labels, message = BAD_FOR_FIELDS[mistake]
    loss = loss_named("mf_cwms")
    with pytest.raises(ValueError, match=message):
        loss(embeddings, labels)
    if mistake == "embedding size":  # logits check their embeddings too
        with pytest.raises(ValueError, match=message):
            loss.get_logits(embeddings)


@pytest.mark.parametrize("name", EACH_FORM)
@pytest.mark.parametrize(
    ("bad", "labels"), [(float("nan"), Y), (float("inf"), torch.eye(5)[Y])], ids=["nan", "inf"]
)
def test_embeddings_that_are_not_finite_are_refused_with_their_rows(name, bad, labels):
    embeddings = X.clone()
    embeddings[1, 2] = embeddings[3, 0] = bad
    with pytest.raises(ValueError, match=r"must be finite .* 2 of 4 rows \(1, 3\).*check=False"):
        loss_named(name)(embeddings, labels)


@pytest.mark.parametrize("name", OURS)
def test_without_checks_a_nan_passes_through(name):
    embeddings = X.clone()
    embeddings[1, 2] = float("nan")
    assert loss_named(name, check=False)(embeddings, Y).isnan()


def test_more_labels_than_promised_are_refused():
    loss = MeanFieldContrastiveLoss(5, 3, max_labels_per_sample=2)
    with pytest.raises(ValueError, match="at most max_labels_per_sample=2 .* one has 5"):
        loss(X, torch.ones(4, 5))


EUCLIDEAN_COSINE = {"delta_as": "cosine", "distance": "euclidean"}
BAD_ARGUMENTS = [
    ("mf_contrastive", {"distance": "cosin"}, ValueError, "distance must be .*mean 'cosine'"),
    ("mf_contrastive", {"average": "sample"}, ValueError, "average .*mean 'samples'"),
    ("mf_contrastive", {"impl": "referense"}, ValueError, "impl .*mean 'reference'"),
    ("mf_contrastive", {"check": "yes"}, TypeError, "check must be True or False .*'yes'"),
    ("mf_contrastive", {"reg_weight": -1}, ValueError, "reg_weight must be zero or more .*-1"),
    ("mf_contrastive", {"reg_scale": "papers"}, ValueError, "reg_scale .*mean 'paper'"),
    ("mf_contrastive", {"pos_margin": "0.02"}, TypeError, "pos_margin must be a number; got"),
    ("contrastive", {"neg_margin": float("nan")}, ValueError, "neg_margin must be finite; got nan"),
    ("mf_cwms", {"beta": -80}, ValueError, "beta must be greater than 0; got -80"),
    ("mf_cwms", {"alpha": 0}, ValueError, "alpha must be greater than 0; got 0"),
    ("cwms", {"delta": float("inf")}, ValueError, "delta must be finite .*inf"),
    ("cwms", {"delta_as": "angle"}, ValueError, "delta_as must be one of 'distance', 'cosine'"),
    ("binomial", {"beta": True}, TypeError, "beta must be a number; got True"),
    ("cwms", {"delta": 1e36}, ValueError, "delta must be at most 1e\\+09 in size; got 1e\\+36"),
    ("mf_cwms", {"max_labels_per_sample": 0}, ValueError, "max_labels_per_sample must be at"),
    ("cwms", EUCLIDEAN_COSINE, ValueError, "delta_as must be 'distance' .*distance='euclidean'"),
    ("mf_cwms", EUCLIDEAN_COSINE, ValueError, "delta_as must be 'distance' .*distance='euclidean'"),
    ("ms", {"betta": 1.0}, TypeError, "MultiSimilarityLoss has no argument 'betta'.*mean 'beta'"),
    ("arcface", {"margin": "28"}, TypeError, "margin must be a number for ArcFaceLoss; got '28'"),
    ("ms_miner", {"epsilon": "0.1"}, TypeError, "epsilon must be a number .*; got '0.1'"),
    ("triplet", {"margin": float("inf")}, ValueError, "margin must be finite .*; got inf"),
]


@pytest.mark.parametrize(("name", "arguments", "error", "message"), BAD_ARGUMENTS)
def test_an_argument_without_a_meaning_is_refused(name, arguments, error, message):
    with pytest.raises(error, match=message):
        loss_named(name, **arguments)


@pytest.mark.parametrize(
    ("sizes", "error", "message"),
    [
        ((0, 3), ValueError, "num_classes must be at least 1 .*got 0"),
        ((5, 0), ValueError, "embedding_size must be at least 1 .*got 0"),
        ((5.0, 3), TypeError, "num_classes must be a whole number .*got 5.0"),
    ],
)
@pytest.mark.parametrize("name", ["mf_cwms", "proxy_anchor"])
def test_sizes_must_be_positive_whole_numbers(name, sizes, error, message):
    with pytest.raises(error, match=message):
        weiss.make_loss(name, *sizes)


def test_an_unknown_loss_gets_a_suggestion():
    with pytest.raises(ValueError, match=r"name must be one of .* Did you mean 'mf_contrastive'\?"):
        weiss.make_loss("mf_contrastiv", 5, 3)


@pytest.mark.parametrize("name", EACH_FORM)
@pytest.mark.parametrize(
    ("argument", "remedy"),
    [
        ("indices_tuple", "Remove the miner"),
        ("ref_emb", "Pass one batch"),
        ("ref_labels", "Pass one batch"),
    ],
)
def test_what_the_common_signature_has_and_the_loss_cannot_use_is_refused(name, argument, remedy):
    with pytest.raises(ValueError, match=f"{argument} must be None for .*{remedy}"):
        loss_named(name)(X, Y, **{argument: (Y, Y, Y)})


def test_an_unknown_keyword_gets_a_suggestion():
    with pytest.raises(TypeError, match="Loss has no argument 'betta'. Did you mean 'beta'") as e:
        MeanFieldClassWiseMultiSimilarityLoss(5, 3, betta=0.1)
    assert "MeanFieldClassWiseMultiSimilarityLoss" in str(e.value)
    with pytest.raises(TypeError, match="ContrastiveLoss has no argument 'avarage'.*'average'"):
        weiss.ContrastiveLoss(avarage="samples")


@pytest.mark.parametrize("form", [weiss.PairLoss, lambda given: weiss.MeanFieldLoss(given, 5, 3)])
@pytest.mark.parametrize("given", ["contrastive", Contrastive])
def test_a_description_must_be_an_instance(form, given):
    with pytest.raises(TypeError, match=r"instance of weiss.theory.Interactions .*not Sq"):
        form(given)


def test_a_column_of_class_indices_gets_the_right_advice():
    for labels in (Y[:, None], torch.ones(4, 1)):
        with pytest.raises(ValueError, match=r"got \(4, 1\).*pass labels.squeeze\(1\)"):
            loss_named("contrastive")(X, labels)
    with pytest.raises(ValueError, match=r"row 0 .* pass labels.squeeze\(1\)"):
        MeanFieldContrastiveLoss(1, 3)(X, torch.zeros(4, 1))
