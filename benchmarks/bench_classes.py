"""Mean-field losses from a hundred to ten million classes, forward + backward, against rivals.

Rivals, in the same process: the dense form of the formula (C x C for its main term, no constraint),
ArcFace and ProxyAnchor of pytorch-metric-learning, and the floor: the three plain matrix products
that any loss over all classes contains, batch x fields and their two gradients, in the precision of
the row.

Time: CUDA events around a step (on a CPU the clock), a warm-up, the median of several; small
problems take turns, in ten rounds. "in a CUDA graph" is the same step recorded once and replayed,
as a training loop of fixed sizes can: below some hundred microseconds it is the host that takes the
time. Extra memory: the peak beyond inputs and class vectors, so the gradient of the class vectors
is in it.

Rows with "trained" have batch and fields whose cosines are spread as in a trained run on
CUB-200-2011 (`lifelike`; the shares of pairs near each other are printed beside those of the run).

    python benchmarks/bench_classes.py --device cuda            # all rows; an H200 has the memory
    python benchmarks/bench_classes.py --device cuda --near     # near pairs alone
    python benchmarks/bench_classes.py --device cuda --rest     # one against the rest, some 40 s
    python benchmarks/bench_classes.py --device cuda --fields   # four fields a class, and streaming
    python benchmarks/bench_classes.py                          # on the CPU
    python benchmarks/bench_classes.py --smoke                  # a few seconds, keeps nothing
"""

import gc
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from bench_multi_similarity import dense_mfcwms
from record import MIB, extra_mib, keep, options_of, wait_for
from torch import Tensor

import weiss
from weiss.losses.rest_multi_similarity import PROXY_ANCHOR

SPREADS = {
    "mf_contrastive": (0.4995, 0.7316, 0.4325, 43),
    "mf_cwms": (0.588, 0.789, 0.408, 32),
}
"""Of trained runs on CUB-200-2011 (results/cub-resnet50's recipe, 14 epochs, seed 0): the mean
cosine of two fields; of a sample, its parts along the common direction and along its own field
beyond that; how many dimensions the rest fills, so that as many pairs are near."""
OBSERVED = {
    "mf_contrastive": {0.5: 0.574, 0.6: 0.168, 0.7: 0.00628, 0.8: 0.000113},
    "mf_cwms": {0.5: 0.923, 0.6: 0.519, 0.7: 0.104, 0.8: 0.00126},
}
"""The share of the other classes' fields whose cosine with a sample is above, in those runs."""


Step = Callable[[], None]
Contenders = dict[str, Callable[[], Step]]


class Case:
    """One size: a batch, its labels, and whoever competes on it; `each` fields a class."""

    def __init__(self, batch: int, num_classes: int, size: int, device: str, each: int = 1) -> None:
        torch.manual_seed(0)
        self.batch, self.num_classes, self.size, self.device = batch, num_classes, size, device
        self.each, self.num_fields = each, num_classes * each
        self.embeddings = torch.randn(batch, size, device=device).requires_grad_()
        self.labels = torch.randint(num_classes, (batch,), device=device)
        self.parameters: list[Tensor] = []

    def ours(self, name: str = "mf_cwms", **options: Any) -> Step:
        """A loss of this package, on random vectors."""
        with torch.device(self.device):
            options = {"fields_per_class": self.each, **options}
            loss = weiss.make_loss(name, self.num_classes, self.size, **options)
        return self.step(lambda: loss(self.embeddings, self.labels), loss.fields)

    def trained(self, name: str, **options: Any) -> Step:
        """A loss of this package, on vectors as they are after training."""
        samples, fields, labels = lifelike(
            self.batch, self.num_classes, self.size, name, self.device
        )
        with torch.device("meta"):
            loss = weiss.make_loss(name, self.num_classes, self.size, **options)
        loss.fields = torch.nn.Parameter(fields)
        samples.requires_grad_()
        return self.step(lambda: loss(samples, labels), loss.fields, samples)

    def of_few_classes(self, samples: int, name: str, **options: Any) -> Step:
        """A loss of this package, on a batch with several samples of each of its classes."""
        self.labels = torch.arange(self.batch, device=self.device) // samples * 7
        return self.ours(name, **options)

    def dense(self) -> Step:
        """The equation as it is printed."""
        fields = torch.randn(self.num_classes, self.size, device=self.device).requires_grad_()
        return self.step(lambda: dense_mfcwms(self.embeddings, self.labels, fields), fields)

    def rival(self, name: str) -> Step:
        """A loss of pytorch-metric-learning."""
        loss = weiss.make_loss(name, self.num_classes, self.size).to(self.device)
        return self.step(lambda: loss(self.embeddings, self.labels), *loss.parameters())

    def products(self, dtype: torch.dtype = torch.float32) -> Step:
        """Three matrix products, and nothing else."""
        x = torch.randn(self.batch, self.size, device=self.device).to(dtype)
        fields = torch.randn(self.num_fields, self.size, device=self.device).to(dtype)
        cosines = torch.empty(self.batch, self.num_fields, dtype=dtype, device=self.device)
        back, gradient = torch.empty_like(x), torch.empty_like(fields)

        def step() -> None:
            torch.mm(x, fields.T, out=cosines)
            torch.mm(cosines, fields, out=back)
            torch.mm(cosines.T, x, out=gradient)

        self.parameters = []
        return step

    def step(self, function: Callable[[], Tensor], *parameters: Tensor) -> Step:
        """A function and its gradients."""
        self.parameters = list(parameters)

        def step() -> None:
            for tensor in (self.embeddings, *parameters):
                tensor.grad = None
            function().backward()

        return step

    def forget(self) -> None:
        """Drop all gradients."""
        for parameter in (self.embeddings, *self.parameters):
            parameter.grad = None


def recorded(step: Step) -> Step:
    """Return a replay of a step as a CUDA graph."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()

    def replay(kept: Step = step) -> None:
        """With what the graph reads, which must stay where it is."""
        graph.replay()

    return replay


def lifelike(
    batch: int, num_classes: int, size: int, name: str, device: str
) -> tuple[Tensor, Tensor, Tensor]:
    """Return a batch, fields and labels whose cosines are spread as in a trained run.

    A field is a common direction and a random one, from fewer dimensions than there are; a sample
    is the common direction, its field's own, and another random one.
    """
    generator = torch.Generator(device).manual_seed(0)
    mean, common, own, dimensions = SPREADS[name]
    dimensions = min(dimensions, size - 1)
    random = torch.randn(size, size, generator=generator, device=device)
    basis, _ = torch.linalg.qr(random)

    def draw(rows: int) -> Tensor:
        random = torch.randn(rows, dimensions, generator=generator, device=device)
        return torch.nn.functional.normalize(random) @ basis[1 : dimensions + 1]

    fields = draw(num_classes)
    labels = torch.randint(num_classes, (batch,), generator=generator, device=device)
    rest = (1 - common**2 - own**2) ** 0.5
    samples = common * basis[0] + own * fields[labels] + rest * draw(batch)
    return samples, fields.mul_((1 - mean) ** 0.5).add_(basis[0], alpha=mean**0.5), labels


def seconds_of(step: Step, device: str, repeats: int) -> list[float]:
    """Return the seconds of some steps, after a warm-up."""
    for _ in range(7 if device == "cuda" else 2):
        step()
    found = []
    for _ in range(repeats):
        wait_for(device)
        if device == "cuda":
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            step()
            end.record()
            end.synchronize()
            found.append(start.elapsed_time(end) / 1e3)
        else:
            begin = time.perf_counter()
            step()
            found.append(time.perf_counter() - begin)
    return found


def extra_of_some(step: Step, case: Case) -> float:
    """Return the peak of some steps on a GPU beyond what was there before them.

    Some, for a loss of ours records itself after a few, and a recording keeps its memory.
    """

    def some() -> None:
        for _ in range(6):
            step()

    case.forget()
    clear()
    return extra_mib(some, "cuda")


def clear() -> None:
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
        torch.cuda.empty_cache()


class Table:
    """Measures, prints, collects."""

    def __init__(self, device: str, repeats: int) -> None:
        self.device, self.repeats = device, repeats
        self.rows: list[dict[str, Any]] = []

    def measure(
        self, case: Case, contender: str, precision: str, make: Callable[[], Step]
    ) -> tuple[dict[str, Any], Step | None]:
        """Return the row of one contender, its memory measured, and its step; None without room."""
        row: dict[str, Any] = {
            "contender": contender,
            "batch": case.batch,
            "num_classes": case.num_classes,
            "embedding_size": case.size,
            "precision": precision,
        }
        row |= {"seconds": None, "over_products": None, "extra_mib": None, "extra_over_field": None}
        graph = "CUDA graph" in contender
        try:
            step = make()
            if self.device == "cuda" and not graph:
                row["extra_mib"] = round(extra_of_some(step, case), 1)
                field = case.num_fields * case.size * 4 / MIB
                row["extra_over_field"] = round(row["extra_mib"] / field, 3)
            return row, recorded(step) if graph else step
        except torch.OutOfMemoryError:
            row["contender"] += " (out of memory)"
            return row, None

    def compare(self, case: Case, precision: str, contenders: Contenders, rounds: int = 1) -> None:
        """Measure contenders on one case; "products" is what the others are compared with.

        Large ones one after the other, for each needs the memory. Small ones in turns, in several
        rounds: their time is the host's, which has better moments and worse, and each should have
        its share of both.
        """
        print(f"{case.batch} x {case.num_classes:,} x {case.size}, {precision}")
        torch.set_float32_matmul_precision("highest" if precision == "float32" else "high")
        first = len(self.rows)
        steps: list[Step | None] = []
        for name, make in contenders.items():
            row, step = self.measure(case, name, precision, make)
            self.rows.append(row)
            if rounds > 1:
                steps.append(step)
            else:
                self.time([row], [step], rounds)
                del step
            case.forget()
            case.parameters = []
            clear()
        rows = self.rows[first:]
        if rounds > 1:
            self.time(rows, steps, rounds)
        floor = next((row["seconds"] for row in rows if row["contender"] == "products"), None)
        for row in rows:
            if floor and row["seconds"]:
                row["over_products"] = round(row["seconds"] / floor, 3)

    def time(self, rows: list[dict[str, Any]], steps: list[Step | None], rounds: int) -> None:
        """Time some steps in turns, and print the rows."""
        found: list[list[float]] = [[] for _ in rows]
        for _ in range(rounds):
            for step, seconds in zip(steps, found, strict=True):
                if step is not None:
                    seconds += seconds_of(step, self.device, max(self.repeats // rounds, 1))
        for row, seconds in zip(rows, found, strict=True):
            if seconds:
                row["seconds"] = round(statistics.median(seconds), 6)
            shown = "-" if row["seconds"] is None else f"{1e3 * row['seconds']:.3f} ms"
            extra = "" if row["extra_mib"] is None else f", {row['extra_mib']:,.0f} MiB"
            print(f"  {row['contender']} [{row['precision']}]: {shown}{extra}", flush=True)


def on_cuda(table: Table, largest: int) -> None:
    """All rows of an H200."""
    for num_classes in (100, 11_318):
        case = Case(180, num_classes, 512, "cuda")
        for precision in ("float32", "tf32"):
            contenders: Contenders = {"products": case.products}
            for name in ("mf_cwms", "mf_contrastive"):
                make = partial(case.ours, name)
                contenders[name] = make
                contenders[f"{name}, check=False"] = partial(make, check=False)
                contenders[f"{name} in a CUDA graph"] = partial(make, check=False)
                contenders[f"{name}, reference"] = partial(make, impl="reference")
            contenders["dense form of mf_cwms"] = case.dense
            for name in ("arcface", "proxy_anchor"):
                contenders[name] = partial(case.rival, name)
            table.compare(case, precision, contenders, rounds=10)
    table.repeats = 9
    case = Case(1024, 1_000_000, 512, "cuda")
    whole = {"skip": "off"}
    table.compare(
        case,
        "tf32",
        {
            "products": case.products,
            "mf_cwms": partial(case.ours, "mf_cwms", **whole),
            "mf_contrastive": partial(case.ours, "mf_contrastive", **whole),
            "mf_cwms, streaming": partial(case.ours, "mf_cwms", impl="streaming", **whole),
            "mf_contrastive, untrained, skipping": partial(case.ours, "mf_contrastive", skip="on"),
            "mf_contrastive, trained, all pairs": partial(case.trained, "mf_contrastive", **whole),
            "mf_contrastive, trained, skipping": partial(case.trained, "mf_contrastive", skip="on"),
            "mf_cwms, trained, all pairs": partial(case.trained, "mf_cwms", **whole),
            "arcface": partial(case.rival, "arcface"),
            "proxy_anchor": partial(case.rival, "proxy_anchor"),
        },
    )
    table.repeats = 5
    table.compare(
        case,
        "float32",
        {
            "products": case.products,
            "mf_cwms": partial(case.ours, "mf_cwms", **whole),
            "mf_contrastive": partial(case.ours, "mf_contrastive", **whole),
            "mf_contrastive, untrained, skipping": partial(case.ours, "mf_contrastive", skip="on"),
            "mf_contrastive, trained, skipping": partial(case.trained, "mf_contrastive", skip="on"),
            "arcface": partial(case.rival, "arcface"),
        },
    )
    table.repeats = 9
    halves = {"skip": "off", "matmul_dtype": "bfloat16"}
    table.compare(
        case,
        "bfloat16",
        {
            "products": partial(case.products, torch.bfloat16),
            "mf_cwms": partial(case.ours, "mf_cwms", **halves),
            "mf_contrastive": partial(case.ours, "mf_contrastive", **halves),
            "mf_cwms, 4 samples a class": partial(case.of_few_classes, 4, "mf_cwms", **halves),
        },
    )
    table.repeats = 3
    case = Case(1024, largest, 512, "cuda")
    table.compare(
        case,
        "tf32",
        {name: partial(case.ours, name, **whole) for name in ("mf_cwms", "mf_contrastive")},
    )


def near_on_cuda(table: Table) -> None:
    """A hinge over near pairs, against all pairs and against the floor."""
    case = Case(1024, 1_000_000, 512, "cuda")
    for precision, table.repeats in (("tf32", 9), ("float32", 5)):
        contenders: Contenders = {"products": case.products}
        for way, skip in (("all pairs", "off"), ("skipping", "on")):
            make = partial(case.trained, "mf_contrastive", skip=skip)
            contenders[f"mf_contrastive, trained, {way}"] = make
        make = partial(case.ours, "mf_contrastive", skip="on")
        contenders["mf_contrastive, untrained, skipping"] = make
        table.compare(case, precision, contenders)


def against_the_rest(table: Table, smoke: bool) -> None:
    """One class against the rest, beside a link for each pair of classes; both in turns."""
    on_gpu = table.device == "cuda"
    sizes = [(16, 300, 32)] if smoke else [(180, 11_318, 512)]
    if on_gpu and not smoke:
        sizes.append((1024, 1_000_000, 512))
    losses: dict[str, dict[str, Any]] = {
        "mf_cwms": {},
        "mf_rest_ms": {},
        "mf_rest_ms, over all": {"over": "all"},
        "mf_rest_ms, half": {"keeps": "half"},
        "mf_rest_ms, ProxyAnchor": PROXY_ANCHOR,
    }
    for batch, num_classes, size in sizes:
        case = Case(batch, num_classes, size, table.device)
        is_large = batch * num_classes > 2**24
        table.repeats, rounds = (6, 2) if is_large else (60, 6)
        for precision in ("tf32", "float32") if on_gpu else ("float32",):
            contenders: Contenders = {"products": case.products}
            for name, options in losses.items():
                make = partial(case.ours, name.split(",")[0], **options)
                contenders[name] = make
                if on_gpu and not is_large:
                    contenders[f"{name} in a CUDA graph"] = partial(make, check=False)
            first = len(table.rows)
            table.compare(case, precision, contenders, rounds)
            seconds = {row["contender"]: row["seconds"] for row in table.rows[first:]}
            for name in contenders:
                beside = "mf_cwms" + " in a CUDA graph" * ("CUDA graph" in name)
                if name.startswith("mf_rest") and seconds.get(name) and seconds.get(beside):
                    print(f"  {name}: {seconds[name] / seconds[beside]:.2f} x mf_cwms")


def several_fields(table: Table, smoke: bool) -> None:
    """Four fields a class, beside streaming; the products are with all fields."""
    each = 4
    sizes = [(16, 300, 32)] if smoke else [(180, 11_318, 512)]
    if table.device == "cuda" and not smoke:
        sizes.append((1024, 250_000, 512))  # a million fields
    for batch, num_classes, size in sizes:
        case = Case(batch, num_classes, size, table.device, each)
        is_large = batch * case.num_fields > 2**24
        table.repeats, rounds = (6, 1) if is_large else (60, 6)
        for precision in ("tf32", "float32") if table.device == "cuda" else ("float32",):
            contenders: Contenders = {"products": case.products}
            for name in ("mf_cwms", "mf_contrastive", "mf_rest_ms"):
                make = partial(case.ours, name)
                contenders[f"{name}, {each} fields"] = make
                contenders[f"{name}, {each} fields, streaming"] = partial(make, impl="streaming")
            first = len(table.rows)
            table.compare(case, precision, contenders, rounds)
            seconds = {row["contender"]: row["seconds"] for row in table.rows[first:]}
            for name in contenders:
                rival = seconds.get(f"{name}, streaming")
                if rival and seconds.get(name):
                    print(f"  {name}: {rival / seconds[name]:.2f} times faster than streaming")


def on_cpu(table: Table, smoke: bool) -> None:
    """The size of SOP; ratios only."""
    sizes = (16, 300, 32) if smoke else (180, 11_318, 512)
    case = Case(*sizes, "cpu")
    contenders: Contenders = {"products": case.products}
    for name in ("mf_cwms", "mf_contrastive"):
        contenders[name] = partial(case.ours, name)
        contenders[f"{name}, reference"] = partial(case.ours, name, impl="reference")
        contenders[f"{name}, trained"] = partial(case.trained, name)
    contenders["dense form of mf_cwms"] = case.dense
    table.compare(case, "float32", contenders)
    seconds = {row["contender"]: row["seconds"] for row in table.rows}
    faster = seconds["dense form of mf_cwms"] / seconds["mf_cwms"]
    print(f"  mf_cwms: {faster:.1f} times faster than its dense form")


def check_spread() -> None:
    """Print how far `lifelike` is from life."""
    for name, observed in OBSERVED.items():
        samples, fields, _ = lifelike(256, 50_000, 512, name, "cpu")
        cosines = torch.nn.functional.normalize(samples) @ fields.T
        shares = {at: f"{(cosines > at).float().mean():.2e}" for at in observed}
        print(f"{name}: cosines above {shares}; trained run {observed}")


def main() -> None:
    """Compare, print the table, and keep the result."""
    parser = options_of(__doc__)
    parser.add_argument("--near", action="store_true", help="rows of near pairs alone, on a GPU")
    parser.add_argument("--rest", action="store_true", help="rows of one against the rest alone")
    parser.add_argument(
        "--fields", action="store_true", help="rows of several fields a class alone"
    )
    parser.add_argument("--largest", type=int, default=10_000_000, help="classes of the last row")
    parser.add_argument("--repeats", type=int, default=120, help="steps of small problems")
    arguments = parser.parse_args()
    if arguments.near and arguments.device != "cuda":
        parser.error("--near is for a GPU: add --device cuda")
    table = Table(arguments.device, arguments.repeats if arguments.device == "cuda" else 3)
    if arguments.near:
        near_on_cuda(table)
    elif arguments.rest:
        against_the_rest(table, arguments.smoke)
    elif arguments.fields:
        several_fields(table, arguments.smoke)
    elif arguments.device == "cuda":
        check_spread()
        on_cuda(table, arguments.largest)
    else:
        on_cpu(table, arguments.smoke)
    alone = [name for name in ("near", "rest", "fields") if getattr(arguments, name)]
    keep(arguments, "-".join(["classes", *alone[:1]]), table.rows, arguments.device)


if __name__ == "__main__":
    main()
