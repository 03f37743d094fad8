"""`polycentric keys`: the keys and certificates of a federation between organisations. Secrets are never shown."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .options import AsJson

keys_app = typer.Typer(
    help="Make and look at the keys of a federation between organisations.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
Host = Annotated[
    list[str] | None,
    typer.Option("--host", metavar="NAME", help="A DNS name or IP address that nodes connect to; several allowed."),
]
Only = Annotated[bool, typer.Option("--only", help="Leave out localhost and 127.0.0.1.")]
Days = Annotated[int, typer.Option(help="For how long the server's certificate is valid, 1 to 825.")]
OutFolder = Annotated[Path, typer.Option("--out", metavar="FOLDER", help="Folder for the files.")]


@keys_app.command("server")
def server(host: Host = None, out: OutFolder = Path("keys"), days: Days = 365, only: Only = False) -> None:
    """On the server: make an authority, and a key and certificate for TLS. Nodes are given ca.crt, nothing else.

    Example: polycentric keys server --host hospital.example --host 10.0.0.5
    """
    from ..deploy.keys import make_server

    made = make_server(out, host or [], days, only)
    certificate = made["server.crt"]
    _placed(
        {
            out / "ca.crt": "goes to every node, and nothing else does",
            out / "ca.key": "secret; only `polycentric keys renew` needs it, so keep it offline if you can",
            out / "server.crt": f"stays here: for {', '.join(certificate.names)}; {certificate.rows()['valid']}",
            out / "server.key": "secret; stays here",
        },
        f"fingerprint of ca.crt, to compare by phone with `polycentric keys show ca.crt` at a node:\n"
        f"{made['ca.crt'].fingerprint}",
    )


@keys_app.command("node")
def node(
    name: Annotated[str, typer.Option("--name", help="What the node is called: letters, digits, dots and dashes.")],
    out: OutFolder = Path("keys"),
) -> None:
    """On a node: make its key, here where it is used. The server is given NAME.pub, nothing else.

    Example: polycentric keys node --name ward-3
    """
    from ..deploy.keys import make_node

    made = make_node(out, name)
    _placed(
        {
            out / f"{name}.pub": "goes to the server, and nothing else does",
            out / f"{name}.key": "secret; stays here",
        },
        f"fingerprint, to compare by phone with `polycentric keys show {name}.pub` at the server:\n"
        f"{made[f'{name}.pub'].fingerprint}",
    )


@keys_app.command("show")
def show(
    path: Annotated[Path, typer.Argument(metavar="FOLDER|FILE", help="A folder of keys, or one file.")],
    as_json: AsJson = False,
) -> None:
    """What is there: kinds, fingerprints, names, dates and modes; never a secret.

    Example: polycentric keys show keys/ward-3.pub
    """
    from ..deploy.key_files import shown
    from .screen import tell, write

    found = {str(file.path): file.rows() for file in shown(path)}
    if as_json:
        tell({"files": [{"file": file, **rows} for file, rows in found.items()]})
        return
    for file, rows in found.items():
        write(file)
        for word, value in rows.items():
            write(f"  {word:<12}{value}")


@keys_app.command("renew")
def renew(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="A server's folder of keys, with ca.key.")],
    host: Host = None,
    days: Days = 365,
    only: Only = False,
) -> None:
    """On the server: a new certificate from the same authority, for the same names or others. Nodes notice nothing.

    Examples:

      polycentric keys renew keys

      polycentric keys renew keys --host hospital.example --host 10.0.0.7
    """
    from ..deploy.keys import renew as renewed

    certificate, kept = renewed(folder, host or [], days, only)
    said = f"new, stays here: for {', '.join(certificate.names)}; {certificate.rows()['valid']}"
    _placed({certificate.path: said, **({kept: "the old one"} if kept else {})}, "start the server again to use it")


def _placed(places: dict[Path, str], last: str) -> None:
    """Which file goes where."""
    from .screen import write

    width = max(len(str(path)) for path in places)
    for path, where in places.items():
        write(f"{path!s:<{width}}  {where}")
    write(last)
