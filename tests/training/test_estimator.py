"""The estimator of scikit-learn: its contract, and that it is the trainer behind it."""

import pickle
import tempfile
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.datasets import make_blobs
from sklearn.model_selection import GridSearchCV
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.utils.estimator_checks import check_estimator
from tiny import settings, write_stripes

from weiss import EmbeddingEstimator, retrieval_metrics
from weiss._base.images import decode
from weiss._base.interrupts import StoppedError
from weiss.data import BadImagesError
from weiss.runs import Run, override_from, recipe_from
from weiss.training import estimator as estimator_module
from weiss.training import train

SETTINGS_OF_STRIPES = {
    ".".join(key): value for key, value in map(override_from, settings(train__epochs=1))
}
QUICK = {"epochs": 2, "embedding_size": 4, "device": "cpu"}


@pytest.fixture(scope="module")
def blobs():
    return make_blobs(60, 6, centers=3, random_state=0)


@pytest.fixture(scope="module")
def stripes(tmp_path_factory):
    folder = write_stripes(tmp_path_factory.mktemp("stripes"), num_classes=4, per_class=4)
    paths = sorted(map(str, folder.rglob("*.png")))
    labels = [Path(path).parent.name for path in paths]
    return folder, paths, labels, np.stack([decode(path) for path in paths])


@pytest.fixture(scope="module")
def fitted(stripes):
    _, paths, labels, _ = stripes
    return EmbeddingEstimator(settings=SETTINGS_OF_STRIPES).fit(paths, labels)


@pytest.mark.slow
def test_every_check_of_scikit_learn_passes():
    found = check_estimator(EmbeddingEstimator(**QUICK), on_skip=None)
    assert len(found) > 40
    skipped = {each["check_name"] for each in found if each["status"] != "passed"}
    assert skipped <= {"check_array_api_input"}  # for arrays of other libraries


def test_a_fit_is_the_run_of_the_same_recipe_to_the_last_bit(stripes, fitted, tmp_path):
    folder, *_ = stripes
    recipe = recipe_from(folder, {**SETTINGS_OF_STRIPES, "data.split": "all"})
    train(recipe, tmp_path / "run", quiet=True, pictures=False)
    ran = Run(tmp_path / "run").model().state_dict()
    own = fitted.model_.state_dict()
    assert own.keys() == ran.keys()
    assert all(torch.equal(own[name], ran[name]) for name in own)


def test_paths_and_pixels_of_the_same_images_get_the_same_embeddings(stripes, fitted):
    _, paths, _, pixels = stripes
    vectors = fitted.transform(pixels)
    assert vectors.shape == (16, 16)
    assert vectors.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-6)
    np.testing.assert_array_equal(vectors, fitted.transform(paths))
    np.testing.assert_array_equal(vectors, fitted.transform(np.array(paths)))
    channels_first = torch.from_numpy(pixels).permute(0, 3, 1, 2)
    np.testing.assert_array_equal(vectors, fitted.transform(channels_first))


def test_the_score_is_the_recipes_metric_of_a_search_among_the_items(stripes, fitted):
    _, paths, labels, _ = stripes
    codes = torch.tensor(np.unique(labels, return_inverse=True)[1])
    found = retrieval_metrics(torch.from_numpy(fitted.transform(paths)), codes)
    assert fitted.score(paths, labels) == pytest.approx(found["map_at_r"])
    assert list(fitted.classes_) == ["class0", "class1", "class2", "class3"]


def test_a_classifier_follows_in_a_pipeline_and_settings_are_searched(blobs):
    X, y = blobs
    pipeline = make_pipeline(EmbeddingEstimator(**QUICK), KNeighborsClassifier(3))
    search = GridSearchCV(pipeline, {"embeddingestimator__lr": [1e-3, 1e-2]}, cv=2).fit(X, y)
    assert (
        search.best_estimator_[0].recipe_.optim.lr == search.best_params_["embeddingestimator__lr"]
    )
    assert search.score(X, y) > 0.8  # three blobs far apart


def test_a_saved_run_and_a_pickle_embed_as_the_estimator_does(blobs, tmp_path):
    X, y = blobs
    estimator = EmbeddingEstimator(**QUICK, loss="proxy_anchor").fit(X, y, out=tmp_path / "run")
    vectors = estimator.transform(X)
    saved = EmbeddingEstimator.from_run(tmp_path / "run", device="cpu")
    np.testing.assert_array_equal(saved.transform(X), vectors)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(estimator)).transform(X), vectors)
    assert list(saved.classes_) == ["0", "1", "2"]
    assert saved.n_features_in_ == 6
    assert clone(saved).fit(X, y).recipe_ == estimator.recipe_
    with pytest.raises(ValueError, match="must name a folder without a run"):
        estimator.fit(X, y, out=tmp_path / "run")


def test_nothing_stays_on_disk_unless_a_folder_is_named(blobs, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    EmbeddingEstimator(**QUICK).fit(*blobs)
    assert not list(tmp_path.iterdir())


def test_labels_may_be_several_an_item(blobs):
    X, y = blobs
    hot = np.eye(4, dtype=int)[y]
    hot[:, 3] = np.arange(len(y)) % 2
    estimator = EmbeddingEstimator(**QUICK).fit(X, hot)
    assert estimator.recipe_.backbone.embedding_size == 4
    assert 0 < estimator.score(X, hot) <= 1


def test_ctrl_c_is_what_callers_of_fit_expect(blobs, monkeypatch):
    def stopped(*_, **__):
        raise StoppedError("in epoch 1")

    monkeypatch.setattr(estimator_module, "train", stopped)
    with pytest.raises(KeyboardInterrupt, match="in epoch 1"):
        EmbeddingEstimator(**QUICK).fit(*blobs)


def test_every_item_gets_a_row_or_an_error_names_it(stripes, fitted, tmp_path):
    _, paths, *_ = stripes
    lenient = clone(fitted).set_params(settings={**SETTINGS_OF_STRIPES, "data.skip_bad": True})
    lenient.fit(*stripes[1:3])
    bad = tmp_path / "bad.png"
    bad.write_bytes(b"nothing")
    with pytest.raises(BadImagesError, match="bad.png"):
        lenient.transform([*paths, str(bad)])


def test_what_cannot_be_embedded_is_refused_with_a_remedy(stripes, fitted, blobs):
    folder, paths, labels, pixels = stripes
    with pytest.raises(ValueError, match="list of paths, not one path"):
        fitted.transform(str(folder))
    with pytest.raises(ValueError, match="must be images, .* got an array of shape \\(60, 6\\)"):
        fitted.transform(blobs[0])
    with pytest.raises(ValueError, match="uint8 of shape .* got float64"):
        fitted.transform(pixels / 255)
    with pytest.raises(ValueError, match="requires y"):
        EmbeddingEstimator().fit(paths, None)
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        EmbeddingEstimator().fit(paths, labels[:3])
    with pytest.raises(ValueError, match="loss.name must be one of .*Did you mean 'mf_cwms'"):
        EmbeddingEstimator(loss="mf_cmws").fit(*blobs)
    with pytest.raises(
        ValueError, match="train.epochs must have one value; got 2 .* 3 by settings"
    ):
        EmbeddingEstimator(epochs=2, settings={"train.epochs": 3}).fit(*blobs)
    with pytest.raises(TypeError, match="settings must be a dictionary .* got .'loss.delta=1'."):
        EmbeddingEstimator(settings=["loss.delta=1"]).fit(*blobs)
    features = EmbeddingEstimator(**QUICK).fit(*blobs)
    with pytest.raises(ValueError, match="must be a matrix of features"):
        features.transform(paths)
