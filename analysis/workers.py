"""Processes that the parts of a spans table are split on: of this machine, or of a Dask cluster."""

import multiprocessing
import os
from collections.abc import Iterator
from concurrent.futures import Executor, ProcessPoolExecutor
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

    A part whose worker is lost is run again on another one. Raises `WorkersError`.
    """
    try:
        from distributed import Client, LocalCluster
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
        yield client.get_executor()
    finally:
        client.close()
        if cluster is not None:
            cluster.close()
