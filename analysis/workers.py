"""Processes that the parts of a spans table are split on: of this machine, or of a Dask cluster."""

import logging
import multiprocessing
import os
from collections.abc import Iterator
from concurrent.futures import CancelledError, Executor, ProcessPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Final

import pyarrow as pa

LOCAL: Final = "local"
_CONNECT_S: Final = 10


class WorkersError(Exception):
    """There are no workers; one sentence."""


@contextmanager
def processes(count: int) -> Iterator[Executor]:
    """So many fresh processes of this machine."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(count, mp_context=context, initializer=_alone) as executor:
        yield executor


def every_core() -> AbstractContextManager[Executor]:
    """A process for each core of this machine."""
    return processes(os.cpu_count() or 1)


def _alone() -> None:
    """One process for each core: Arrow needs no threads of its own."""
    pa.set_cpu_count(1)
    pa.set_io_thread_count(1)


@contextmanager
def dask(address: str, count: int) -> Iterator[Executor]:
    """The workers of a scheduler (`tcp://host:8786`), or `local`: a cluster of `count` here.

    A part whose worker is lost is run again on another one, three times. Raises `WorkersError`,
    also where the cluster is lost while it is used.
    """
    try:
        from distributed import Client, KilledWorker, LocalCluster
        from distributed.comm.core import CommClosedError
    except ModuleNotFoundError as error:
        raise WorkersError(f"--dask needs {error.name}: pip install 'pdtrace[dask]'") from error
    where: Any = address
    cluster = None
    try:
        if address == LOCAL:
            where = cluster = LocalCluster(
                n_workers=count,
                threads_per_worker=1,
                host="127.0.0.1",
                dashboard_address="127.0.0.1:0",
            )
        client = Client(where, timeout=_CONNECT_S)
    except (OSError, RuntimeError, ValueError, TimeoutError) as error:
        raise WorkersError(f"no Dask scheduler answers at {address}: {error}") from error
    try:
        with _quiet(logging.getLogger("distributed")):
            yield client.get_executor()
    except KilledWorker as error:
        raise WorkersError(
            f"{error.allowed_failures + 1} workers of the Dask cluster at {address} ended while "
            "they split the same part, perhaps for want of memory"
        ) from error
    except (CancelledError, CommClosedError) as error:
        raise WorkersError(
            f"the Dask cluster at {address} was lost: its scheduler answers no more"
        ) from error
    finally:
        client.close()
        if cluster is not None:
            cluster.close()


@contextmanager
def _quiet(log: logging.Logger) -> Iterator[None]:
    """Without the stack traces of a library that are told in a sentence of ours."""
    level = log.level
    log.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        log.setLevel(level)
