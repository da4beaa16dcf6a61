"""The trainer: from a recipe to a run folder.

    recipe -> data, network, loss, optimiser -> epochs of steps -> evaluation -> run folder

A step depends only on the recipe and on the state that is saved. So a run that was killed and
resumed is the run that was not killed, on a CPU to the last bit. Several processes (``torchrun``,
``accelerate launch``) share each batch and compute what one would.

This is one piece: the course of a run, and how it stops, saves and resumes at any place of it.
"""

import errno
import time
import warnings
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from weiss._base import draws
from weiss._base.interrupts import StoppedError, StopRequest
from weiss._base.processes import Processes
from weiss._base.progress import Bar
from weiss.backbones import Embedder
from weiss.backbones.embedder import HeadOnly, Unit, WithoutHead
from weiss.data import Table
from weiss.losses import MeanFieldLoss
from weiss.losses.self_consistency import follow_class_means, order_parameters
from weiss.losses.shards import is_sharded
from weiss.runs import Kept, Recipe, Run, to_toml
from weiss.runs.card import card
from weiss.runs.evaluator import NotFiniteError
from weiss.runs.experiment import Experiment, refuse_folder_among_images
from weiss.runs.features import experiment_on_features
from weiss.runs.folder import METRICS, MODEL
from weiss.runs.gain import by_class, gain_between
from weiss.runs.provenance import made_with
from weiss.training import console, results
from weiss.training.fields import place_fields
from weiss.training.loss_watch import LossWatch
from weiss.training.preparation import make_accelerator, prepare
from weiss.training.resuming import (
    best_line,
    changes_since,
    data_facts,
    how_to_resume,
    kept_network,
    last_good_state,
    newest_state,
    position_at_the_end,
    refuse_another_run,
    refuse_fewer_epochs,
    refuse_other_data,
)
from weiss.training.state import Position

FULL_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
STEPS_BETWEEN_AGREEMENTS = 16
"""How often several processes ask each other whether one of them is to stop or to save."""


def train(
    recipe: Recipe,
    out: str | Path,
    *,
    resume: bool = False,
    quiet: bool = False,
    pictures: bool = True,
    data: Table | None = None,
    baseline: bool = True,
    keep_embeddings: bool = False,
) -> dict[str, Any]:
    """Train, and write a run folder.

    Args:
        recipe: the experiment.
        out: the folder of the run; made if it is not there.
        resume: resume the run in the folder. Its epochs and steps are not repeated; a recipe
            that differs is refused.
        quiet: print nothing.
        pictures: draw learning curves; they can be drawn later from metrics.jsonl.
        data: a table to train on in place of the data that the recipe names; for arrays.
        baseline: measure the network before training, without its head, so that the result says
            what training brought; it takes the time of one evaluation.
        keep_embeddings: where the test part is measured at the end (``evaluate.then_test``), keep
            its embeddings in the run folder.

    Returns:
        The result, as ``result.json`` holds it: the best metrics under the names of
        `weiss.retrieval_metrics`, the epoch, the loss's short name, seconds.

    Raises:
        ValueError: the recipe, the data or the folder cannot be used.
        NotFiniteError: the loss became NaN or infinite; the last good state is kept.
        StoppedError: Ctrl-C or SIGTERM; the state is saved, or the run was just finished.
    """
    run = Run(out, trust=True)  # it follows the recipe that is given here
    refuse_another_run(run, resume)  # at once, before anything is loaded
    if data is None and not run.exists():
        refuse_folder_among_images(run.folder, recipe)
    run.make_folder()
    try:
        accelerator, processes = make_accelerator(recipe, run.folder)
        with run.locked() if processes.is_main else nullcontext(), StopRequest() as stop:
            # Again, now under the lock; the main process decides for all.
            begun = processes.any(processes.is_main and run.exists(), accelerator.device)
            if begun:
                refuse_another_run(run, resume)
            training = Training(recipe, run, accelerator, processes, stop, begun, quiet, data)
            try:
                result = training.train(pictures, baseline, keep_embeddings)
            finally:
                training.stepper.release()
            if stop.wanted:  # too late for this run, not for those that the caller would begin
                raise StoppedError(f"after the end of a run; {run.folder} is finished.")
            return result
    finally:
        with suppress(OSError):
            run.folder.rmdir()  # works only if it is empty, because nothing has begun


class Training:
    """One run: what it consists of, and its course from epoch to epoch."""

    def __init__(
        self,
        recipe: Recipe,
        run: Run,
        accelerator: Any,
        processes: Processes,
        stop: StopRequest,
        has_begun: bool,
        quiet: bool,
        data: Table | None,
    ) -> None:
        self.run, self.accelerator, self.has_begun = run, accelerator, has_begun
        self.quiet = quiet or not processes.is_main
        made = prepare(recipe, torch.device(accelerator.device), processes, data)
        self.recipe, self.device, self.processes = made.recipe, made.device, processes
        self.experiment, self.model, self.loss = made.experiment, made.model, made.loss
        if not any(parameter.requires_grad for parameter in self.model.parameters()):
            raise ValueError(
                "a part of the network must train; nothing of "
                f"{self.recipe.backbone.name!r} with backbone.head={self.recipe.backbone.head!r} "
                "does. Set backbone.head=linear."
            )
        self.data = data_facts(made.experiment)
        self.stepper, self.means, self.parts = made.stepper, made.means, made.parts
        self.batch_size = int(self.recipe.train.batch_size)
        self.at = Position()
        self.best: dict[str, Any] | None = None
        self._unwritten: Kept | None = None
        self._gain: dict[str, float] | None = None  # of the last evaluation
        self._prefixes: dict[str, Any] = {}  # of the last evaluation
        self._features: Experiment | None = None
        self._has_tensors = True  # False: a finished run without a state, whose result is lost
        self.watch, self.stop = LossWatch(self.device), stop

    def train(self, pictures: bool, baseline: bool, keep_embeddings: bool) -> dict[str, Any]:
        """Begin or resume the run, finish it, and return its result."""
        self._begin_or_resume()
        if self.has_begun and self._is_finished():
            self._print(f"{self.run.folder} is finished already.")
            return self.run.result()
        self.processes.wait()
        if self.processes.is_main and self._has_tensors:
            self.run.reopen()
        if self.recipe.track.with_:
            settings = {k: str(v) for k, v in _flat(self.recipe.as_dict()).items()}
            self.accelerator.init_trackers(self.recipe.track.project, config=settings)
        total = self.recipe.train.epochs * self.experiment.steps * self.batch_size
        bar = Bar(total, "training", unit="images", done=self.at.steps * self.batch_size)
        self._clock_read = self._saved_at = time.monotonic()
        with bar if not self.quiet else nullcontext():
            self.bar = bar
            try:
                least = self._least_loss
                self._print(console.opening(self.experiment, self.model, self.run.folder, least))
                if self._is_on_features() and not self._is_over():
                    self._on_features()  # before the bar of training shows
                if baseline and not self.at.steps and not self._is_over():
                    self._measure_start()
                while not self._is_over():
                    self._train_epoch()
                    self._close_epoch()
                self._save()
                return self._finish(pictures, keep_embeddings)
            except NotFiniteError as error:
                with suppress(OSError):  # a full disk is not what ended this run
                    self._write_best()
                rates = ", ".join(f"{name} {rate:g}" for name, rate in self._rates().items())
                raise NotFiniteError(
                    f"{error} That is with the learning rates {rates}. {last_good_state(self.run)} "
                    "A resumed run would reach the same step: start a run with lower rates, or "
                    "with clipping."
                ) from error
            except OSError as error:
                remedy = "Make room" if error.errno in FULL_DISK else "Fix it"
                raise OSError(
                    f"{error}. The run stops here. {last_good_state(self.run)} {remedy}, then: "
                    f"{how_to_resume(self.run)}"
                ) from error

    @property
    def _least_loss(self) -> float:
        return float(getattr(self.loss, "least_value", 0.0))

    def _measure_start(self) -> None:
        """Measure the network before training, without its head: epoch 0."""
        split = self.experiment.measured
        if split is None or self.at.before is not None:
            return
        network: nn.Module = WithoutHead(self.model)
        experiment, options = self.experiment, {"precision": self.stepper.precision}
        if self._is_on_features():
            experiment, network, options = self._on_features(), Unit(), {"precision": nullcontext}
        self._add_time()
        seconds = self.at.epoch_seconds
        try:
            found, _, _ = experiment.evaluator.evaluate_prefixes(
                network, split, (), watch=self._watch, **options
            )
        except (NotFiniteError, ValueError) as error:
            # It may train all the same: a head can give a direction to features of length 0.
            warnings.warn(f"the network before training has no score: {error}", stacklevel=2)
            return
        finally:
            self._add_time()
            seconds, self.at.epoch_seconds = self.at.epoch_seconds - seconds, seconds
        self.at.before = {"metrics": found.summary(), "by_class": by_class(found)}
        if not self.quiet:
            self.bar.say(console.start_line(self.recipe, self.at.before["metrics"], seconds))

    # One epoch

    def _train_epoch(self) -> None:
        epoch = self.at.epoch
        self.model.train()
        self.loss.train()
        is_warmup, on_features = epoch < self.recipe.train.warmup_epochs, self._is_on_features()
        self.stepper.set_phase(is_warmup, on_features)
        experiment = self._on_features() if on_features else self.experiment
        if self.at.step == 0:
            self.means.clear()
            place_fields(self.loss, self.recipe.fields, epoch, experiment, self._embed_training)
        self.watch = LossWatch(self.device, self.at.loss_total, self.at.loss_count)
        follows = self.recipe.fields.how == "class_mean"
        for images, labels in experiment.batches(epoch, self.at.step):
            self._set_rates(epoch + (self.at.step + 0.5) / experiment.steps)
            # Random numbers depend on the step alone, so that dropout needs no saved generator.
            place = (draws.STEPS, self.at.steps, self.processes.rank)
            torch.manual_seed(draws.seed_at(self.recipe.seed, *place))
            value, embeddings, joined = self.stepper(images, labels)
            self.means.add(embeddings, joined)
            if follows and isinstance(self.loss, MeanFieldLoss):
                follow_class_means(self.loss, embeddings, joined, self.recipe.fields.momentum)
            self.at.step += 1
            self.at.steps += 1
            self.watch.add(value, self.at.step, epoch + 1)
            if not self.quiet:
                self.bar.advance(self.batch_size, f"epoch {epoch + 1}/{self.recipe.train.epochs}")
            self._stop_or_save()

    def _close_epoch(self) -> None:
        """Measure the epoch, keep the network if it is the best, write the metrics."""
        number = self.at.epoch + 1
        line: dict[str, Any] = {
            "epoch": number,
            "phase": "warm-up" if number <= self.recipe.train.warmup_epochs else "training",
            "steps": self.at.steps,
            "loss": self.watch.finish(),
            "lr": self._set_rates(self.at.epoch + (self.at.step - 0.5) / self.experiment.steps),
        }
        self._add_time()
        images = self.experiment.steps * self.batch_size
        line["images_per_second"] = images / max(self.at.epoch_seconds, 1e-9)
        self.at.note(self.watch, self.loss)
        if self.at.skipped is not None:
            line["skipped"] = self.at.skipped
        line["order"] = order_parameters(self.means, self.loss)
        is_due = number % self.recipe.evaluate.every == 0 or number == self.recipe.train.epochs
        if is_due and self.experiment.measured:
            self._gain = None
            line["evaluation"] = self._evaluate(self.model, self.experiment.measured)
            if self._gain is not None:
                line["gain"] = self._gain
            if self._prefixes:
                line["dimensions"] = self._prefixes
        if number == 1 and self.at.before is not None:
            line["before"] = self.at.before["metrics"]
        self._add_time()
        line["seconds"] = self.at.epoch_seconds
        self.at.history.append(line)
        is_best = self._is_best(line)
        if is_best:
            self._keep(number, line["evaluation"])
        if self.processes.is_main:
            self.run.write_metrics(self.at.history)
        numbers = {k: v for k, v in _flat(line).items() if isinstance(v, (int, float))}
        self.accelerator.log(numbers, step=number)
        if not self.quiet:
            left = console.seconds_left(self.at.history, self.recipe.train)
            self.bar.expect(left)
            epochs, least = self.recipe.train.epochs, self._least_loss
            self.bar.say(console.epoch_line(line, epochs, least, is_best=is_best, left=left))
        self.at.close_epoch()
        self.watch = LossWatch(self.device)
        self._stop_or_save()

    def _evaluate(
        self, model: Embedder, split: str, *, keep: bool = False
    ) -> dict[str, float | int]:
        """Measure a network on a split; with ``keep`` write its embeddings of the test part."""
        try:
            experiment, network, options = self._embedding(model)
            found, self._prefixes, embedded = experiment.evaluator.evaluate_prefixes(
                network, split, self.recipe.backbone.dimensions or (), **options
            )
            if self.at.before is not None and split == self.experiment.measured:
                trained = self.experiment.table.part("train").classes()
                self._gain = gain_between(self.at.before["by_class"], by_class(found), trained)
            if keep and self.processes.is_main:
                self.run.write_test_embeddings(embedded.kept())
            return found.summary()
        except NotFiniteError as error:
            self.parts.refuse_not_finite(self.at)
            raise NotFiniteError(f"{error} That is after epoch {self.at.epoch + 1}.") from error

    def _embedding(self, model: Embedder) -> tuple[Experiment, nn.Module, dict[str, Any]]:
        """Return the data, the network and the options with which a network embeds items."""
        if self._is_on_features():
            options = {"precision": nullcontext, "watch": self._watch}
            return self._on_features(), HeadOnly(model), options
        return self.experiment, model, {"precision": self.stepper.precision, "watch": self._watch}

    def _embed_training(self) -> Tensor:
        experiment, network, options = self._embedding(self.model)
        return experiment.embed_training(network, **options)

    def _watch(self) -> None:
        # Several processes embed different numbers of batches, and agree between steps.
        if self.processes.size == 1:
            self._stop_if_wanted()

    def _is_on_features(self) -> bool:
        return self.recipe.is_on_features(self.at.epoch)

    def _on_features(self) -> Experiment:
        """Return the data as features of the trunk, which does not change; computed once."""
        if self._features is None:
            self._add_time()
            before = self.at.epoch_seconds
            self._features, count = experiment_on_features(
                self.experiment, self.model, watch=self._watch, quiet=self.quiet
            )
            self._add_time()
            seconds, self.at.epoch_seconds = self.at.epoch_seconds - before, before
            self._print(console.features_line(self.recipe, self._features, count, seconds))
        return self._features

    def _is_best(self, line: dict[str, Any]) -> bool:
        if "evaluation" not in line or self.best is None:
            return "evaluation" in line
        metric = self.recipe.evaluate.metric
        return bool(line["evaluation"][metric] > self.best["metrics"][metric])

    def _keep(self, epoch: int, metrics: dict[str, Any]) -> None:
        """Make the present network the model of the run."""
        self.best = {
            "epoch": epoch,
            "metrics": metrics,
            "seconds": self.at.seconds,
            "class_names": list(self.experiment.class_names),
        }
        if self.processes.is_main or is_sharded(self.loss):
            kept = Kept.now(self.model, self.loss, self.best)
            self._unwritten = kept if self.processes.is_main else None

    def _set_rates(self, progress: float) -> dict[str, float]:
        factor = self.recipe.schedule.factor(progress, self.recipe.train.epochs)
        for group in self.stepper.optimizer.param_groups:
            group["lr"] = group["rate"] * factor
        return self._rates()

    def _rates(self) -> dict[str, float]:
        return {group["name"]: group["lr"] for group in self.stepper.optimizer.param_groups}

    # Stopping, saving, resuming

    def _is_over(self) -> bool:
        """Return whether all epochs are done, or early stopping ends the run."""
        settings = self.recipe.train
        if self.at.epoch >= settings.epochs:
            return True
        if not settings.patience or self.best is None or not self.best["metrics"]:
            return False
        # Patience counts from the end of warm-up, whose epochs need not improve.
        since = max(self.best["epoch"], settings.warmup_epochs)
        return bool(self.at.epoch - since >= settings.patience)

    def _stop_or_save(self) -> None:
        self._stop_if_wanted()
        due = time.monotonic() - self._saved_at >= self.recipe.train.checkpoint_seconds
        if is_sharded(self.loss) and self.recipe.train.checkpoint_seconds:
            # Each process has a part of the state: they save together or not at all.
            due = self._any_process(due)
        if due:
            self._save()

    def _stop_if_wanted(self) -> None:
        if self._any_process(self.stop.wanted):
            self._save()
            raise StoppedError(
                f"in epoch {self.at.epoch + 1} after step {self.at.step}; the state is saved. "
                f"Resume with: {how_to_resume(self.run)}"
            )

    def _any_process(self, wants: bool) -> bool:
        if self.processes.size > 1 and self.at.steps % STEPS_BETWEEN_AGREEMENTS:
            return False
        return self.processes.any(wants, self.device)

    def _save(self) -> None:
        """Save the state, if it is finite; nothing if only a result is written again."""
        if not self._has_tensors:
            return
        self.watch.finish()
        self._add_time()
        self.at.note(self.watch, self.loss)
        self._write_best()
        if self.processes.is_main or is_sharded(self.loss):
            origin = {"recipe": self.recipe.as_dict(), "data": self.data}
            state = self.parts.pack(self.at, origin)
        if self.processes.is_main:
            self.run.checkpoints.save(self.at.steps, state)
        self._saved_at = time.monotonic()

    def _write_best(self) -> None:
        """Write the best network if it is not written yet: before each state, not each time.

        So no state knows of a better network than the folder holds.
        """
        if self._unwritten is not None:
            self.run.write_model(self._unwritten)
            self._unwritten = None

    def _begin_or_resume(self) -> None:
        if not self.has_begun:
            if self.processes.is_main:
                self._write_recipe(made_with(self.device, self.processes.size))
            self.processes.wait()
            return
        metric = self.recipe.evaluate.metric
        state = newest_state(self.run, self.processes, self.device)
        changed = changes_since(self.run, self.recipe, state)
        if state is not None:
            refuse_other_data(state, self.data, self.run)
            self.at = self.parts.unpack(state)
        elif self.run.is_finished() and (end := position_at_the_end(self.run, metric)):
            self.at, self.best, self._has_tensors = end, self.run.model_facts(), False
        refuse_fewer_epochs(self.at, self.recipe)
        if changed and self.processes.is_main:
            self._write_recipe(self.run.recipe().get("made_with", {}))
        if state is None:
            if self._has_tensors or not self._is_over():
                self._begin_again()
            return
        # The model's file is the one record of the best network that cannot disagree with it.
        self.best, wrong = kept_network(self.run, self.at, metric)
        if wrong:
            self._replace_network(wrong, metric)
        self._restore_metrics()
        if not self._is_over():
            self._print(f"Resuming in epoch {self.at.epoch + 1} after step {self.at.step}.")

    def _begin_again(self) -> None:
        self.at, self.best, self._has_tensors = Position(), None, True
        if self.processes.is_main:
            # Its recipe may have been another: a later state must not take it for the best so far.
            (self.run.folder / MODEL).unlink(missing_ok=True)
        self._print("No state was saved yet; the run begins again.")

    def _replace_network(self, wrong: str, metric: str) -> None:
        """Keep the network of the state in place of a lost one, if it has been evaluated."""
        best, last = best_line(self.at.history, metric), (self.at.history or [{}])[-1]
        what = f"{self.run.folder / MODEL} {wrong}"
        if self.at.step == 0 and self._is_best(last):
            self._keep(self.at.epoch, last["evaluation"])
            what += f" It is written again from the state, which is that of epoch {self.at.epoch}."
        if best is not None and (self._unwritten is None or best["epoch"] != self.at.epoch):
            others = "the network there and of " if self.best else ""
            what += (
                f" The best network so far, of epoch {best['epoch']}, is lost; the best of {others}"
                "the epochs to come replaces it."
            )
        warnings.warn(what, stacklevel=2)

    def _restore_metrics(self) -> None:
        """Write the metrics of the state again if the file has others, or is damaged."""
        history = self.at.history
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                there = self.run.metrics()
        except (ValueError, UserWarning):
            there = []
        if there == history or not self.processes.is_main:
            return
        if there[: len(history)] != history:
            path = self.run.folder / METRICS
            warnings.warn(
                f"{path} did not hold the metrics of the {self.at.epoch} epochs done: it is "
                "written again from the state.",
                stacklevel=2,
            )
        self.run.write_metrics(history)

    def _write_recipe(self, made_with: dict[str, Any]) -> None:
        self.run.write_recipe(to_toml({**self.recipe.as_dict(), "made_with": made_with}))

    def _is_finished(self) -> bool:
        """Return whether there is a result, of all the epochs asked for."""
        result = self.run.whole_result()
        if result is None or self.best is None or self._unwritten is not None:
            return False  # it is written again from what is there
        same = (result.get("steps"), result.get("epoch")) == (self.at.steps, self.best["epoch"])
        return same and self._is_over()

    def _add_time(self) -> None:
        now = time.monotonic()
        self.at.seconds += now - self._clock_read
        self.at.epoch_seconds += now - self._clock_read
        self._clock_read = now

    def _finish(self, pictures: bool, keep_embeddings: bool) -> dict[str, Any]:
        if self.best is None or not self.best["metrics"]:
            # Nothing was measured: the last network is the run's.
            self._keep(self.at.epoch, {})
            self._write_best()
        result = results.result_of(self.experiment, self.at, self.best or {})
        self.processes.wait()
        if self.recipe.tests_at_the_end and self.experiment.can_be_measured("test"):
            # The test set is used once, for the network that the held-out classes chose.
            model = self.run.model(self.device)
            result["test"] = self._evaluate(model, "test", keep=keep_embeddings)
            if self._prefixes:
                result["test_dimensions"] = self._prefixes
        if self.processes.is_main:
            if pictures:
                results.draw(self.run, self.recipe, result, self.at.history)
            self.run.write_card(card(self.recipe, result))
            self.run.write_result(result)  # with it the run is finished
            self.run.checkpoints.remove_all_but_the_newest()
        self.processes.wait()  # until the main process has written
        # Not end_training, which would end the process group: another run may follow.
        for tracker in self.accelerator.trackers:
            tracker.finish()
        self._print(console.closing(result, self.recipe, self.run.folder))
        return result

    def _print(self, text: str) -> None:
        if not self.quiet:
            print(text, flush=True)


def _flat(nested: dict[str, Any], above: str = "") -> dict[str, Any]:
    """Return a nested dict under dotted names; a list becomes its entries, counted from 0."""
    found: dict[str, Any] = {}
    for key, value in nested.items():
        if isinstance(value, list):
            value = {str(number): entry for number, entry in enumerate(value)}
        if isinstance(value, dict):
            found |= _flat(value, f"{above}{key}.")
        else:
            found[f"{above}{key}"] = value
    return found
