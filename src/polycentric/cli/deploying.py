"""Commands of a federation between organisations: serve, join, federate, and verify, which compares two runs."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from .options import AsJson, Out, Quiet, Track, Trust, interruptible

Config = Annotated[Path, typer.Argument(help="A TOML file with the settings of the run: method, model, rounds, ...")]
Keys = Annotated[Path | None, typer.Option(metavar="FOLDER", help="The server's keys (`polycentric keys server`).")]
Known = Annotated[
    Path | None,
    typer.Option("--nodes", metavar="FOLDER", help="A folder with NAME.pub of every node that may join."),
]
Host = Annotated[str, typer.Option(help="The address that nodes connect to; without it, only this machine can.")]
Port = Annotated[int, typer.Option(min=1, max=65535, help="The port that nodes connect to.")]
Insecure = Annotated[
    bool, typer.Option("--insecure", help="No TLS and no keys: to try it out on one machine, never between two.")
]
MinNodes = Annotated[
    int | None,
    typer.Option(min=1, help="Nodes that must be there before the run begins. [default: all that may join]"),
]
Wait = Annotated[float, typer.Option(min=1, help="Seconds that nodes are waited for before the run begins.")]
Deadline = Annotated[float, typer.Option(help="Seconds that replies are waited for; who is late is left out.")]
Least = Annotated[
    int, typer.Option(min=1, help="Replies without which a round does not end: it is asked again until they come.")
]
Bound = Annotated[
    float, typer.Option(help="The longest (2-norm) that anything a client sends may be; longer is refused.")
]


def serve(
    config: Config,
    keys: Keys = None,
    nodes: Known = None,
    host: Host = "127.0.0.1",
    port: Port = 8470,
    min_nodes: MinNodes = None,
    wait: Wait = 3600.0,
    deadline: Deadline = 600.0,
    least: Least = 1,
    bound: Bound = 1e12,
    sealed: Annotated[
        bool,
        typer.Option("--sealed", help="Neighbours (dpsgd, matcha) seal what they send: the server forwards, blindly."),
    ] = False,
    out: Out = None,
    insecure: Insecure = False,
    trust: Trust = False,
    track: Track = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Run a method with nodes elsewhere: the server of a federation between organisations.

    Killed at any moment and started again with the same --out, it goes on from the last round.

    Examples:

      polycentric serve config.toml --keys server --nodes nodes --host hospital.example --out runs/first

      polycentric serve config.toml --insecure --min-nodes 2
    """
    from ..deploy.engine.link import Link
    from ..deploy.serve import Waiting
    from ..errors import require

    settings = _settings(config, trust)
    names = sorted(path.stem for path in nodes.glob("*.pub")) if nodes is not None and nodes.is_dir() else []
    enough = min_nodes or len(names)
    require(enough > 0, "nobody may join: put NAME.pub of every node into the folder of --nodes, or say --min-nodes")
    how = Waiting(enough, wait, deadline, least, bound, sealed)
    folder = _folder(settings, out)
    link: dict[str, Any] = {"host": host, "port": port, "keys": keys, "nodes": nodes, "insecure": insecure}
    if insecure:
        _warn_insecure()
    with Link(_beside(folder) / "engine", **link, log=_logger(folder, not (quiet or as_json))) as carrier:
        _served(settings, carrier, folder, how, names, trust=trust, track=track or [], as_json=as_json, quiet=quiet)


def join(
    data: Annotated[str, typer.Option(help="This node's own data: a file, a folder of pictures, or a name.")],
    server: Annotated[str, typer.Option(help="The server, as host:port.")] = "127.0.0.1:8470",
    name: Annotated[str, typer.Option(help="What the node calls itself, where it has no key.")] = "",
    ca: Annotated[Path | None, typer.Option(metavar="FILE", help="The server's ca.crt.")] = None,
    key: Annotated[
        Path | None, typer.Option(metavar="FILE", help="This node's NAME.key (`polycentric keys node`).")
    ] = None,
    client: Annotated[
        str | None, typer.Option(help="One of the data's clients, by name or number. [default: all examples]")
    ] = None,
    target: Annotated[str | None, typer.Option(help="Of a table: the column to predict.")] = None,
    types: Annotated[
        str | None, typer.Option(help="Of a table: what columns are where the guess is wrong: age=number,note=skip.")
    ] = None,
    partition: Annotated[str | None, typer.Option(help="Deal the data to clients first; to try things out.")] = None,
    clients: Annotated[int | None, typer.Option(min=1, help="To how many.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of that, and of what is held out for scores.")] = 0,
    valid: Annotated[float, typer.Option(min=0, max=0.9, help="Share held out for validation.")] = 0.0,
    methods: Annotated[
        list[str] | None, typer.Option("--method", help="A method that is agreed to; several allowed. [default: any]")
    ] = None,
    rounds: Annotated[int | None, typer.Option(min=1, help="The most rounds that are agreed to.")] = None,
    epsilon: Annotated[
        float | None, typer.Option(help="The most epsilon that is agreed to; a method without privacy is refused.")
    ] = None,
    least: Annotated[int, typer.Option("--min-clients", min=1, help="The fewest clients that are agreed to.")] = 1,
    scores: Annotated[
        bool, typer.Option(help="Tell the server how well models do on this node's own examples.")
    ] = True,
    neighbours: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="NAME.pub of nodes that may hear this one where letters are sealed."),
    ] = None,
    state: Annotated[
        Path, typer.Option(metavar="FOLDER", help="Where the node keeps its part of a model, and the engine its files.")
    ] = Path("node-state"),
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:1, or auto.")] = "auto",
    insecure: Insecure = False,
    trust: Trust = False,
) -> None:
    """Take part in a federation with data that stay here; answers until it is stopped.

    What exceeds what is agreed to here (--method, --rounds, --epsilon, --min-clients) is refused. Code is run only with
    --trust.

    Example:

      polycentric join --data patients.csv --target died --server hospital.example:8470 --ca ca.crt --key ward-3.key
    """
    import os
    import signal
    import sys
    import threading

    from ..deploy.engine.member import Member
    from ..deploy.joining import own_data
    from ..deploy.participant import Participant
    from ..deploy.terms import Limits
    from ..errors import require
    from .screen import say

    os.umask(0o077)  # what is kept here is learned from the data
    limits = Limits(tuple(methods) if methods else None, rounds, epsilon, least, trust)
    split: dict[str, Any] = {"partition": partition, "clients": clients, "valid": valid, "seed": seed}
    own = own_data(data, client=client, target=target, types=types, **split)
    parts = ", ".join(f"{len(getattr(own, part)):,} {part}" for part in ("train", "valid", "test"))
    say(f"{own.name}: {parts} examples; they stay here")
    called = name or (key.stem if key else "")
    node = Participant(own, state / "kept", limits, called, device, scores, _timed)
    if neighbours is not None:
        from ..deploy.seal import Seal

        require(key is not None, "--neighbours needs the node's own --key")
        assert key is not None
        node.seal = Seal.of(key, neighbours)
    if insecure:
        _warn_insecure()
    stop = threading.Event()
    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, lambda *_: stop.set())
    how: dict[str, Any] = {"server": server, "ca": ca, "key": key, "insecure": insecure}
    if not Member(state / "engine", node.answer, **how, log=_timed).run(stop):
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)  # amid a training: it is lost, as by a kill, and nothing else is


def federate(
    config: Config,
    nodes: Annotated[int, typer.Option(min=1, max=64, help="How many nodes to start on this machine.")] = 4,
    port: Port = 8470,
    deadline: Deadline = 600.0,
    out: Out = None,
    trust: Trust = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """A federation for a first look: server and nodes on this machine, with keys and TLS, as separate processes.

    The data that the file names (data, partition) are dealt to the nodes, one client each.

    Example: polycentric federate config.toml --nodes 4
    """
    from ..deploy.engine.link import Link
    from ..deploy.first_look import make_keys, nodes_beside, without_data
    from ..deploy.serve import Waiting
    from ..errors import require

    settings = _settings(config, trust)
    same = settings.clients in (None, nodes)
    require(same, f"clients={settings.clients} in {config}, but --nodes {nodes}: every node is one client")
    served, names = without_data(settings), [f"node-{k}" for k in range(nodes)]
    folder = _folder(settings, out)
    files = _beside(folder)
    files.mkdir(parents=True, exist_ok=True, mode=0o700)
    keys, public = make_keys(files, names)
    log, how = _logger(folder, not (quiet or as_json)), Waiting(nodes, wait=300.0, deadline=deadline)
    with (
        Link(files / "engine", port=port, keys=keys, nodes=public, log=log) as carrier,
        nodes_beside(files, settings, names, port, trust),
    ):
        _served(served, carrier, folder, how, names, trust=trust, track=[], as_json=as_json, quiet=quiet)


def verify(
    first: Annotated[Path, typer.Argument(help="The folder of a run that was recorded (--record), or served.")],
    second: Annotated[Path, typer.Argument(help="The folder of another.")],
    as_json: AsJson = False,
) -> None:
    """Compare two runs bit for bit: says the first round, client and tensor that differ; exit code 1 if any does.

    Example: polycentric verify runs/served runs/simulated
    """
    from ..runs.record import verify as compare
    from .screen import say, tell

    found = compare(first, second)
    apart = found.difference
    if as_json:
        tell(
            {
                "equal": apart is None,
                "rounds": found.rounds,
                "compared": found.compared,
                "difference": apart and apart._asdict(),
            }
        )
    elif apart is None:
        say(f"equal: {found.compared:,} tensors of {found.rounds} rounds, bit for bit")
    else:
        say(
            f"round {apart.round}: {apart.tensor} of {apart.what} differs ({apart.digests[0]}, {apart.digests[1]}); "
            f"{found.compared - 1:,} tensors before it are equal"
        )
    raise typer.Exit(0 if apart is None else 1)


def _served(
    settings: Any,
    carrier: Any,
    folder: Path,
    how: Any,
    names: list[str],
    *,
    trust: bool,
    track: list[str],
    as_json: bool,
    quiet: bool,
) -> None:
    from ..deploy.serve import serve as run
    from ..errors import Unwritten
    from ..runs.folder import Folder
    from ..runs.trackers import tracker
    from .running import told
    from .screen import progress

    trackers, log = [tracker(each) for each in track], _logger(folder, not (quiet or as_json))
    with progress(settings.method, settings.rounds, quiet=quiet or as_json) as watching:
        with interruptible(f"the same command with --out {folder}"):
            try:
                ended = run(
                    settings, carrier, folder, how, names=names, callbacks=(*watching, *trackers), log=log, trust=trust
                )
            except Unwritten as error:  # nodes have the examples, so `polycentric resume` would not do
                raise Unwritten(error.where, error.reason, f"the same command with --out {folder}") from error
    told(ended.summary(), Folder.open(folder), as_json)


def _settings(config: Path, trust: bool) -> Any:
    from ..errors import require
    from .options import settings_of

    good = config.suffix == ".toml"
    require(good, f"{config}: the settings of a federation stand in a TOML file, such as config.toml")
    return settings_of(str(config), {}, trust=trust)


def _folder(settings: Any, out: Path | None) -> Path:
    return out or Path("runs") / f"{settings.method}-{time.strftime('%Y%m%d-%H%M%S')}"


def _beside(folder: Path) -> Path:
    """Where the engine keeps its files: beside the run's folder, which is written by the run alone."""
    return folder.parent / f"{folder.name}.server"


def _logger(folder: Path, shown: bool) -> Callable[[str], None]:
    """Lines on the screen, and in the run's log once it has begun."""
    from ..runs.folder import Folder

    def log(line: str) -> None:
        if shown:
            _timed(line)
        if folder.is_dir():
            Folder(folder).log(line)

    return log


def _timed(line: str) -> None:
    from .screen import say

    say(f"{time.strftime('%H:%M:%S')}  {line}")


def _warn_insecure() -> None:
    from .screen import say

    say("warning: --insecure: nothing is encrypted, and whoever reaches the port can take part; only for one machine")
