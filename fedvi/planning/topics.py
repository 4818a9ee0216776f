"""Estimates a topic model's ratio of signal to noise.

Reads no data: everything follows from public numbers. The results are estimates, not promises.
"""

import math
from typing import Any, NamedTuple

from fedvi.models.capabilities import Topics
from fedvi.planning.signals import defaults_of, noise_left
from fedvi.study.build import Assembly

__all__ = ["TopicOutlook", "topic_outlook"]


class TopicOutlook(NamedTuple):
    """The estimate for a private study of topics, for `fedvi check` and `fedvi privacy`.

    Attributes:
      topics, vocabulary: K and V.
      length: words of a typical document, as the study declares.
      documents: at all clients together, if each has the declared largest number.
      clients, rounds: of the study.
      noise_multiplier: of one client's noised sum.
      ratio: the mean concentration that documents add to a cell of the table of topics and words, divided
        by the sd of the noise that all rounds of all clients leave there.
      warnings: a warning if noise dominates, with remedies; empty otherwise.
    """

    topics: int
    vocabulary: int
    length: float
    documents: int
    clients: int
    rounds: int
    noise_multiplier: float
    ratio: float
    warnings: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        """Returns plain values for JSON."""
        return self._asdict() | {"warnings": list(self.warnings)}


def topic_outlook(assembly: Assembly) -> TopicOutlook | None:
    """Estimates a study's ratio of signal to noise for topics, at its promise.

    Every client adds noise to its own sum, under either view. All clients' noise is √clients times that of
    one, whose multiplier is smaller if only sums are seen. The server computes the running mean over
    rounds.

    Returns:
      None if the study promises nothing, or is of a model without topics.
    """
    study, model, noise = assembly.study, assembly.model, assembly.noise_multiplier
    most, sampler = study.data.max_records, assembly.sampler
    if not isinstance(model, Topics) or study.privacy.promise is None:
        return None
    if not noise or most is None or sampler is None:
        return None
    given = defaults_of("vips") | study.solver.arguments
    clients, rounds = len(assembly.clients), assembly.schedule.rounds
    typical = (given["typical"] or {}).get("words")
    # The noise that all rounds leave in the mean, as that of one sum; includes the solver's emphasis.
    left = noise * math.sqrt(clients * noise_left(rounds, given))
    ratio = model.signal(clients * most, sampler.rate, left, given["clip_norm"], typical)
    return TopicOutlook(
        model.topics,
        model.vocabulary,
        float(model.length),
        clients * most,
        clients,
        rounds,
        float(noise),
        ratio,
        () if ratio >= 1.0 else (_warning(assembly, ratio, given),),
    )


def _warning(assembly: Assembly, ratio: float, given: dict[str, Any]) -> str:
    mend = [
        "a smaller public vocabulary",
        "fewer topics",
        "more documents",
        "a larger ε",
    ]
    averaging = given["averaging"]
    if averaging is not None and averaging < 1.0 and assembly.schedule.rounds > 1:
        mend.append(f"averaging nearer to 1 than {averaging:g}, or fewer rounds")
    if given["clip_norm"] > 1.0:
        mend.append(f"a clip_norm of 1 or less in the place of {given['clip_norm']:g}")
    if assembly.study.sums is None and len(assembly.clients) > 2:
        mend.append('view = "aggregate", where the server can be trusted')
    return (
        "the noise probably drowns the topics: it is about "
        f"{1.0 / ratio:.2g} times the mean cell of topics and words (signal to noise about {ratio:.2g}), "
        "and at most their most frequent words stand out; to mend it: " + ", ".join(mend)
    )
