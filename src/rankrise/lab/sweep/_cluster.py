"""The workers of a sweep: processes of this machine, or a Dask cluster that somebody else has started."""

import contextlib
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rankrise._extras import require

if TYPE_CHECKING:
    from distributed import Client

ALLOWED_FAILURES = 4  # deaths of workers that a run may cause before it is given up
_SECONDS = 30  # in which a cluster must answer
_RESTART = "10 minutes"  # for a local worker that died to start again; Dask gives one up for good after 15 s


@dataclass(frozen=True)
class Workers:
    """Who does the runs of a sweep.

    Args:
        num_workers: Processes of this machine, of one thread each.
        memory_limit: Memory of one process, such as "4GB"; its worker is restarted above it. "auto" shares the memory
            of the machine out, None sets no limit. A training is a process beside its worker and has no limit.
        scheduler: Address of a Dask cluster, such as "tls://login1:8786", in place of processes of this machine.
    """

    num_workers: int = 2
    memory_limit: str | None = "auto"
    scheduler: str = ""


@contextlib.contextmanager
def connected(workers: Workers) -> Iterator["Client"]:
    """A client of the workers; processes of this machine end with it.

    Processes of this machine talk over TLS with a certificate that is made for them and kept in memory, because whoever
    can speak to a scheduler can run code, and a machine may have other users.

    Raises:
        ModuleNotFoundError: Dask is not installed.
        OSError: No cluster answers at the address.
    """
    require("A sweep", "dask", "distributed", "cryptography")
    import dask
    from distributed import Client, LocalCluster, Security

    settings = {
        "distributed.scheduler.allowed-failures": ALLOWED_FAILURES,
        "distributed.scheduler.worker-saturation": 1.0,
        "distributed.deploy.lost-worker-timeout": _RESTART,
        "distributed.worker.preload": ["rankrise.theory"],  # so that no run waits for PyTorch to be imported
        "distributed.logging": {"distributed": "critical"},  # of the workers: what dies is told by the sweep
    }
    with contextlib.ExitStack() as stack:
        stack.enter_context(dask.config.set(settings))
        if workers.scheduler:
            yield stack.enter_context(_client_of(workers.scheduler))
            return
        cluster = LocalCluster(
            n_workers=workers.num_workers,
            threads_per_worker=1,
            processes=True,
            memory_limit=workers.memory_limit,
            dashboard_address=None,
            scheduler_kwargs={"dashboard_address": "127.0.0.1:0"},  # 8787 is taken in a second sweep
            security=Security.temporary(),
            silence_logs=logging.CRITICAL,
        )
        stack.enter_context(cluster)
        yield stack.enter_context(Client(cluster))


def _client_of(address: str) -> "Client":
    from distributed import Client

    try:
        return Client(address, timeout=_SECONDS, set_as_default=False)
    except (OSError, TimeoutError, ValueError) as error:
        what = " ".join(str(error).split()) or type(error).__name__
        raise OSError(
            f"`--scheduler` must be the address of a Dask scheduler that answers; {address} does not: {what:.200}"
        ) from error
