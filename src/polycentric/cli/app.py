"""The commands. Heavy imports wait inside them, so that `--help` answers at once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from .bench import bench
from .checking import data_check
from .comparing import compare, curves, participation, reproduce, sweep
from .deploying import federate, join, serve, verify
from .importing import data_import
from .keys import keys_app
from .options import Quiet, of_settings, settings_of
from .privacy import audit, privacy
from .reporting import figure, report, watch
from .running import clusters, personalize, resume, run
from .searching import choose_k
from .topology import topology_app
from .using import assign, detect, evaluate, export, predict

app = typer.Typer(
    name="polycentric",
    help="Federated learning for clients whose data are not alike: no center, one center, or many.",
    epilog="Begin with: polycentric demo",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
data_app = typer.Typer(help="Look at data sets and import your own.", no_args_is_help=True, rich_markup_mode=None)
app.add_typer(data_app, name="data")
app.add_typer(topology_app, name="topology")
app.add_typer(keys_app, name="keys")


def _show_version(asked: bool) -> None:
    if asked:
        from .. import __version__

        print(f"polycentric {__version__}")
        raise typer.Exit


@app.callback()
def _every_command(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version, and exit.")
    ] = False,
) -> None: ...


@app.command()
def demo(
    quiet: Quiet = False,
    out: Annotated[
        Path | None, typer.Option(help="Folder for the runs, and the report. [default: none is kept]")
    ] = None,
) -> None:
    """See what this is about: 40 clients with rotated digits, five methods, a report; under a minute of one core."""
    from .demo import demonstrate

    demonstrate(out, quiet)


for command in (run, resume, personalize, clusters, export, predict, detect, assign, evaluate):
    app.command()(command)
for command in (compare, report, watch, figure, curves, participation, sweep):
    app.command()(command)
app.command("choose-k")(choose_k)
app.command()(privacy)
app.command()(audit)
for command in (serve, join, federate, verify):
    app.command()(command)


@app.command()
def methods(
    name: Annotated[str | None, typer.Argument(help="A method, to see its equations and settings.")] = None,
) -> None:
    """List methods and models, or show one method: equations, what it reduces to, every setting."""
    from .listing import list_methods, show_method
    from .screen import stdout

    if name is None:
        stdout.print(list_methods())
        return
    page, settings = show_method(name)
    print(page)  # as it is written: an equation must not be wrapped
    stdout.print(settings)


@data_app.command("list")
def data_list() -> None:
    """List the data sets that were found, and where."""
    from .listing import list_data
    from .screen import stdout

    stdout.print(list_data())


@data_app.command("show")
@of_settings("partition", "clients", "seed", "data_seed")
def data_show(
    name: Annotated[str, typer.Argument(help="A data set by name or path.")],
    options: dict[str, Any],
    png: Annotated[
        Path | None, typer.Option(help="Also draw a heat map of labels by client into this PNG file.")
    ] = None,
) -> None:
    """Labels by client, sizes, and how heterogeneous (non-IID) the clients are."""
    from ..data import describe, heat_map
    from ..runs.start import load_data
    from .screen import say, stdout

    federation = load_data(settings_of("nofed", options | {"data": name}))
    if png:
        heat_map(federation, png)
        say(f"figure: {png}")
    stdout.print(describe(federation))


data_app.command("import")(data_import)
data_app.command("check")(data_check)


@app.command()
def doctor(
    keys: Annotated[Path | None, typer.Option(metavar="FOLDER", help="Also check a server's or node's keys.")] = None,
    server: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Also check a federation's server, seen from here.")
    ] = None,
    ca: Annotated[Path | None, typer.Option(metavar="FILE", help="The server's ca.crt, for --server.")] = None,
    insecure: Annotated[bool, typer.Option("--insecure", help="The server has no TLS, for --server.")] = False,
) -> None:
    """Check this machine: versions, devices, disk, data, and one round that must give the right result."""
    from ..errors import require
    from .listing import examine
    from .screen import stdout

    require(server is not None or (ca is None and not insecure), "--ca and --insecure are for --server HOST:PORT")
    good, table = examine(keys, None if server is None else (server, ca, insecure))
    stdout.print(table)
    raise typer.Exit(0 if good else 1)


app.command()(reproduce)
app.command()(bench)
