"""Units as tasks of a real Ray cluster on this machine, parts of which are killed.

make test-ray
"""

import signal
import socket
from functools import partial

import pytest
import ray_units
from compared import CHECK, QUICK, bench, small_check, summary_of, table, when_done
from raylets import said_by
from tiny import tiny_recipe, wait_until

from weiss.comparing import carry_out, traditional
from weiss.comparing.folder import join, read_plan
from weiss.comparing.ray_cluster import RayCluster, _do, resources
from weiss.comparing.units import computed
from weiss.runs import Run

needs_ray = [pytest.mark.ray, pytest.mark.dist, pytest.mark.filterwarnings("default")]
LONG = QUICK | {"train__epochs": 40, "train__checkpoint_seconds": 0}
LOSSES = ["mf_cwms", "ms"]


def test_what_a_unit_needs_follows_from_its_recipe(stripes):
    def found(needs=None, has_gpus=False, **changes):
        return resources(tiny_recipe(stripes, **changes), needs or {}, has_gpus=has_gpus)

    assert found(train__device="cpu", has_gpus=True) == {"num_gpus": 0, "num_cpus": 1}
    assert found(train__device="cuda")["num_gpus"] == 1
    assert found(train__device="auto", has_gpus=True)["num_gpus"] == 1
    assert found(train__device="auto", has_gpus=False)["num_gpus"] == 0
    assert found(data__num_workers=3)["num_cpus"] == 3
    assert found(data__keep="memory")["memory"] == 80 * 32 * 32 * 3
    given = found({"gpus": 0.5, "cpus": 4, "memory": 2.5}, data__keep="memory")
    assert given == {"num_gpus": 0.5, "num_cpus": 4, "memory": 2_500_000_000}


def test_a_machine_that_does_not_see_the_folder_does_nothing(recipe, tmp_path):
    out, unit = tmp_path / "bench", computed("a/1", ray_units.double)
    join(traditional(recipe, ["mf_cwms"], seeds=1), out)
    assert _do(unit, str(out), read_plan(out)["id"], "/nowhere").result == {"twice": 2}
    with pytest.raises(RuntimeError, match=r"one folder for all machines .* does not see"):
        _do(unit, str(out), "another", str(tmp_path))
    with pytest.raises(RuntimeError, match="Use a shared disk"):
        _do(unit, str(tmp_path / "elsewhere"), "any", str(tmp_path))
    assert not (tmp_path / "elsewhere").exists()


@pytest.fixture(scope="module")
def long_recipe(stripes):
    return tiny_recipe(stripes, **LONG)


@pytest.fixture(scope="module")
def truth(long_recipe, tmp_path_factory):
    """Two trainings of seconds and a start, done in this process without a break."""
    out = tmp_path_factory.mktemp("truth") / "bench"
    return table(carry_out(traditional(long_recipe, LOSSES, seeds=1), out, quiet=True))


def long_bench(stripes, out):
    options = ["--losses", ",".join(LOSSES), "--seeds", 1, "--cluster", "auto"]
    return bench(stripes, out, *options, **LONG)


def epochs_of(out, loss):
    """How many epochs a training has behind it."""
    run = Run(out / loss / "seed-0")
    return len(run.metrics()) if run.exists() else 0


class TestWithACluster:
    pytestmark = needs_ray

    @pytest.mark.parametrize("how", ["auto", "ray://"])
    def test_the_table_is_that_of_one_process(self, cluster, undisturbed, stripes, tmp_path, how):
        out = tmp_path / "bench"
        address = how if how == "auto" else f"ray://127.0.0.1:{cluster.client_port}"
        command = bench(stripes, out, *CHECK, "--cluster", address, protocol="reality-check")
        said = said_by(cluster.begin(command))
        assert table(summary_of(out)) == table(undisturbed[1])
        assert all(said.count(f"[{number}/18] ") == 1 for number in range(1, 19))

    def test_a_killed_worker_loses_nothing_that_was_saved(self, cluster, stripes, tmp_path, truth):
        out = tmp_path / "bench"
        process = cluster.begin(long_bench(stripes, out))
        wait_until(lambda: epochs_of(out, "ms") > 2)
        cluster.worker_on("ms/seed-0").kill()
        said_by(process)
        assert table(summary_of(out)) == truth

    def test_a_killed_machine_loses_nothing_that_was_saved(self, cluster, stripes, tmp_path, truth):
        out = tmp_path / "bench"
        process = cluster.begin(long_bench(stripes, out))
        raylet = cluster.other_raylet
        found = {}

        def is_at_work_there():
            found["loss"] = next((k for k in LOSSES if cluster.worker_on(k, raylet.pid)), None)
            return found["loss"] and epochs_of(out, found["loss"]) > 2

        wait_until(is_at_work_there)
        cluster.kill_other()
        before = when_done(out)
        said_by(process)
        assert table(summary_of(out)) == truth
        assert {path: when for path, when in when_done(out).items() if path in before} == before

    def test_a_killed_driver_is_continued_by_the_next(self, cluster, stripes, tmp_path, truth):
        out = tmp_path / "bench"
        killed = cluster.begin(long_bench(stripes, out))
        wait_until(lambda: epochs_of(out, "ms") > 2)
        killed.kill()
        killed.communicate()
        before, epochs = when_done(out), epochs_of(out, "ms")
        # At once, while Ray may not know yet and its tasks hold their folders.
        said = said_by(cluster.begin(long_bench(stripes, out)))
        assert table(summary_of(out)) == truth
        assert epochs > 2
        assert {path: when for path, when in when_done(out).items() if path in before} == before
        assert "failed" not in said

    def test_ctrl_c_saves_the_state_of_tasks(self, cluster, stripes, tmp_path, truth):
        out = tmp_path / "bench"
        stopped = cluster.begin(long_bench(stripes, out))
        wait_until(lambda: epochs_of(out, "ms") > 2)
        stopped.send_signal(signal.SIGINT)
        assert "Start the same command again to continue" in said_by(stopped, code=130)
        assert not cluster.worker_on("ms/seed-0")
        assert not list(out.rglob("*.lock"))
        before = epochs_of(out, "ms")
        assert before > 2
        assert (out / "ms" / "seed-0" / "state").exists()
        said_by(cluster.begin(long_bench(stripes, out)))
        assert table(summary_of(out)) == truth

    def test_two_drivers_share_a_folder(self, cluster, undisturbed, stripes, tmp_path):
        out = tmp_path / "bench"
        command = bench(stripes, out, *CHECK, "--cluster", "auto", protocol="reality-check")
        first, second = cluster.begin(command), cluster.begin(command)
        said = [said_by(each) for each in (first, second)]
        assert table(summary_of(out)) == table(undisturbed[1])
        assert all("[18/18]" in each and "failed" not in each for each in said)

    def test_a_driver_on_this_machine_and_one_on_the_cluster_share_a_folder(
        self, cluster, undisturbed, stripes, recipe, tmp_path
    ):
        out = tmp_path / "bench"
        command = bench(stripes, out, *CHECK, "--cluster", "auto", protocol="reality-check")
        other = cluster.begin(command)
        wait_until(lambda: list(out.rglob("result.json")))
        found = carry_out(small_check(recipe), out, quiet=True)
        said_by(other)
        assert table(found) == table(summary_of(out)) == table(undisturbed[1])

    def test_units_get_what_they_need_and_one_that_always_dies_has_failed(
        self, cluster, recipe, tmp_path, monkeypatch
    ):
        import ray

        monkeypatch.setenv("RAY_ADDRESS", cluster.address)
        join(traditional(recipe, ["mf_cwms"], seeds=1), tmp_path)
        units = [
            computed("a/1", ray_units.what_it_has),
            computed("a/2", ray_units.what_it_has, is_light=True),
            computed("a/3", ray_units.die),
            computed("a/4", partial(ray_units.fail, "no luck")),
        ]
        given = {"gpus": 0.5, "cpus": 1}
        said, found = [], {}
        with RayCluster("auto", recipe, tmp_path, needs=given, say=said.append) as executor:
            assert executor.room == 16
            for unit in units:
                executor.start(unit)
            assert executor.room == 12
            while len(found) < len(units):
                found |= {outcome.key: outcome for outcome in executor.wait(1.0)}
        assert not ray.is_initialized()
        assert found["a/1"].result == {"GPU": 0.5, "CPU": 1.0}
        assert found["a/2"].result == {}
        assert (tmp_path / "a/3/died").read_text().count("\n") == 4
        assert found["a/3"].failed.startswith("begun 4 times on the cluster: WorkerCrashedError: ")
        assert found["a/4"].failed == "ValueError: no luck"
        assert all((tmp_path / key / "no_result.json").is_file() for key in ("a/3", "a/4"))
        assert said == []

    def test_a_cluster_that_is_not_there_is_refused_and_none_is_started(self, recipe, tmp_path):
        pytest.importorskip("ray")
        with socket.socket() as nobody:
            nobody.bind(("127.0.0.1", 0))  # and does not listen
            address = f"ray://127.0.0.1:{nobody.getsockname()[1]}"
            plan = traditional(recipe, ["mf_cwms"], seeds=1)
            with pytest.raises(ValueError, match="--cluster must be a Ray cluster that runs"):
                carry_out(plan, tmp_path / "bench", cluster=address, quiet=True)
        assert not (tmp_path / "bench").exists()
