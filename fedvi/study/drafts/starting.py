"""Drafts the files beside a new study: a site's policy, containers, and the steps in order.

``docker/`` holds the same services for a checkout.
"""

from fedvi.data.written import toml
from fedvi.study.drafts.drafting import Answers, is_own

__all__ = ["coordinator_text", "policy_text", "site_text", "steps_text"]


def policy_text(answers: Answers) -> str:
    """Writes a policy that admits the drafted study, and nothing that costs more."""
    relations = f'["{answers.relation}"]'
    life, own_kind = answers.epsilon * 4, is_own(answers.kind)
    built_in = [] if own_kind else [answers.kind]
    own = _CUSTOM.format(toml(answers.kind)) if own_kind else ""
    rounds = answers.why("schedule.rounds", "answers, at most")
    units = answers.why("privacy.unit")
    units = f"                # {units}" if units else ""
    return f"""\
#:schema ./policy.schema.json
# What this site allows, whatever the study or the server asks: whoever owns the data decides.
# `fedvi check study.toml --policy policy.toml` says whether the study keeps to it.

[run]                             # each study by itself
epsilon = {toml(answers.epsilon)}
delta = {toml(answers.delta)}
rounds = {answers.rounds}                       # {rounds}
# noise_multiplier = 1.0          # the smallest that is allowed

# [life]                          # all studies of this site together: the same in each of its policies;
# site = "this site"              # the ledger is in ~/.local/state/fedvi/life, or in --life FOLDER
# epsilon = {toml(life)}
# delta = {toml(answers.delta)}
# unit = "{answers.unit}"
# relation = "{answers.relation}"

[allow]                           # what is left out allows every built-in
relations = {relations}
units = ["{answers.unit}"]{units}
models = {toml(built_in)}
solvers = ["{answers.chosen_solver}"]
simulated_noise = false           # noise that guarantees nothing
{own}"""


def coordinator_text(answers: Answers) -> str:
    """Writes the server's container, for the coordinator's machine."""
    return f"""\
# The server of {answers.name}, on the coordinator's machine.
#
#   docker compose -f compose.coordinator.yaml up -d
#   docker compose -f compose.coordinator.yaml exec server fedvi status /state
#
# tls/server holds ca.pem, cert.pem, key.pem and roster.json (README.md), readable by uid 10001, and key.pem
# by nobody else (`sudo chown -R 10001:10001 tls/server`). The state, ledgers included, is in the volume
# server-state: back it up with `fedvi backup`. The image is built in a clone of fedvi:
# `docker build -f docker/Dockerfile --target server -t fedvi-server .`
services:
  server:
    image: ${{FEDVI_SERVER_IMAGE:-fedvi-server}}
    command: [server, /study/study.toml, --state, /state, --listen, "0.0.0.0:7443", --tls, /tls,
              --metrics, "0.0.0.0:9464", --log-format, json, --connections, "2048"]
    # Four for each connection, and some for the state and the health check; without them it does not start.
    ulimits: {{nofile: {{soft: 16384, hard: 16384}}}}
    ports:
      - "${{FEDVI_PORT:-7443}}:7443"
      - "127.0.0.1:9464:9464"  # Prometheus, from this machine alone
    restart: on-failure
{_HARDENED}    healthcheck:
      test: [CMD, fedvi, health, /state]
      interval: 10s
      timeout: 5s
      start_period: 60s
    volumes:
      - server-state:/state
      - ${{FEDVI_TLS:-./tls/server}}:/tls:ro
      - ${{FEDVI_STUDY:-./study.toml}}:/study/study.toml:ro

volumes:
  server-state:
"""


def site_text(answers: Answers, server: str) -> str:
    """Writes a client's container, for the machine of a site.

    Args:
      answers: of the study.
      server: HOST:PORT of the server.
    """
    name = answers.clients[0]
    option = "\n              --allow-unprotected,"
    policy = policy_how = environment = life = volume = once = owned = ""
    if answers.private:
        owned = " policy"
        option = "\n              --policy, /policy/policy.toml,"
        policy = "\n      - ${FEDVI_POLICY:?a folder with policy.toml}:/policy:ro"
        policy_how = """
# FEDVI_POLICY is a folder of the site's own with policy.toml. The ledger for life, if the policy has a
# section [life], is in the volume fedvi-life, which all studies of this machine share."""
        once = "#   docker volume create fedvi-life     # once a machine, for all studies\n"
        environment = "    environment: {FEDVI_LIFE: /life}\n"
        life = "\n      - life:/life"
        volume = """  # External, so that `down --volumes` of one study does not forget what all spent.
  life: {name: "${FEDVI_LIFE_VOLUME:-fedvi-life}", external: true}
"""
    given = " FEDVI_POLICY=$PWD/policy" if answers.private else ""
    return f"""\
# The client of one site of {answers.name}, beside its data. It dials out only: no port is open.
#
{once}#   FEDVI_NAME={name} FEDVI_DATA=$PWD/{name}.csv{given} \\
#   docker compose -f compose.site.yaml up -d
#
# tls holds ca.pem, cert.pem and key.pem (README.md). What is mounted must be readable by uid 10001, and
# key.pem by nobody else: `sudo chown -R 10001:10001 tls{owned}`. For the records, make a copy with
# `sudo install -o 10001 -m 0400 {name}.csv records.csv`, and name it in FEDVI_DATA. The image is built in a
# clone of fedvi: `docker build -f docker/Dockerfile -t fedvi .`
# Records in another kind of file: FEDVI_FILE=records.parquet says its ending.{policy_how}
# The ledger is in the volume state: never restore it from a backup, since a copy forgets what was spent.
services:
  client:
    image: ${{FEDVI_IMAGE:-fedvi}}
    command: [client, /study/study.toml, --as, "${{FEDVI_NAME:?the name of this site in the study}}",
              --data, "/data/${{FEDVI_FILE:-records.csv}}", --state, /state,
              --server, "${{FEDVI_SERVER:-{server}}}", --tls, /tls,{option} --log-format, json]
{environment}    restart: on-failure
{_HARDENED}    healthcheck:
      test: [CMD, fedvi, health, --client, /state]
      interval: 10s
      timeout: 5s
      start_period: 60s
    volumes:
      - state:/state{life}
      - ${{FEDVI_TLS:-./tls}}:/tls:ro
      - ${{FEDVI_STUDY:-./study.toml}}:/study/study.toml:ro
      - ${{FEDVI_DATA:?the file of this site's records}}:/data/${{FEDVI_FILE:-records.csv}}:ro{policy}

volumes:
  state:
{volume}"""


def steps_text(
    answers: Answers, server: str, open_keys: tuple[str, ...], read_keys: tuple[str, ...] = ()
) -> str:
    """Writes the remaining steps to a posterior, in order.

    Args:
      answers: of the study.
      server: HOST:PORT of the server.
      open_keys: keys that must still be stated in the study.
      read_keys: keys that follow from a file's records.
    """
    host = server.rpartition(":")[0]
    first = answers.clients[0]
    policy = " --policy policy.toml" if answers.private else ""
    allowed = policy or " --allow-unprotected"
    signs = "\n".join(
        f"coordinator$ fedvi ca sign {name}-request.pem --ca authority --name {name} --out {name}.pem"
        for name in answers.clients
    )
    state = (
        "State what is still open in `study.toml`, from public knowledge and never from the files:\n"
        + "".join(f"- `{key}`\n" for key in open_keys)
        + "\n"
        if open_keys
        else ""
    )
    if read_keys:
        state += (
            f"Replace what was {answers.mark} by what a protocol or a code book says. It is data, and no\n"
            "privacy loss is charged for it:\n"
            + "".join(f"- `{key}`\n" for key in read_keys)
            + "\n"
        )
    promise = (
        f"The promise to each {answers.unit}: ε ≤ {toml(answers.epsilon)} at δ = "
        f"{toml(answers.delta)}, under `{answers.relation}`."
        if answers.private
        else "Nothing is promised: what leaves a site is not noised."
    )
    twice = (
        " On real tables `fedvi simulate` is a second run,\nand its price adds up with that of the first."
        if answers.private
        else ""
    )
    own = (
        "`policy.toml` is a proposal for each site's own policy, which caps what it will release; each "
        "site\ndecides about its own. "
        if answers.private
        else ""
    )
    return f"""\
# {answers.name}

{promise} The sites: {", ".join(answers.clients)}.

## 1. Agree on the study

{state}```console
$ fedvi check study.toml{policy}
$ fedvi plan study.toml                     # how wide intervals will be, before any record is read
$ fedvi simulate study.toml --out trial     # on made-up or public tables: those that study.toml names
{first}$ fedvi data inspect study.toml --data {first}.csv    # at every site, and for its own eyes
```

What a site's code book spells otherwise than the study, such as a level or a code for missing cells, is
written into the study now: later it would be another study.{twice}

{own}The digest that `fedvi check` prints must be the same at every site.

## 2. Certificates

Keys are made where they are used, and stay there; requests and certificates travel.

```console
coordinator$ fedvi ca init authority --name "{answers.name}"
coordinator$ fedvi enroll server --dir tls/server --role server --host {host}
coordinator$ fedvi ca sign tls/server/request.pem --ca authority --role server --out server.pem
coordinator$ fedvi enroll server --dir tls/server --certificate server.pem --ca authority/ca.pem \\
    --fingerprint HEX

{first}$ fedvi enroll {first} --dir tls       # at every site, under its own name; tls/request.pem travels
{signs}
{first}$ fedvi enroll {first} --dir tls --certificate {first}.pem --ca ca.pem --fingerprint HEX
```

The fingerprint is the one that `fedvi ca list --ca authority` prints. Send it over a different channel.

## 3. The server

```console
coordinator$ fedvi server study.toml --listen 0.0.0.0:{server.rpartition(":")[2]} --tls tls/server \\
    --roster authority/roster.json
coordinator$ fedvi status .fedvi/{answers.name}/server
```

Or `sudo install -o 10001 -g 10001 -m 0600 authority/roster.json tls/server/roster.json`, after each
`fedvi ca` command that changes the roster, and `docker compose -f compose.coordinator.yaml up -d`.

## 4. The clients

```console
{first}$ fedvi doctor study.toml --server {server} --tls tls
{first}$ fedvi client study.toml --as {first} --data {first}.csv --server {server} \\
    --tls tls{allowed}
```

Or `docker compose -f compose.site.yaml up -d`, with the variables that the file names.

## 5. The report

The server prints the posterior when the schedule is done, and keeps it.

```console
coordinator$ fedvi ledger verify .fedvi/{answers.name}/server --recompute
coordinator$ fedvi report .fedvi/{answers.name}/server       # a page, and a statement for each site
coordinator$ fedvi evaluate .fedvi/{answers.name}/server test.csv      # test records that are public
```
"""


_CUSTOM = """
[[allow.custom]]                  # code from elsewhere: read it before you allow it
name = {}
# sha256 = "…"                    # of the module's file, so that no other code goes by its name
"""

_HARDENED = """\
    init: true
    read_only: true
    tmpfs: [/tmp]
    cap_drop: [ALL]
    security_opt: ["no-new-privileges:true"]
    stop_grace_period: 30s
"""
