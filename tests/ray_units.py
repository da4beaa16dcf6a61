"""Units that workers of Ray do in tests; they import this file."""

import os
import signal


def double(folder):
    return {"twice": 2 * int(folder.name)}


def what_it_has(folder):
    """Return the resources that Ray has given to this task."""
    import ray

    return dict(ray.get_runtime_context().get_assigned_resources())


def die(folder):
    with (folder / "died").open("a") as file:
        file.write(f"{os.getpid()}\n")
    os.kill(os.getpid(), signal.SIGKILL)


def fail(why, folder):
    raise ValueError(why)
