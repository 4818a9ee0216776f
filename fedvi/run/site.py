"""Builds one worker of a study, for a simulation, a client or a server's prior."""

import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from fedvi import errors
from fedvi.client import app
from fedvi.client.masking import Form, MaskedLink, Masking
from fedvi.client.private_log import private_log
from fedvi.client.worker import Worker
from fedvi.data.source import ArraySource
from fedvi.federation.messages import Reply, Request
from fedvi.inference import prior_factor
from fedvi.privacy import events, ledger, random
from fedvi.privacy.metrics import Metric
from fedvi.run import loading, made_up
from fedvi.store.base import ClientStore
from fedvi.store.memory import MemoryClientStore
from fedvi.study import build
from fedvi.study.build import PRIOR, Assembly
from fedvi.study.config import Study
from fedvi.transport.memory import Link, MemoryLink
from fedvi.transport.signers import Signer
from fedvi.updates.base import Shard, Task

__all__ = ["client_worker", "file_shard", "prior_worker", "run_prior", "shard_of"]


def client_worker(
    assembly: Assembly,
    client: str,
    link: Link,
    store: ClientStore,
    shard: Callable[[], Shard],
    *,
    admit: Callable[[Task, events.Event, events.Event], None] | None = None,
    metrics_folder: Path | None = None,
    signer: Signer | None = None,
    roster: str | None = None,
    tell: Callable[[str, Sequence[str]], None] | None = None,
    layout: Callable[[], Shard | None] | None = None,
) -> Worker:
    """Builds a client of a study.

    Args:
      assembly: the study, built.
      client: its name in the study.
      link: to the coordinator.
      store: its ledger, secrets and outbox, opened with ``assembly.header(client)``.
      shard: its records, from ``shard_of`` or ``file_shard``; called only after the budget allowed it.
      admit: a policy's check before a task is charged; see ``Worker``.
      metrics_folder: for its solver's metrics, which depend on its records, in a file ``CLIENT.jsonl``
        that must not leave the client; None keeps nothing.
      signer: vouches for the keys of a site that masks its answers; needed in a study of secure sums.
      roster: the digest of the permitted participants, from the site's policy; None: pinned at first sight.
      tell: called with that digest when it is pinned, and the sites that the study begins without.
      layout: ``made_up.layout_of`` this study, shared by the clients of one process; None: its own.

    Raises:
      ConfigError: answers are to be masked without a signer.
    """
    gather, mask = assembly.gather, None
    if gather is not None and gather.bits is not None:
        if signer is None:
            raise errors.ConfigError(
                "aggregation.secure is true, and nothing vouches for this site's keys",
                "name the folder that `fedvi enroll` made with --tls",
            )
        form = Form(assembly.study.digest, assembly.clients, **gather._asdict())
        masking = Masking(client, form, signer, store, roster, tell)
        link, mask = MaskedLink(link, masking), masking.mask
    return Worker(
        client=client,
        study_digest=assembly.digests[0],
        link=link,
        solver=assembly.solvers[client],
        shard=shard,
        root=_root(assembly),
        store=store,
        budget=assembly.budget,
        admit=admit,
        private_log=_private_log(metrics_folder, client),
        mask=mask,
        layout=made_up.layout_of(assembly) if layout is None else layout,
        is_proper=assembly.family.is_proper,
    )


def prior_worker(assembly: Assembly, link: Link) -> Worker:
    """Builds the worker of a prior that is not in the family; it reads no record and keeps nothing.

    Its draws are public and follow from the study's seed, so that a resumed run continues as it would
    have.
    """
    return Worker(
        client=PRIOR,
        study_digest=assembly.study.digest,
        link=link,
        solver=assembly.solvers[PRIOR],
        shard=prior_factor.empty_shard,
        root=random.insecure_root(assembly.study.study.seed),
        store=MemoryClientStore(ledger.open_ledger(assembly.header(PRIOR))),
        budget=assembly.budget,
    )


def run_prior(study: Study, handle: Callable[[Request], Reply]) -> None:
    """Runs the worker of a prior that is not in the family, beside a server, until the run is over.

    Args:
      study: the prior's; it is built here, which imports JAX.
      handle: answers requests, such as ``Coordinator.handle``.

    Raises:
      FedviError: what ``handle`` raises.
    """
    app.run(prior_worker(build.assemble(study), MemoryLink(handle)))


def shard_of(assembly: Assembly, client: str, source: ArraySource) -> Callable[[], Shard]:
    """Pads records to the study's capacity, in read-only arrays.

    Raises:
      DataError: as ``loading.with_capacity`` does.
    """
    held = loading.with_capacity(assembly, {client: source})[client]
    # Returns the same arrays each time, so that a worker hashes them only once.
    return lambda: held


def file_shard(
    assembly: Assembly,
    client: str,
    path: Path,
    *,
    cache: Path | None = None,
    tell: Callable[[str], None] | None = None,
) -> Callable[[], Shard]:
    """Returns a function that reads a client's file at its first call, and remembers the result.

    Records that would take much memory are kept on disk meanwhile; with ``cache``, all records are kept
    on that folder's disk. The function raises DataError as ``loading.load_shard`` does, and calls
    ``tell`` with sentences for this site's own screen.
    """

    @functools.cache
    def read() -> Shard:
        disk = loading.Disk(cache, always=cache is not None)
        source = loading.load_shard(assembly, client, path, disk=disk, tell=tell)
        return shard_of(assembly, client, source)()

    return read


def _root(assembly: Assembly) -> random.Root:
    """Returns the root of a client's secrets: from the operating system, unless nothing is promised or
    the study asks for a replay."""
    study = assembly.study
    if not study.privacy.private:
        return random.insecure_root(study.study.seed)
    seed = study.simulation.insecure_seed
    return random.secure_root() if seed is None else random.insecure_root(seed)


def _private_log(
    folder: Path | None, client: str
) -> Callable[[str, Mapping[str, Metric]], None] | None:
    if folder is None:
        return None
    folder.mkdir(parents=True, exist_ok=True)
    return private_log(folder / f"{client}.jsonl")
