"""Checks each release of a client against its site's policy, and charges it to the lifetime ledger."""

from typing import Protocol, runtime_checkable

from fedvi import errors
from fedvi.client.policy import Policy, Request
from fedvi.privacy import ledger as ledgers
from fedvi.privacy.delta_parts import noised_releases
from fedvi.privacy.events import Event, compose, counts
from fedvi.privacy.filter import fits
from fedvi.privacy.runs import Extend
from fedvi.privacy.statement import LifetimeSpend, lifetime_spend
from fedvi.updates.base import Task

__all__ = ["Guard", "Keeper", "Lifetime"]


@runtime_checkable
class Keeper(Protocol):
    """Stores the ledger for life, such as ``LifeLedger``."""

    @property
    def place(self) -> str:
        """Where it is stored."""

    @property
    def ledger(self) -> ledgers.Ledger:
        """The ledger as last stored, by whatever process."""

    def extended(self, extend: Extend) -> ledgers.Ledger:
        """Reads, extends and stores the ledger, as one transaction over all processes.

        Returns once it is durable. If ``extend`` raises, the ledger is unchanged.
        """


class Lifetime:
    """A site's spend over all studies, charged release by release.

    Guarantee: if every release of the site is admitted here before it is made, all of them together
    are (epsilon, delta)-DP of the policy's [life], for its unit and relation, although studies and
    their number were chosen adaptively, by `RdpFilter` and the part of δ that is kept for tables.

    Args:
      policy: with a section [life].
      keeper: holds a ledger opened with ``policy.lifetime_header``.

    Raises:
      LedgerError: the ledger has another unit or relation, or belongs to a single study.
    """

    def __init__(self, policy: Policy, keeper: Keeper) -> None:
        self._filter = policy.lifetime_filter()
        self._delta = self._filter.delta / (1 - ledgers.TABLES_SHARE)
        self._keeper = keeper
        header = keeper.ledger.header
        expected = policy.lifetime_header(header.table_distance)
        if header != expected:
            raise errors.LedgerError(
                f"the ledger of {header.client!r} is of {header.study!r}, unit {header.unit!r}, "
                f"relation {header.relation!r}, expected {expected.study!r}, {expected.unit!r}, "
                f"{expected.relation!r}",
                hint="a site keeps one ledger for life in a folder of its own; what it holds was "
                "charged under its own unit and relation",
            )

    @property
    def place(self) -> str:
        """Where the ledger for life is kept."""
        return self._keeper.place

    @property
    def ledger(self) -> ledgers.Ledger:
        """The ledger for life, as last stored."""
        return self._keeper.ledger

    def spend(self) -> LifetimeSpend:
        """Returns the spend over all studies, for a statement."""
        return lifetime_spend(self.ledger, self._filter)

    def admit(self, release: str, event: Event) -> None:
        """Charges one release, durably, before the study's own ledger reserves it.

        A crash between the two charges the release here alone, which overstates the spend and never
        understates it. A name that was charged before is charged again, as another attempt.

        Raises:
          BudgetExceeded: the release does not fit into what is left for life; nothing was charged.
          UnsupportedEvent: the release has no Rényi price.
        """

        def charged(before: ledgers.Ledger) -> ledgers.Ledger:
            attempt = 0
            while ledgers.state(before, name := f"{release}!{attempt}") is not None:
                attempt += 1
            after = ledgers.spend(before, name, event, self._filter)
            self._check_tables(after, name)
            return after

        self._keeper.extended(charged)

    def _check_tables(self, ledger: ledgers.Ledger, name: str) -> None:
        distance = noised_releases(ledgers.spent(ledger)) * ledger.header.table_distance
        room = self._delta * ledgers.TABLES_SHARE
        if not fits(distance, self._filter.epsilon, room):
            raise errors.BudgetExceeded(
                f"release {name!r}: the tables of noise are {distance:.3g} away from their exact "
                f"law over all studies, which adds more than {room:.3g} to delta",
                hint="raise delta in [life]",
            )


class Guard:
    """Applies a policy to one study; a worker asks it before it charges a release.

    Args:
      request: what the study asks for; checked here, once.
      study_digest: names the study's releases in the ledger for life.
      lifetime: None only if the policy has no section [life].

    Raises:
      PolicyRefused: the study exceeds the policy.
      ConfigError: a policy for life has no ledger for life.
    """

    def __init__(
        self, policy: Policy, request: Request, study_digest: str, lifetime: Lifetime | None = None
    ) -> None:
        policy.check(request)
        if policy.life is not None and lifetime is None:
            raise errors.ConfigError(
                "the policy has a section [life] and no ledger for life was given",
                "open one with `policy.lifetime_header`",
            )
        if lifetime is not None and request.table_distance > lifetime.ledger.header.table_distance:
            raise errors.PolicyRefused(
                f"the study's noise is {request.table_distance:.3g} away from its exact law a "
                f"release, expected at most {lifetime.ledger.header.table_distance:.3g}, which the "
                "ledger for life charges",
                hint="open the ledger for life with a larger `table_distance`",
            )
        self._allowed = counts(request.planned)
        self._study = study_digest
        self._lifetime = lifetime

    @property
    def life_place(self) -> str | None:
        """Where the ledger for life is kept; None if the policy has no such cap."""
        return None if self._lifetime is None else self._lifetime.place

    def lifetime_spend(self) -> LifetimeSpend | None:
        """Returns the spend over all studies; None if the policy has no such cap."""
        return None if self._lifetime is None else self._lifetime.spend()

    def admit(self, task: Task, event: Event, others: Event) -> None:
        """Charges a task's release to the lifetime; serves as `Worker`'s ``admit``.

        Args:
          event: the cost of the answer.
          others: the cost of all other releases in the study's ledger, failed attempts included.
            Together with ``event`` it must stay within the plan that was checked, so that [run] holds
            whatever the study's own budget allows.

        Raises:
          PolicyRefused: the release goes beyond what was checked.
          BudgetExceeded: it does not fit into what is left for life.
        """
        asked = counts(compose(others, event))
        if any(self._allowed.get(atom, 0) < count for atom, count in asked.items()):
            raise errors.PolicyRefused(
                f"task {task.task_id!r} would release {event}, which goes beyond the plan that the "
                "policy checked",
                hint="the server asks for more than the study says, or an attempt failed and its "
                "price is spent: plan more rounds, or a smaller budget for each",
            )
        if self._lifetime is not None:
            self._lifetime.admit(f"{self._study}/{task.task_id}", event)
