"""A run needs no more memory the longer it lasts."""

import gc

import psutil

from weiss.training import trainer

MEGABYTE = 2**20


def test_memory_stays_flat_over_epochs(run, monkeypatch):
    process, used = psutil.Process(), []

    def closed(training, real=trainer.Training._close_epoch):
        real(training)
        if len(used) in (4, 9, 19):
            gc.collect()
        used.append(process.memory_info().rss)

    monkeypatch.setattr(trainer.Training, "_close_epoch", closed)
    run(train__epochs=20, train__checkpoint_seconds=0)
    assert len(used) == 20
    assert used[-1] - used[4] < 4 * MEGABYTE
    # The batches of an epoch, kept by mistake, are 0.4 MB.
    assert used[-1] - used[9] < 2 * MEGABYTE


def test_runs_one_after_the_other_leave_nothing_behind(run):
    process, used = psutil.Process(), []
    for number in range(9):
        run(f"run{number}", train__epochs=1)
        if number in (2, 8):
            gc.collect()
        used.append(process.memory_info().rss)
    assert used[-1] - used[2] < 6 * MEGABYTE
