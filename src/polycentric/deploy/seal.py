"""What neighbours send each other through a server that cannot read it.

A sender encrypts its numbers once, with a fresh key, and that key for every neighbour's public key:

    sealed     =  AES-256-GCM(k, numbers)           k fresh; bound to the run, the exchange and the sender
    key[j]     =  HPKE(public key of j, k)          RFC 9180, base mode: DHKEM(P-384, HKDF-SHA384), HKDF-SHA384,
                                                    AES-256-GCM; bound to the same, and to the receiver
    signature  =  ECDSA-SHA384(key of the sender, sealed and what it is bound to)

The receiver knows its neighbours by the public keys that it was given by them, not by the server: whoever is not among
these is neither heard nor written to. The server still knows who talks to whom, when and how much. All primitives are
those of the package cryptography.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load, save
from torch import Tensor

from ..errors import UsageError, require
from ..stacks.stack import Stacks, aligned
from .key_files import NODE_KEY, NODE_PUBLIC, ec, hashes, seen, serialization
from .letters import Spoiled
from .private_files import read_small

KEY, NONCE = 32, 12  # bytes


@dataclass(frozen=True)
class Bound:
    """What a sealed letter belongs to: nowhere else can it be opened."""

    run: str
    round: int
    turn: int
    sender: str

    def info(self, receiver: str = "") -> bytes:
        """As bytes; no two are alike."""
        return "\0".join(("polycentric 1", self.run, str(self.round), str(self.turn), self.sender, receiver)).encode()


@dataclass(frozen=True, eq=False)
class Seal:
    """A node's own key, and its neighbours' public keys by their names."""

    own: Any
    neighbours: Mapping[str, Any]

    @staticmethod
    def of(key: Path, neighbours: Path) -> Seal:
        """From NAME.key, and a folder with NAME.pub of every neighbour that is trusted."""
        suite()  # what is missing is said now
        require(seen(key).kind == NODE_KEY, f"{key} is no key of a node: `polycentric keys node` makes one")
        own = serialization.load_ssh_private_key(read_small(key), None)
        found = {path.stem: seen(path) for path in sorted(neighbours.glob("*.pub"))}
        wrong = [name for name, file in found.items() if file.kind != NODE_PUBLIC]
        require(not wrong, f"{', '.join(wrong)} in {neighbours} is no public key of a node")
        require(bool(found), f"{neighbours} has no NAME.pub: put those of the nodes beside this one there")
        return Seal(own, {name: file.public for name, file in found.items()})

    def close(self, rows: Stacks, to: Mapping[int, str], bound: Bound) -> Stacks:
        """Numbers for neighbours, by their numbers and names: what may be handed to anybody."""
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        strangers = sorted(set(to.values()) - self.neighbours.keys())
        if strangers:
            raise Spoiled(f"{', '.join(strangers)} would be told, whose key is not among the neighbours'")
        plain = save({name: value.detach().cpu().contiguous() for name, value in rows.items()})
        key, nonce = os.urandom(KEY), os.urandom(NONCE)
        sealed = nonce + AESGCM(key).encrypt(nonce, plain, bound.info())
        found = {"sealed": _tensor(sealed)}
        found["signature"] = _tensor(self.own.sign(sealed + bound.info(), ec.ECDSA(hashes.SHA384())))
        for number, name in to.items():
            found[f"key/{number}"] = _tensor(suite().encrypt(key, self.neighbours[name], bound.info(name)))
        return found

    def open(self, sealed: Tensor, signature: Tensor, key: Tensor, me: str, bound: Bound) -> Stacks:
        """What a neighbour has sent; refused where it is not from it, not for us, or of another exchange."""
        from cryptography.exceptions import InvalidSignature, InvalidTag
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        if bound.sender not in self.neighbours:
            raise Spoiled(f"{bound.sender} is heard, whose key is not among the neighbours'")
        data = _bytes(sealed)
        try:
            public = self.neighbours[bound.sender]
            public.verify(_bytes(signature), data + bound.info(), ec.ECDSA(hashes.SHA384()))
            secret = suite().decrypt(_bytes(key), self.own, bound.info(me))
            plain = AESGCM(secret).decrypt(data[:NONCE], data[NONCE:], bound.info())
            return aligned(load(plain))
        except (InvalidSignature, InvalidTag, ValueError, TypeError) as error:
            raise Spoiled(f"what {bound.sender} is said to have sent cannot be opened") from error
        except Exception as error:  # of safetensors
            raise Spoiled(f"what {bound.sender} has sent cannot be read") from error


def suite() -> Any:
    """How keys are encrypted."""
    try:
        from cryptography.hazmat.primitives.hpke import AEAD, KDF, KEM, Suite
    except ImportError as error:
        raise UsageError("sealing needs a newer cryptography: pip install -U cryptography") from error
    return Suite(KEM.P384, KDF.HKDF_SHA384, AEAD.AES_256_GCM)


def _tensor(data: bytes) -> Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)[None]


def _bytes(rows: Tensor) -> bytes:
    if rows.dtype != torch.uint8 or rows.dim() != 2 or len(rows) != 1:
        raise Spoiled("sealed letters are bytes")
    return rows.numpy().tobytes()
