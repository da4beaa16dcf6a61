"""The two shapes every loss of the derivation comes in: over pairs, and over mean fields.

`PairLoss` and `MeanFieldLoss` take any `weiss.theory.Interactions`; the named losses are
these two with a description filled in. Both are called like the losses of pytorch-metric-learning
and are plain modules otherwise: no hooks, no global state, parameters never rewritten in `forward`.

Precision: distances and all that follows are computed in at least float32, also under autocast,
because an exponent of 80 times a bfloat16 distance is noise. Gradients arrive in the dtype of the
embeddings and of the fields. (TF32, where it is allowed, applies: see `weiss.theory.distances`.)
"""

from abc import ABC, abstractmethod
from inspect import signature
from typing import Any, NotRequired, TypedDict, Unpack

import torch
from torch import Tensor, nn

from weiss._base import checks
from weiss.kernels.cuda_graphs import CudaGraphs
from weiss.kernels.dispatch import compute
from weiss.kernels.plan import IMPLEMENTATIONS, MATMUL_DTYPES, REFERENCE, SKIPS, Plan, make_plan
from weiss.kernels.problem import Problem, Shard, Task
from weiss.losses.parameter_groups import FIELD_LR_SCALE
from weiss.theory import fluctuations as beyond
from weiss.theory.derivation import AVERAGES, mean_field_loss, pair_loss, soft_constraint
from weiss.theory.distances import DISTANCES, working_dtype
from weiss.theory.interactions import Interactions
from weiss.theory.membership import Membership, members_of_a_batch
from weiss.theory.sublattices import (
    DEFAULT_GAMMA,
    by_class,
    by_pair,
    each_of,
    rows_of,
    soft_minimum,
)

REG_SCALES = ("paper", "released")
FIELDS_AT_A_TIME = 8192
"""Fields of other processes that `get_logits` receives at a time."""


class PairOptions(TypedDict):
    """Keyword arguments that every loss of the derivation takes, with their defaults.

    Attributes:
        average: ``"classes"`` (the paper's equations) weighs every class of the batch the same;
            ``"samples"`` (the released program) weighs every sample the same, by putting the
            mean class size of the batch for each ``n_c``. They agree on balanced batches.
            ``"none"`` puts 1: sums in the place of averages.
        check: test the values of labels and embeddings (range, NaN; not of fields), which costs a
            transfer from the device each step. False tests nothing: a label out of range, a sample
            without a class or with more than ``max_labels_per_sample`` then gives a wrong value
            without a message.
        impl: ``"auto"`` or ``"reference"``, the plain formula; for mean-field losses also
            ``"streaming"`` and ``"triton"``, see `weiss.kernels.plan`; the same up to rounding.
    """

    average: NotRequired[str]
    check: NotRequired[bool]
    impl: NotRequired[str]


class MeanFieldOptions(PairOptions):
    """Further keyword arguments of the mean-field losses.

    Attributes:
        reg_scale: scale of the soft constraint on the fields, ``"paper"`` or ``"released"``
            (there divided by ``beta**2``; the same for losses without beta).
        max_labels_per_sample: the most classes one sample has in multi-hot labels. Only needed
            with ``check=False`` to do without any transfer; otherwise found in the labels.
        skip: ``"on"`` skips (sample, class) pairs beyond the reach of a hinge, whose gradient is
            zero; ``"auto"`` does so where there are very many pairs (2^18 on a CPU, 2^25 on a GPU,
            where the host then waits for one number each step, except inside a CUDA graph).
        matmul_dtype: ``"bfloat16"`` rounds the factors of the three large matrix products, on a
            CUDA device, with sums in float32; gradients have two or three digits. Never by
            autocast.
        fluctuations: ``"second"`` adds what spread costs, see `weiss.theory.fluctuations`.
        fields_per_class: S, how many fields a class has. The distance to a class is the soft
            minimum of those to its fields, see `weiss.theory.sublattices`. Several are refused
            with ``skip="on"``, ``matmul_dtype="bfloat16"`` or ``fluctuations="second"``.
        fields_gamma: inverse temperature of that soft minimum, greater than 0; 80 by default. Must
            be left out for one field a class.
    """

    reg_scale: NotRequired[str]
    skip: NotRequired[str]
    matmul_dtype: NotRequired[str]
    fluctuations: NotRequired[str]
    fields_per_class: NotRequired[int]
    fields_gamma: NotRequired[float | None]
    max_labels_per_sample: NotRequired[int | None]


class PairArgs(PairOptions):
    """`PairOptions`, and the distance."""

    distance: NotRequired[str]


class MeanFieldArgs(MeanFieldOptions):
    """`MeanFieldOptions`, the weight of the soft constraint and the distance."""

    reg_weight: NotRequired[float]
    distance: NotRequired[str]


class _DerivedLoss(nn.Module, ABC):
    """Options, checks and precision of both forms. A form adds `_value`."""

    num_classes: int | None = None
    embedding_size: int | None = None
    max_labels_per_sample: int | None = None
    _implementations: tuple[str, ...] = ("auto", "reference")
    _partners = "it takes every pair of the batch once"
    _share = 0.5
    """The weight of the attraction's average: every pair is in it twice."""

    def __init__(
        self,
        interactions: Interactions,
        distance: str = "cosine",
        **options: Unpack[PairOptions],
    ) -> None:
        super().__init__()
        for name in options.keys() - PairOptions.__annotations__.keys():
            all_options = MeanFieldArgs if isinstance(self, MeanFieldLoss) else PairArgs
            known = {*signature(type(self)).parameters, *all_options.__annotations__}
            known -= {"options", "rest"}
            hint = " Mean-field losses have it." if name in MeanFieldArgs.__annotations__ else ""
            hint = hint or checks.suggestion(name, known)
            raise TypeError(f"{self._owner} has no argument {name!r}.{hint}")
        if not isinstance(interactions, Interactions):
            raise TypeError(
                f"interactions must be an instance of weiss.theory.Interactions for "
                f"{self._owner}; got {interactions!r}. Describe attraction and repulsion in a "
                "subclass, and pass an instance: SquaredHinge(), not SquaredHinge."
            )
        self.interactions = interactions
        self.distance = checks.one_of("distance", distance, DISTANCES, self._owner)
        average, impl = options.get("average", "classes"), options.get("impl", "auto")
        self.average = checks.one_of("average", average, AVERAGES, self._owner)
        self.check = checks.flag("check", options.get("check", True), self._owner)
        self.impl = checks.one_of("impl", impl, self._implementations, self._owner)

    def forward(
        self,
        embeddings: Tensor,
        labels: Tensor,
        indices_tuple: None = None,
        ref_emb: None = None,
        ref_labels: None = None,
    ) -> Tensor:
        """Compute the loss of a batch.

        Args:
            embeddings: ``(B, D)`` floating point.
            labels: ``(B,)`` class indices of any integer dtype, or ``(B, C)`` multi-hot.
            indices_tuple: must be None; part of the common signature.
            ref_emb: must be None; part of the common signature.
            ref_labels: must be None; part of the common signature.

        Returns:
            The loss, a scalar.
        """
        if not (indices_tuple is ref_emb is ref_labels is None):
            unused = {"indices_tuple": indices_tuple, "ref_emb": ref_emb, "ref_labels": ref_labels}
            for name, given in unused.items():
                remedy = "Remove the miner." if name == "indices_tuple" else "Pass one batch."
                checks.unused(name, given, f"{self._partners}. {remedy}", self._owner)
        embeddings = self._checked(embeddings)
        labels = checks.labels_of_a_batch(labels, embeddings, self.num_classes, self._owner)
        kind = embeddings.device.type
        if not (torch.compiler.is_compiling() or torch.is_autocast_enabled(kind)):
            return self._value(embeddings, labels)
        with torch.autocast(kind, enabled=False):
            return self._value(embeddings, labels)

    @abstractmethod
    def _value(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """Compute the loss of a batch whose shapes have been checked; autocast is off."""

    def _members(self, embeddings: Tensor, labels: Tensor, check: bool) -> Membership:
        """Group a batch by class, and check its values."""
        return members_of_a_batch(
            labels,
            embeddings,
            self.num_classes,
            self._owner,
            check=check,
            max_labels_per_sample=self.max_labels_per_sample,
        )

    @property
    def _owner(self) -> str:
        return type(self).__name__

    def _checked(self, embeddings: Tensor) -> Tensor:
        return checks.embeddings_of_a_batch(embeddings, self._owner, self.embedding_size)

    def _distance(self, x_ND: Tensor, y_MD: Tensor) -> Tensor:
        dtype = working_dtype(x_ND, y_MD)
        return DISTANCES[self.distance](x_ND.to(dtype), y_MD.to(dtype))

    @property
    def least_value(self) -> float:
        """A value that the loss cannot fall below: that of classes in points, beyond all reach.

        ``log(1 + e^{-alpha delta}) / alpha`` for MFCWMS, about 69 at the default; 0 for a hinge,
        and with ``average="samples"``, where the value depends on the sizes of the classes.
        """
        if self.average == "samples":
            return 0.0
        link, zero = self.interactions.attraction_link, torch.zeros((), dtype=torch.float64)
        pull = link.times(self.interactions.attraction(zero), torch.full_like(zero, self._share))
        return float(link.apply(pull))

    def extra_repr(self) -> str:
        """Show the hyper-parameters when the module is printed."""
        return f"{self.interactions}, distance={self.distance!r}, average={self.average!r}"


class PairLoss(_DerivedLoss):
    """A class-wise loss over all pairs of the batch, from any description of its interactions.

    ``1/|C_B| sum_c phi_a(<a(d_ij)>_{i,j in c} / 2)
    + 1/(2 |C_B|) sum_{c != c'} phi_r(<r(d_ij)>_{i in c, j in c'})``

    Args:
        interactions: attraction, repulsion and their links.
        distance: ``"cosine"`` or ``"euclidean"``.
        **options: see `PairOptions`.
    """

    def _value(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        members = self._members(embeddings, labels, self.check)
        embeddings_PD = members.rows(embeddings)
        dist_PP = self._distance(embeddings_PD, embeddings_PD)
        return pair_loss(self.interactions, dist_PP, members, self.average)


class MeanFieldLoss(_DerivedLoss):
    """The mean-field child of a pair loss, from any description of its interactions.

    ``1/|C_B| sum_c phi_a(<a(d(F_i, M_c))>_{i in c})
    + 1/(2 |C_B|) sum_{c != c'} phi_r(N_cc' + N_c'c)
    + reg_weight/C sum_{c != c'} psi_r(r(d(M_c, M_c')))^2``, with
    ``N_cc' = <r(d(F_i, M_c'))>_{i in c}``, or 0 if class c is not in the batch, and ``psi_r`` the
    link ``phi_r`` without its division (``log(1 + x)``, not over beta; see ``reg_scale``).

    The fields are learned with everything else, but want a far larger learning rate than the
    network: `weiss.parameter_groups` sets it.

    Args:
        interactions: attraction, repulsion and their links.
        num_classes: C, the number of training classes; labels are 0 to C - 1.
        embedding_size: D.
        reg_weight: the paper's lambda, weight of the soft constraint on the fields. With a weight
            of 0 it is not computed; otherwise it costs the time of C x C distances.
        distance: ``"cosine"`` or ``"euclidean"``.
        reg_scale: see `MeanFieldOptions`.
        max_labels_per_sample: see `MeanFieldOptions`.
        skip: see `MeanFieldOptions`.
        matmul_dtype: see `MeanFieldOptions`.
        fluctuations: see `MeanFieldOptions`.
        fields_per_class: see `MeanFieldOptions`.
        fields_gamma: see `MeanFieldOptions`.
        **options: see `PairOptions`.

    Attributes:
        fields: ``(num_classes, embedding_size)`` parameter, one mean field a class, drawn from
            N(0, 1). Under cosine only the direction of a field matters. With fewer rows where
            processes share the classes (`weiss.losses.shards`). ``(num_classes, S,
            embedding_size)`` with S > 1 fields a class.
        fields_gamma: None for one field a class.
        shard: which classes these are.
    """

    class_lr_scale = FIELD_LR_SCALE
    """Learning rate of the fields over that of the network, for `weiss.parameter_groups`."""
    _implementations = IMPLEMENTATIONS
    _partners = "every sample meets every class's field"
    _share = 1.0

    def __init__(
        self,
        interactions: Interactions,
        num_classes: int,
        embedding_size: int,
        reg_weight: float = 0.0,
        distance: str = "cosine",
        reg_scale: str = "paper",
        max_labels_per_sample: int | None = None,
        skip: str = "auto",
        matmul_dtype: str = "float32",
        fluctuations: str = "none",
        fields_per_class: int = 1,
        fields_gamma: float | None = None,
        **options: Unpack[PairOptions],
    ) -> None:
        super().__init__(interactions, distance, **options)
        num_classes = checks.count("num_classes", num_classes, self._owner)
        embedding_size = checks.count("embedding_size", embedding_size, self._owner)
        self.num_classes, self.embedding_size = num_classes, embedding_size
        self.reg_weight = checks.not_negative("reg_weight", reg_weight, self._owner)
        self.reg_scale = checks.one_of("reg_scale", reg_scale, REG_SCALES, self._owner)
        if max_labels_per_sample is not None:
            checks.count("max_labels_per_sample", max_labels_per_sample, self._owner)
        self.max_labels_per_sample = max_labels_per_sample
        self.skip = checks.one_of("skip", skip, SKIPS, self._owner)
        self.matmul_dtype = checks.one_of("matmul_dtype", matmul_dtype, MATMUL_DTYPES, self._owner)
        each = checks.count("fields_per_class", fields_per_class, self._owner)
        self.fields_gamma = self._checked_gamma(fields_gamma, each)
        shape = (num_classes, embedding_size)
        fields = torch.empty(shape if each == 1 else (num_classes, each, embedding_size))
        # On "meta" there are no values to draw, and torch would load sympy for it.
        self.fields = nn.Parameter(fields if fields.is_meta else fields.normal_())
        self.shard = Shard(0, num_classes)
        self.fluctuations = self._check_fluctuations(fluctuations)
        self._visits: dict[str, Any] = {}
        self._problem: Problem | None = None
        self._graphs = CudaGraphs()

    def _checked_gamma(self, given: float | None, each: int) -> float | None:
        if each > 1:
            gamma = DEFAULT_GAMMA if given is None else given
            return checks.number("fields_gamma", gamma, self._owner, above=0.0)
        if given is not None:
            raise ValueError(
                f"fields_gamma must be left out for {self._owner} with one field a class, which "
                f"leaves nothing to join; got {given!r}. Or set fields_per_class."
            )
        return None

    @property
    def fields_per_class(self) -> int:
        """S, the number of fields of a class."""
        return each_of(self.fields)

    def _value(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        if torch.is_grad_enabled():  # without a gradient there is nothing to skip
            self._visits.clear()
        task = Task(self._described(), embeddings, self.fields, labels, self.shard)
        plan = self._plan(task)
        if not plan.is_fused:
            members = self._members(embeddings, labels, self.check)
            if plan.kernel == "reference":
                return self._reference(embeddings, members)
            task = task._replace(classes=members)
        value, counts, visited = compute(plan, task, self._graphs)
        if self.check and counts is not None and any(counts.read()):
            self._members(embeddings, labels, check=True)  # raises with the details
        if visited is not None and torch.is_grad_enabled():
            possible = max(len(embeddings) * len(self.fields), 1)
            self._visits.update(visited=visited, possible=possible)
        return value

    def _plan(self, task: Task) -> Plan:
        if self.fluctuations != "none":  # a plain formula over all pairs; settings may have changed
            self._check_fluctuations(self.fluctuations)
            return REFERENCE
        options = {"impl": self.impl, "skip": self.skip, "matmul_dtype": self.matmul_dtype}
        return make_plan(task, self._owner, **options)

    def _check_fluctuations(self, asked: str) -> str:
        settings = {name: getattr(self, name) for name in beyond.NEEDED}
        return beyond.checked(asked, self.interactions, settings, self.shard.parts, self._owner)

    def _described(self) -> Problem:
        """Describe the loss to the kernels; a new description only if a setting has changed."""
        known = self._problem
        rest = (self.distance, self.average, self.reg_weight, self.reg_scale, self.fields_gamma)
        if known is None or known.interactions is not self.interactions or known.rest != rest:
            known = self._problem = Problem(self.interactions, *rest)
        return known

    @property
    def skipped_share(self) -> float | None:
        """The share of (sample, class) pairs that the last gradient skipped; None if it had all.

        Reading it makes the host wait for a GPU.
        """
        if not self._visits:
            return None
        return 1.0 - int(self._visits["visited"]) / int(self._visits["possible"])

    def _reference(self, embeddings: Tensor, members: Membership) -> Tensor:
        """Compute the formula as it stands."""
        dist_BC = self._to_classes(embeddings, self.fields)
        loss = mean_field_loss(self.interactions, dist_BC, members, self.average)
        if self.reg_weight:
            rows_FD = rows_of(self.fields)
            dist_CC = self._distance(rows_FD, rows_FD)
            if self.fields_gamma is not None:
                dist_CC = soft_minimum(by_pair(dist_CC, self.fields_per_class), self.fields_gamma)
            soft = soft_constraint(self.interactions, dist_CC, self.reg_scale)
            loss = loss + self.reg_weight * soft
        if self.fluctuations == "second":
            loss = loss + beyond.correction(self.interactions, embeddings, self.fields, members)
        return loss

    def _to_classes(self, embeddings: Tensor, fields: Tensor) -> Tensor:
        """Return the distances ``(B, C)`` of samples to classes with these fields."""
        dist_BF = self._distance(embeddings, rows_of(fields))
        if self.fields_gamma is None:
            return dist_BF
        return soft_minimum(by_class(dist_BF, each_of(fields)), self.fields_gamma)

    @property
    def class_vectors(self) -> Tensor | None:
        """The fields ``(C, D)``, as other losses call their class vectors; None with several."""
        return self.fields if self.fields_gamma is None else None

    def get_logits(self, embeddings: Tensor) -> Tensor:
        """Return how close each sample is to each class: the cosine, or minus the distance.

        Args:
            embeddings: ``(B, D)`` floating point.

        Returns:
            ``(B, C)``; larger is closer. Where processes share the classes, all must call it, each
            with any samples, and the result has no gradient.
        """
        embeddings = self._checked(embeddings)
        with torch.autocast(embeddings.device.type, enabled=False):
            if self.shard.parts == 1:
                dist_BC = self._to_classes(embeddings, self.fields)
            else:
                with torch.no_grad():
                    shown = self.shard.all_blocks(self.fields.detach(), FIELDS_AT_A_TIME)
                    dist_BC = torch.cat([self._to_classes(embeddings, x) for _, x in shown], dim=1)
        return 1.0 - dist_BC if self.distance == "cosine" else -dist_BC

    def _apply(self, *given: Any, **options: Any) -> Any:
        self._graphs = CudaGraphs()  # the old ones read the memory where the fields were
        return super()._apply(*given, **options)  # type: ignore[no-untyped-call]

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *more: Any) -> None:
        """Select the rows of this shard from whole fields, so that a state fits any shards."""
        given = state_dict.get(f"{prefix}fields")
        if isinstance(given, Tensor) and given.shape[:1] == (self.num_classes,):
            state_dict[f"{prefix}fields"] = given[self.shard.first :][: len(self.fields)]
        super()._load_from_state_dict(state_dict, prefix, *more)

    def _checked(self, embeddings: Tensor) -> Tensor:
        embeddings = super()._checked(embeddings)
        checks.same_device(embeddings, self.fields, self._owner)
        return embeddings

    def extra_repr(self) -> str:
        """Show the hyper-parameters when the module is printed."""
        sizes = f"num_classes={self.num_classes}, embedding_size={self.embedding_size}"
        if self.shard.parts > 1:
            sizes += f", classes_here={self.shard.first}:{self.shard.first + len(self.fields)}"
        if self.fields_gamma is not None:
            joined = f"fields_per_class={self.fields_per_class}, fields_gamma={self.fields_gamma:g}"
            sizes += f", {joined}"
        more = "" if self.fluctuations == "none" else f", fluctuations={self.fluctuations!r}"
        return f"{sizes}, {super().extra_repr()}, reg_weight={self.reg_weight:g}{more}"
