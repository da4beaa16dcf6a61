"""An embedding as an estimator of scikit-learn: the trainer behind ``fit`` and ``transform``.

Nothing imports this file but the name `weiss.EmbeddingEstimator`, so that scikit-learn is loaded
only where it is used.

Dimensions: N items, F features, D embedding size.
"""

import numbers
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Self

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils import check_random_state, column_or_1d
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_consistent_length, check_is_fitted, validate_data

from weiss._base.arrays import Array
from weiss._base.interrupts import StoppedError
from weiss.backbones import Embedder
from weiss.data.own_data import labels_of_arrays, pixels_of_arrays
from weiss.data.sources import Files, Pixels, Source, Vectors
from weiss.data.table import Table
from weiss.evaluation import evaluate_retrieval
from weiss.runs import Recipe, Run, recipe_from, recipe_from_dict, recipe_with
from weiss.runs.evaluate import device_to_embed_on, make_evaluator, precision_on
from weiss.runs.overrides import SHORT, with_options
from weiss.training.trainer import train

IMAGES = "photos"
"""The recipe for images, unless another is named."""
FEATURES: dict[str, Any] = {
    "backbone.name": "features",
    "backbone.embedding_size": 64,
    "backbone.head": "relu",
    "loss.name": "mf_contrastive",
    "optim.lr": 3e-3,
    "optim.class_lr": 0.1,
    "schedule.name": "cosine",
    "train.epochs": 40,
    "train.batch_size": "auto",
    "train.warmup_epochs": 0,
}
"""What a recipe for a matrix of features has in place of the defaults.

Chosen among ten settings by MAP@R on held-out classes. Where many classes train (two thirds of 160
glyphs, by their pixels) it rises from 0.22 to 0.42; where seven digits train, it falls for the
other three, with every setting (0.57 to 0.47, 0.72 to 0.68): so few say little about new ones.
"""
EVERYTHING_TRAINS = {"data.split": "all", "data.min_images": 1, "train.patience": 0}
"""Who calls ``fit`` has split the data before."""


class EmbeddingEstimator(
    ClassNamePrefixFeaturesOutMixin,  # type: ignore[misc]
    TransformerMixin,  # type: ignore[misc]
    BaseEstimator,  # type: ignore[misc]
):
    """Learn an embedding in which items of one class are near, as scikit-learn's estimators do.

    ``fit`` trains by a recipe, exactly as ``weiss train`` does; ``transform`` embeds; ``score``
    searches. What is embedded is one of

    - images in memory, uint8 ``(N, H, W, 3)``, ``(N, H, W, 1)`` or ``(N, H, W)``,
    - a list of the paths of N image files, or
    - a matrix of features ``(N, F)``.

    Args:
        recipe: a name, a file or a run folder, as for `weiss.runs.recipe_from`. None is the recipe
            ``photos`` for images (a ResNet-50 that starts from ImageNet and trains as a whole, on a
            CPU too; ``settings={"backbone.train": "frozen"}`` trains its head alone), and for
            features two layers, with the settings of `FEATURES`.
        loss: short for the setting ``loss.name``. As for all that follow, None is the recipe's.
        embedding_size: D, short for ``backbone.embedding_size``.
        epochs: short for ``train.epochs``.
        lr: short for ``optim.lr``.
        batch_size: short for ``train.batch_size``.
        backbone: short for ``backbone.name``.
        weights: short for ``backbone.weights``.
        settings: further settings of the recipe by their keys, ``{"loss.neg_margin": 0.5}``. All
            items train unless ``data.split`` says otherwise.
        device: where to compute: ``"auto"``, ``"cpu"``, ``"cuda"``.
        random_state: the seed; None is the recipe's, so that two fits agree.
        verbose: print a line an epoch.

    Attributes:
        model_: the network, from batches of images or features to ``(N, D)`` of unit length.
        recipe_: the complete recipe of the fit.
        result_: what ``result.json`` of the run holds.
        classes_: the sorted labels, or the numbers of the columns of multi-hot labels.
        n_features_in_: F; for features only.

    Example:
        >>> from sklearn.datasets import load_digits
        >>> from weiss import EmbeddingEstimator
        >>> pixels, digits = load_digits(return_X_y=True)
        >>> estimator = EmbeddingEstimator(embedding_size=8, epochs=1).fit(pixels, digits)
        >>> estimator.transform(pixels).shape
        (1797, 8)
    """

    def __init__(
        self,
        recipe: str | Path | None = None,
        *,
        loss: str | None = None,
        embedding_size: int | None = None,
        epochs: int | None = None,
        lr: float | None = None,
        batch_size: int | str | None = None,
        backbone: str | None = None,
        weights: str | Path | None = None,
        settings: Mapping[str, Any] | None = None,
        device: str = "auto",
        random_state: Any = None,
        verbose: bool = False,
    ) -> None:
        self.recipe = recipe
        self.loss = loss
        self.embedding_size = embedding_size
        self.epochs = epochs
        self.lr = lr
        self.batch_size = batch_size
        self.backbone = backbone
        self.weights = weights
        self.settings = settings
        self.device = device
        self.random_state = random_state
        self.verbose = verbose

    def fit(self, X: Any, y: Any, *, out: str | Path | None = None) -> Self:
        """Train on N items and their labels.

        Args:
            X: images, paths or features.
            y: ``(N,)`` labels, numbers or text; or multi-hot ``(N, C)`` for several classes an
                item.
            out: the run folder to write, for `from_run`, ``weiss index`` and ``weiss export``; by
                default nothing stays on disk.
        """
        source, y = self._checked(X, y)
        recipe = self._recipe(is_vectors=isinstance(source, Vectors))
        table = recipe.data.how.table(recipe.data.name, source, labels_of_arrays(y, "y"))
        try:
            if out is not None:
                self._train(recipe, table, Path(out))
            else:
                with TemporaryDirectory(prefix="weiss-fit-") as folder:
                    self._train(recipe, table, Path(folder) / "run")
        except StoppedError as stopped:  # Ctrl-C, which callers of fit know by another name
            raise KeyboardInterrupt(str(stopped)) from None
        self.classes_ = np.unique(y) if y.ndim == 1 else np.arange(y.shape[1])
        return self

    def transform(self, X: Any) -> Array:
        """Return the embeddings ``(N, D)`` of N items: float32, of unit length."""
        check_is_fitted(self, "model_")
        source, _ = self._checked(X, is_fitted=True)
        number = len(source)
        rows = np.arange(number)
        table = Table("X", source, np.zeros(number, np.int64), ("-",), np.full(number, "test"))
        device = device_to_embed_on(self.device)
        # A row for each item: none may be left out.
        recipe = recipe_with(self.recipe_, {"data.skip_bad": False})
        try:
            model = self.model_.to(device)
            evaluator = make_evaluator(recipe, table, model.input, device)
            found = evaluator.embed(model, rows, precision=precision_on(device, recipe))
        finally:
            self.model_.to("cpu")  # where it can be pickled for any machine
        vectors: Array = found.float().cpu().numpy()
        return vectors

    def score(self, X: Any, y: Any) -> float:
        """Return how well each of N items finds the others of its class among them.

        The metric is ``evaluate.metric`` of the recipe, by default MAP@R in 0..1.
        """
        vectors = torch.from_numpy(self.transform(X))
        y = _labels(y)
        check_consistent_length(vectors, y)
        labels = y if y.ndim == 2 else np.unique(y, return_inverse=True)[1]
        found = evaluate_retrieval(vectors, torch.from_numpy(np.ascontiguousarray(labels)))
        return float(found.summary()[self.recipe_.evaluate.metric])

    @classmethod
    def from_run(cls, folder: str | Path, *, device: str = "auto", trust: bool = False) -> Self:
        """Return an estimator with the network of a run folder, ready to embed; nothing is pickled.

        Args:
            folder: what `fit` or ``weiss train`` wrote. If fitted again, its recipe is used.
            device: where to compute.
            trust: as for `weiss.runs.Run`.
        """
        estimator, run = cls(recipe=str(folder), device=device), Run(folder, trust=trust)
        estimator._load(run)
        names = (run.model_facts() or {}).get("class_names", ())
        estimator.classes_ = np.array(names, dtype=object)
        if estimator.recipe_.backbone.name == "features":
            estimator.n_features_in_ = estimator.model_.trunk.num_features
        return estimator

    def __sklearn_tags__(self) -> Any:
        """Return what scikit-learn may expect: labels are needed, embeddings are float32."""
        tags = super().__sklearn_tags__()
        tags.target_tags.required = True
        tags.target_tags.multi_output = True
        tags.transformer_tags.preserves_dtype = ["float32"]
        return tags

    @property
    def _n_features_out(self) -> int:
        return self.model_.embedding_size

    def _train(self, recipe: Recipe, table: Table, out: Path) -> None:
        train(recipe, out, quiet=not self.verbose, pictures=False, data=table)
        self._load(Run(out, trust=True))  # it was made here

    def _load(self, run: Run) -> None:
        self.recipe_ = recipe_from_dict(run.recipe())
        self.result_ = run.result()
        self.model_: Embedder = run.model()

    def _recipe(self, *, is_vectors: bool) -> Recipe:
        defaults = FEATURES if is_vectors and self.recipe is None else {}
        given = {key: getattr(self, name) for name, key in SHORT.items()}
        given["backbone.weights"] = None if self.weights is None else str(self.weights)
        given["train.device"] = None if self.device == "auto" else self.device
        given["seed"] = None if self.random_state is None else _seed(self.random_state)
        settings = {} if self.settings is None else self.settings
        if not isinstance(settings, Mapping):
            raise TypeError(
                f"settings must be a dictionary of keys of a recipe; got {settings!r}. For example "
                '{"loss.neg_margin": 0.5}.'
            )
        given = with_options(given, settings, "settings")
        changes = {**EVERYTHING_TRAINS, **defaults, **given}
        return recipe_from(
            IMAGES if self.recipe is None else self.recipe,
            {**changes, "data.name": "features" if is_vectors else "images"},
        )

    def _checked(self, X: Any, y: Any = None, *, is_fitted: bool = False) -> tuple[Source, Array]:
        """Return items as a source, and labels as an array; refuse what they cannot be."""
        source = _images(X)
        if is_fitted:
            wants = self.recipe_.backbone.name == "features"
            if source is not None and wants:
                raise ValueError(
                    "X must be a matrix of features (N, F), on which this EmbeddingEstimator was "
                    "fitted; got images. Pass features, or fit on images."
                )
            if source is None and not wants:
                raise ValueError(
                    "X must be images, (N, H, W, 3) or a list of paths, on which this "
                    f"EmbeddingEstimator was fitted; got {_kind(X)}. Pass images, or fit on "
                    "features."
                )
        if source is None:
            checked = validate_data(
                self,
                X,
                "no_validation" if is_fitted else y,
                reset=not is_fitted,
                dtype=np.float32,
                **({} if is_fitted else {"multi_output": True, "ensure_min_samples": 2}),
            )
            X, y = (checked, y) if is_fitted else checked
            source = Vectors(X)
        elif not is_fitted and y is None:
            raise ValueError("fit requires y to be passed: a label for each image; got None.")
        if is_fitted:
            return source, np.empty(0)
        y = _labels(y)
        check_consistent_length(np.empty(len(source)), y)
        return source, y


def _images(given: Any) -> Source | None:
    """Return images in memory or in files as a source; None for anything else, for features."""
    if isinstance(given, (str, Path)):
        raise ValueError(
            f"X must be a list of paths, not one path; got {str(given)!r}. Pass a list, or train "
            "on a folder: weiss train FOLDER"
        )
    dimensions = getattr(given, "ndim", None)
    if dimensions in (3, 4):
        return Pixels(pixels_of_arrays(given))
    if dimensions == 1 or (dimensions is None and isinstance(given, Sequence)):
        listed = list(given)  # of an array or a column of a data frame, too
        if listed and all(isinstance(each, (str, Path)) for each in listed):
            return Files(".", [str(each) for each in listed])
    return None


def _kind(given: Any) -> str:
    shape = getattr(given, "shape", None)
    return type(given).__name__ if shape is None else f"an array of shape {tuple(shape)}"


def _labels(given: Any) -> Array:
    """Return labels ``(N,)`` or ``(N, C)`` as an array; refuse continuous ones."""
    y = np.asarray(given.detach().cpu() if isinstance(given, torch.Tensor) else given)
    if y.ndim != 2 or y.shape[1] == 1:
        y = column_or_1d(y, warn=True)
    check_classification_targets(y)
    return y


def _seed(random_state: Any) -> int:
    if isinstance(random_state, numbers.Integral):
        return int(random_state)
    return int(check_random_state(random_state).randint(2**31 - 1))
