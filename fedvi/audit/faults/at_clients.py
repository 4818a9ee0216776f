"""Mistakes of the client's loop, of its store, and of files that travel by hand."""

from fedvi.audit.faults.fault import Fault

__all__ = ["AT_CLIENTS"]

AT_CLIENTS = (
    Fault(
        "a-secret-for-two-releases",
        "The difference of two releases has no noise left.",
        "client.worker:Worker._drawn",
        "secret = self._root.secret(self.client, release_id)",
        'secret = self.__dict__.setdefault("_first", self._root.secret(self.client, release_id))',
        "client",
    ),
    Fault(
        "a-secret-that-follows-from-its-name",
        "Whoever knows the name of a release takes its noise off.",
        "client.worker:Worker._drawn",
        "secret = self._root.secret(self.client, release_id)",
        'secret = release_id.encode().ljust(32, b".")[:32]',
        "client",
    ),
    Fault(
        "a-retry-draws-fresh-noise",
        "An interrupted release is computed again with noise of another secret: their mean has less.",
        "client.worker:Worker._solve",
        "functools.partial(random.key, secret), before, task, shard",
        "functools.partial(random.key, self._root.secret(release_id)), before, task, shard",
        "client",
    ),
    Fault(
        "an-interrupted-release-takes-another-task",
        "One secret noises the answers to two tasks.",
        "client.worker:Worker._taken_up",
        "pending.task != self._task_fingerprint(pending.secret, task)",
        "False",
        "client",
    ),
    Fault(
        "a-secret-that-met-no-record-is-kept",
        "A copy of the store from that moment noises changed records as its original did.",
        "client.worker:Worker._taken_up",
        "return self._drawn(pending.release_id, task, self._store.renew)",
        "return pending",
        "client",
    ),
    Fault(
        "records-read-before-they-are-paid-for",
        "Records are read though no budget is left.",
        "client.worker:Worker._solve",
        "before = self._state(task)",
        "before = self._state(task)\n    self._shard()",
        "client",
    ),
    Fault(
        "records-that-changed-are-taken",
        "A study's releases are of different records, and their differences show which.",
        "store.base:check_inputs",
        "not hmac.compare_digest(freeze.digest, frozen)",
        "not freeze.digest",
        "client",
    ),
    Fault(
        "a-secret-kept-on-the-disk",
        "Whoever steals the disk strips the noise off what was sent.",
        "store.sqlite:SqliteClientStore.seal",
        'write("DELETE FROM pending")',
        "pass",
        "client",
    ),
    Fault(
        "a-secret-kept-in-memory",
        "Whoever reads the process's memory later strips the noise off what was sent.",
        "store.memory:MemoryClientStore.seal",
        "self._ledger, self._state, self._pending = ledger, state, None",
        "self._ledger, self._state, self._sealed = ledger, state, self._pending\n"
        "    self._pending = None",
        "client",
    ),
    Fault(
        "a-party-that-was-set-back-is-not-noticed",
        "A client or a server restored from a copy goes on, and what was spent is forgotten.",
        "privacy.ledger:check_counterpart",
        "if not on_its_way:",
        "if on_its_way is None:",
        "client",
    ),
    Fault(
        "an-answer-by-hand-counts-as-sent-at-once",
        "A result file that is lost is answered again, from another release.",
        "client.by_hand:FileLink._submit",
        "raise Written",
        'return Receipt("accepted", self._parcel.version)',
        "client",
    ),
    Fault(
        "a-task-file-that-lacks-an-answer-is-taken",
        "A server that forgot an answer is sent it again, as if it were one to its newest task.",
        "client.by_hand:FileLink._submit",
        "self._task.task_id != request.task_id",
        "not request.task_id",
        "client",
    ),
    Fault(
        "an-answer-that-began-to-arrive-counts-as-arrived",
        "A connection that broke off ends the round, and the answer is forgotten.",
        "client.by_hand:_sealed",
        'ledgers.state(ledger, entry.release_id) == "sent"',
        'ledgers.state(ledger, entry.release_id) != "reserved"',
        "client",
    ),
)
