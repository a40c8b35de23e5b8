"""Ray as a `concurrent.futures.Executor`: it repeats a task whose worker was lost."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any

from torsor.later import Later

ray = Later("ray", "RayExecutor needs Ray", "ray")


class RayExecutor(Executor):
    """Tasks for a Ray cluster.

        with RayExecutor() as executor:                        # on this computer
            ts.ensemble(arm, vary, ..., executor=executor)
        RayExecutor("auto")                                    # the cluster that this job belongs to

    address   of a cluster; None: the one that `ray.init` found before, or a new one on this computer
    options   of `ray.remote` for every task, for example num_cpus=1, max_retries=10
    """

    def __init__(self, address: str | None = None, **options: Any) -> None:
        self.ray, self.owned = ray, not ray.is_initialized()
        if self.owned:
            ray.init(address, log_to_driver=False)
        remote = ray.remote(**{"num_cpus": 1} | options)
        self.task = remote(_run)
        self._max_workers = max(1, int(ray.cluster_resources().get("CPU", 1)))

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """The future of fn(*args, **kwargs)."""
        return self.task.remote(fn, args, kwargs).future()

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Leave the cluster if it was joined or started here."""
        if self.owned and self.ray.is_initialized():
            self.ray.shutdown()


def _run(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return fn(*args, **kwargs)
