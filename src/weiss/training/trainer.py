"""The trainer: from a recipe to a run folder.

    recipe -> data, network, loss, optimiser -> epochs of steps -> evaluation -> run folder

Everything that a step depends on is a function of the recipe and of the state that `resuming`
saves, so that a run which was killed and resumed is the run that was not: on a CPU to the last bit.
Several processes (``torchrun``, ``accelerate launch``) share each batch and compute what one would.
"""

import errno
import time
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from weiss._base import draws
from weiss._base.interrupts import StoppedError, StopRequest
from weiss._base.processes import Processes
from weiss._base.progress import Bar
from weiss.backbones import Embedder
from weiss.losses import MeanFieldLoss
from weiss.losses.self_consistency import follow_class_means, order_parameters
from weiss.losses.shards import is_sharded
from weiss.runs import Recipe, to_toml
from weiss.runs.evaluator import NotFiniteError
from weiss.runs.folder import Kept, Run
from weiss.runs.provenance import made_with
from weiss.training import outputs
from weiss.training.alternation import place_fields
from weiss.training.loss_watch import LossWatch, in_words
from weiss.training.preparation import make_accelerator, prepare, processes_of
from weiss.training.resuming import (
    Position,
    changes_since,
    data_facts,
    last_good_state,
    make_folder,
    newest_state,
    refuse_another_run,
    refuse_fewer_epochs,
    refuse_other_data,
    warn_of_a_lost_network,
    written_by_one,
)

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
STEPS_BETWEEN_AGREEMENTS = 16
"""How often several processes ask each other whether one of them wants to stop, or to save."""


def train(
    recipe: Recipe,
    out: str | Path,
    *,
    resume: bool = False,
    quiet: bool = False,
    pictures: bool = True,
) -> dict[str, Any]:
    """Train, and leave a run folder.

    Args:
        recipe: the experiment.
        out: the folder of the run; made if it is not there.
        resume: go on with the run that the folder holds. What it has done is not done again; a
            recipe that differs is refused.
        quiet: print nothing.
        pictures: draw learning curves; they can be drawn later from metrics.jsonl.

    Returns:
        The result, as ``result.json`` holds it: the best metrics under the names of
        `weiss.retrieval_metrics`, the epoch, the loss's short name, seconds.

    Raises:
        ValueError: the recipe, the data or the folder cannot be used.
        NotFiniteError: the loss became NaN or infinite; the last good state is kept.
        StoppedError: Ctrl-C or SIGTERM; the state is saved.
    """
    run = Run(out)
    refuse_another_run(run, resume)  # at once, before anything is loaded
    make_folder(run.folder)
    accelerator = make_accelerator(recipe, run.folder)
    processes = processes_of(accelerator)
    try:
        with written_by_one(run) if processes.is_main else nullcontext(), StopRequest() as stop:
            # Again, now that nobody else writes here; the main process looks, all do the same.
            begun = processes.any(processes.is_main and run.exists(), accelerator.device)
            if begun:
                refuse_another_run(run, resume)
            training = Training(recipe, run, accelerator, processes, stop, begun, quiet)
            try:
                return training.go(pictures)
            finally:
                training.stepper.release()
    finally:
        with suppress(OSError):
            run.folder.rmdir()  # which works only if nothing came of it


class Training:
    """One run: what it is made of, and its way from epoch to epoch."""

    def __init__(
        self,
        recipe: Recipe,
        run: Run,
        accelerator: Any,
        processes: Processes,
        stop: StopRequest,
        has_begun: bool,
        quiet: bool,
    ) -> None:
        self.run, self.accelerator, self.has_begun = run, accelerator, has_begun
        self.quiet = quiet or not processes.is_main
        made = prepare(recipe, torch.device(accelerator.device), processes)
        self.recipe, self.device, self.processes = made.recipe, made.device, processes
        self.experiment, self.model, self.loss = made.experiment, made.model, made.loss
        self.stepper, self.means, self.parts = made.stepper, made.means, made.parts
        self.at = Position()
        self.best: dict[str, Any] | None = None
        self._unwritten: Kept | None = None
        self.watch, self.stop = LossWatch(self.device), stop

    def go(self, pictures: bool = True) -> dict[str, Any]:
        """Take up the run where it is, and bring it to its end."""
        self._take_up()
        if self.has_begun and self._is_finished():
            self._say(f"{self.run.folder} is finished already.")
            return self.run.result()
        self.processes.wait()
        if self.processes.is_main:
            self.run.reopen()
        self._start_trackers()
        size = int(self.recipe.train.batch_size)
        total = self.recipe.train.epochs * self.experiment.steps * size
        bar = Bar(total, "training", unit="images", done=self.at.steps * size)
        self._moment = self._saved_at = time.monotonic()
        with bar if not self.quiet else nullcontext():
            self.bar = bar
            try:
                self._say(outputs.opening(self.experiment, self.model, self.run.folder))
                while not self._is_over():
                    self._train_epoch()
                    self._close_epoch()
                self._save()
                return self._finish(pictures)
            except NotFiniteError as error:
                with suppress(OSError):  # a full disk is not what ended this run
                    self._write_best()
                raise NotFiniteError(
                    f"{error} {last_good_state(self.run)} Going on would come to the same step: "
                    "start a run with lower rates, or with clipping."
                ) from error
            except OSError as error:
                remedy = "Make room" if error.errno in FULL else "Mend it"
                raise OSError(
                    f"{error}. The run stops here. {last_good_state(self.run)} {remedy}, then: "
                    f"{self._how_to_resume()}"
                ) from error

    # One epoch

    def _train_epoch(self) -> None:
        epoch, experiment = self.at.epoch, self.experiment
        self.model.train()
        self.loss.train()
        self.stepper.set_phase(warming_up=epoch < self.recipe.train.warmup_epochs)
        if self.at.step == 0:
            self.means.clear()
            place_fields(self.loss, self.recipe.fields, epoch, experiment, self._embed_training)
        self.watch = LossWatch(self.device, self.at.loss_total, self.at.loss_count)
        size = int(self.recipe.train.batch_size)
        follows = self.recipe.fields.how == "class_mean"
        for images, labels in experiment.batches(epoch, self.at.step):
            rates = self._set_rates(epoch + (self.at.step + 0.5) / experiment.steps)
            # A function of the place, as all random numbers are: dropout needs no saved generator.
            place = (draws.STEPS, self.at.steps, self.processes.rank)
            torch.manual_seed(draws.seed_at(self.recipe.seed, *place))
            value, embeddings, joined = self.stepper(images, labels)
            self.means.add(embeddings, joined)
            if follows and isinstance(self.loss, MeanFieldLoss):
                follow_class_means(self.loss, embeddings, joined, self.recipe.fields.momentum)
            self.at.step += 1
            self.at.steps += 1
            self.watch.add(value, step=self.at.step, epoch=epoch + 1, rates=rates)
            if not self.quiet:
                self.bar.advance(size, f"epoch {epoch + 1}/{self.recipe.train.epochs}")
            self._stop_or_save()

    def _close_epoch(self) -> None:
        """Measure the epoch, keep the network if it is the best, write all of it down."""
        number = self.at.epoch + 1
        line: dict[str, Any] = {
            "epoch": number,
            "phase": "warm-up" if number <= self.recipe.train.warmup_epochs else "training",
            "steps": self.at.steps,
            "loss": self.watch.finish(),
            "lr": self._set_rates(self.at.epoch + (self.at.step - 0.5) / self.experiment.steps),
        }
        self._clock()
        images = self.experiment.steps * int(self.recipe.train.batch_size)
        line["images_per_second"] = images / max(self.at.epoch_seconds, 1e-9)
        line |= self.at.note(self.watch, self.loss)
        line["order"] = order_parameters(self.means, self.loss)
        is_due = number % self.recipe.evaluate.every == 0 or number == self.recipe.train.epochs
        if is_due and self.experiment.measured:
            line["evaluation"] = self._evaluate(self.model, self.experiment.measured[0])
        self._clock()
        line["seconds"] = self.at.epoch_seconds
        self.at.history.append(line)
        is_best = self._keep_if_best(line)
        if self.processes.is_main:
            self.run.write_metrics(self.at.history)
        self.accelerator.log(outputs.tracked(line), step=number)
        if not self.quiet:
            self.bar.say(outputs.epoch_line(line, self.recipe.train.epochs, is_best=is_best))
        self.at.close_epoch()
        self.watch = LossWatch(self.device)
        self._stop_or_save()

    def _evaluate(self, model: Embedder, split: str) -> dict[str, float | int]:
        try:
            options = self._embedding_options()
            return self.experiment.evaluator.evaluate(model, split, **options).summary()
        except NotFiniteError as error:
            self.parts.refuse_not_finite(self.at)
            raise NotFiniteError(
                f"{error} That is after epoch {self.at.epoch + 1}, with the learning rates "
                f"{in_words(self._rates())}."
            ) from error

    def _embedding_options(self) -> dict[str, Any]:
        # Several processes embed different numbers of batches, and agree between steps.
        watch = self._stop_if_wanted if self.processes.size == 1 else lambda: None
        return {"precision": self.stepper.precision, "watch": watch}

    def _embed_training(self) -> Tensor:
        return self.experiment.embed_training(self.model, **self._embedding_options())

    def _keep_if_best(self, line: dict[str, Any]) -> bool:
        metric = self.recipe.evaluate.metric
        if "evaluation" not in line:
            return False
        if self.best is not None and line["evaluation"][metric] <= self.best["metrics"][metric]:
            return False
        self._keep(line["epoch"], line["evaluation"])
        return True

    def _keep(self, epoch: int, metrics: dict[str, Any]) -> None:
        """Make the network as it is now the run's model."""
        self.best = {
            "epoch": epoch,
            "metrics": metrics,
            "seconds": self.at.seconds,
            "class_names": list(self.experiment.class_names),
        }
        if self.processes.is_main or is_sharded(self.loss):
            kept = Kept.now(self.model, self.loss, self.best)
            self._unwritten = kept if self.processes.is_main else None

    # Rates

    def _set_rates(self, progress: float) -> dict[str, float]:
        factor = self.recipe.schedule.factor(progress, self.recipe.train.epochs)
        for group in self.stepper.optimizer.param_groups:
            group["lr"] = group["rate"] * factor
        return self._rates()

    def _rates(self) -> dict[str, float]:
        return {group["name"]: group["lr"] for group in self.stepper.optimizer.param_groups}

    # Stopping, saving, going on

    def _is_over(self) -> bool:
        settings = self.recipe.train
        if self.at.epoch >= settings.epochs:
            return True
        if not settings.patience or not self.at.history or self.best is None:
            return False
        # Epochs of warm-up are not expected to be better than each other.
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
                f"in epoch {self.at.epoch + 1} after step {self.at.step}; the state is "
                f"saved. Go on with: {self._how_to_resume()}"
            )

    def _any_process(self, wants: bool) -> bool:
        if self.processes.size > 1 and self.at.steps % STEPS_BETWEEN_AGREEMENTS:
            return False
        return self.processes.any(wants, self.device)

    def _save(self) -> None:
        """Save the state, if it is worth it."""
        self.watch.finish()
        self._clock()
        self.at.note(self.watch, self.loss)
        self._write_best()
        if self.processes.is_main or is_sharded(self.loss):
            state = self.parts.pack(self.at, data_facts(self.experiment))
        if self.processes.is_main:
            self.run.checkpoints.save(self.at.steps, state)
        self._saved_at = time.monotonic()

    def _write_best(self) -> None:
        """Write the best network, if it is not written yet: with each state, rather than each time.

        It comes before the state, so that a state never knows of a better network than there is.
        """
        if self._unwritten is not None:
            self.run.write_model(self._unwritten)
            self._unwritten = None

    def _take_up(self) -> None:
        """Begin the run, or go on with it."""
        if not self.has_begun:
            if self.processes.is_main:
                self.run.write_recipe(to_toml(self._described()))
            self.processes.wait()
            return
        changed = changes_since(self.run, self.recipe)
        state = newest_state(self.run, self.processes, self.device)
        if state is not None:
            refuse_other_data(state, self.experiment, self.run)
            refuse_fewer_epochs(state, self.recipe)
        if changed and self.processes.is_main:
            begun_with = self.run.recipe().get("made_with", {})
            self.run.write_recipe(to_toml({**self._described(), "made_with": begun_with}))
        if state is None:
            self._say("No state was saved yet; the run begins again.")
            return
        self.at = self.parts.unpack(state)
        # The model's file is the one record of the best network that cannot disagree with it.
        self.best = self.run.model_facts()
        warn_of_a_lost_network(self.at, self.best, self.recipe.evaluate.metric)
        if not self._is_over():
            self._say(f"Going on in epoch {self.at.epoch + 1} after step {self.at.step}.")

    def _is_finished(self) -> bool:
        """Say whether the result that is there is that of all the epochs asked for."""
        if not (self.run.is_finished() and self._is_over()):
            return False
        return bool(self.run.result()["steps"] == self.at.steps)

    def _clock(self) -> None:
        now = time.monotonic()
        self.at.seconds += now - self._moment
        self.at.epoch_seconds += now - self._moment
        self._moment = now

    def _how_to_resume(self) -> str:
        return f"weiss train --resume --out {self.run.folder}"

    def _finish(self, pictures: bool) -> dict[str, Any]:
        if self.best is None:
            # Nothing was measured: the last network is the run's.
            self._keep(self.at.epoch, {})
            self._write_best()
        result = outputs.result(self.recipe, self.at, self.best or {}, self.experiment)
        self.processes.wait()
        if self.recipe.tests_at_the_end and self.experiment.can_be_measured("test"):
            # The test set is looked at once, by the network that the held-out classes chose.
            result["test"] = self._evaluate(self.run.model(self.device), "test")
        if self.processes.is_main:
            outputs.write(self.run, self.recipe, result, self.at.history, pictures=pictures)
            self.run.checkpoints.remove_all_but_the_newest()
        self.processes.wait()  # for the main one, which has written
        # Not end_training, which would part the processes: another run may follow.
        for tracker in self.accelerator.trackers:
            tracker.finish()
        self._say(outputs.closing(result, self.run.folder))
        return result

    # What is written about it

    def _described(self) -> dict[str, Any]:
        return {**self.recipe.as_dict(), "made_with": made_with(self.device, self.processes.size)}

    def _start_trackers(self) -> None:
        if self.recipe.track.with_:
            flat = {k: str(v) for k, v in outputs.flat(self.recipe.as_dict()).items()}
            self.accelerator.init_trackers(self.recipe.track.project, config=flat)

    def _say(self, text: str) -> None:
        if not self.quiet:
            print(text, flush=True)
