"""What a claim rests on and what it leaves out: a sentence each, printed with every claim."""

__all__ = [
    "AT_SEVERAL_SITES",
    "AT_THE_SITE",
    "CLIENTS_IN_ONE_SUM",
    "CLIENTS_TOGETHER",
    "CUSTOM_CODE",
    "DISJOINT",
    "EACH_ITS_OWN",
    "ENTROPY",
    "EXCLUSIONS",
    "FLOAT_NOISE",
    "FROZEN",
    "IN_GENERAL",
    "ONE_OF_MANY",
    "OTHER_RUNS",
    "PERSONS_AT_SEVERAL_SITES",
    "PERSONS_IN_ONE_SUM",
    "POOLED",
    "PREPROCESSING",
    "PSEUDORANDOM",
    "SURPLUS",
    "TIMING",
    "TRUSTED",
    "TUNING",
    "UNDER_COVER",
    "UNIFORM_BATCHES",
    "UNVETTED",
    "WHOLE_CLIENTS",
]

TUNING = "choosing hyper-parameters or other settings after looking at these records"
PREPROCESSING = "what was done to the records before fedvi read them, such as scaling by their mean"
AT_THE_SITE = "what anybody reads on the site's own computers: records, state folder, memory"
IN_GENERAL = (
    "what the result says of people in general: it may fit somebody whose records no site holds"
)
TIMING = "when messages were sent, and how large they were"
SURPLUS = (
    "under add/remove, a site that holds more records than were declared: if a record is taken out, one "
    "that had been left out is used in its place. There, only the claim under substitute holds"
)
OTHER_RUNS = (
    "other studies and other runs on the same records: each has an epsilon and a delta of its own, which "
    "add up. A site's ledger for life counts them together; a section [life] in its policy starts it"
)
EXCLUSIONS = (IN_GENERAL, AT_THE_SITE, TUNING, PREPROCESSING, TIMING, OTHER_RUNS)
WHOLE_CLIENTS = (
    "that a client takes part, and whether it can read its file: its name is public, and its records are "
    "protected together"
)
ONE_OF_MANY = (
    "one record more or less at a client that keeps its others: add_remove is about all data of a client, "
    "and one record may cost what substitute says"
)
CUSTOM_CODE = "the study's own code, which nobody reviewed for privacy"
UNVETTED = "custom code: claim not vetted"
"""The mark of what is private by the word of a family, solver, sampler, mechanism or model from outside."""
POOLED = "the fit of all records together, without noise, made for comparison, which is in the run's folder"
FLOAT_NOISE = "noise drawn in floating point, or from a known seed"
PERSONS_AT_SEVERAL_SITES = (
    "a person at several sites: where messages are seen, the epsilons add up, and so do the deltas"
)
PERSONS_IN_ONE_SUM = (
    "a person at several sites: where sums alone are seen, one noise hides all of the person's records, "
    "and epsilon is more than those of these sites added up"
)
CLIENTS_TOGETHER = (
    "data of several clients that change together, where every message is seen: their epsilons add up, and "
    "so do their deltas"
)
CLIENTS_IN_ONE_SUM = (
    "data of several clients that change together, where sums alone are seen: one noise hides all of them, "
    "and epsilon is more than those of these clients added up"
)
AT_SEVERAL_SITES = (
    "a person who stands at one site as more than one {unit}: the price of all sites covers one at each",
    "what a site knows of its own records: against a site that holds the same person's {unit}, the price "
    "covers what the other sites send",
)

PSEUDORANDOM = "the ciphers that noise is drawn with, ChaCha20 and HMAC-SHA256, are not broken"
ENTROPY = (
    "nobody else knows the 256 random bits of the site's operating system that start its noise"
)
UNIFORM_BATCHES = (
    "the Feistel permutation that draws batches of a fixed size, where units are many, cannot be told from "
    "a uniform one without its key"
)

FROZEN = "no record is added, changed or taken out at a site from its first answer to its last"
TRUSTED = (
    "the server is trusted: it sees every single message, as does whoever reads its state or a message on "
    "its way. So may whoever sees a ledger or its head: a digest gives a message of few numbers away. "
    "Against all of these the epsilon of the view `message` holds"
)
UNDER_COVER = (
    "each sum holds the answers of {least} or more clients, and at most {colluding} of these use what they "
    "know of their own answers and noise, or tell it to anybody"
)
DISJOINT = (
    "no {unit} is at two sites, as far as sites know: the largest epsilon of any site holds for all"
)
EACH_ITS_OWN = "each client is a unit of its own, so the largest epsilon of any holds for all"
