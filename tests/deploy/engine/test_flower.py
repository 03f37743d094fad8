"""Messages carry bytes whole; what is none of ours is refused; and without Flower one line says what to type."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.metadata import PackageNotFoundError

import pytest
from hypothesis import given, settings, strategies as st

pytest.importorskip("flwr", reason="a federation between machines needs the extra deploy")

from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from polycentric.deploy.engine import flower
from polycentric.deploy.engine.flower import (
    ABOUT,
    CODE,
    COUNT,
    PARCEL,
    SMALL,
    assembled,
    check_size,
    check_version,
    packed,
    unpacked,
)
from polycentric.deploy.engine.office import batches
from polycentric.errors import UsageError

large = st.builds(lambda length, seed: bytes([seed]) * length, st.integers(0, 2 * SMALL), st.integers(0, 255))


@settings(max_examples=40)
@given(st.lists(st.binary(max_size=50) | large, max_size=12), st.sampled_from(["", "failed", "too large"]))
def test_what_is_packed_is_unpacked(parcel: list[bytes], code: str) -> None:
    """Also after Flower has taken it apart and put it together."""
    content = packed(parcel, code)
    assert unpacked(content) == (parcel, code)
    assert sum(len(one) for one in content.config_records[ABOUT].values() if isinstance(one, bytes)) <= SMALL
    assert unpacked(_travelled(content)) == (parcel, code)


def _travelled(content: RecordDict) -> RecordDict:
    from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
    from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents

    pieces = {name: one.deflate() for name, one in get_all_nested_objects(content).items()}
    found = inflate_object_from_contents(content.object_id, pieces)
    assert isinstance(found, RecordDict)
    return found


def test_a_message_that_becomes_too_large_is_refused_before_it_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """An array of one small piece, a million times."""
    from flwr.supercore.inflatable.inflatable_object import add_header_to_object_body, get_all_nested_objects

    array = Array("uint8", (5,), "bytes", b"piece")
    good = {name: one.deflate() for name, one in get_all_nested_objects(array).items()}
    body = json.dumps({"dtype": "uint8", "shape": [5], "stype": "bytes", "arraychunk_ids": [0] * 1_000_000}).encode()
    bomb = good | {array.object_id: add_header_to_object_body(body, array)}
    monkeypatch.setattr(flower, "LARGEST", 1 << 20)
    with pytest.raises(ValueError, match="no message"):
        assembled(array.object_id, good)
    with pytest.raises(ValueError, match="too large"):
        assembled(array.object_id, bomb)


@pytest.mark.parametrize("piece", range(3))
def test_pieces_that_make_no_message_are_refused_whatever_is_wrong_with_them(piece: int) -> None:
    """One in the place of another, cut off, or with other bits: a node that sends such ends nobody's run."""
    from flwr.app.message import make_message
    from flwr.app.metadata import Metadata
    from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects

    about = Metadata(1, "", 1, 2, "", "", 1.0, 9.0, "query")
    message = make_message(metadata=about, content=packed([b"x" * 9]))
    pieces = {name: one.deflate() for name, one in get_all_nested_objects(message).items()}
    name, data = list(pieces.items())[piece]
    assert len(pieces) == 3 and unpacked(assembled(message.object_id, pieces).content) == ([b"x" * 9], "")
    others = [*pieces.values(), data[:-2], b"", data[:20] + bytes(255 - one for one in data[20:])]
    for other in others:
        if other != data:
            with pytest.raises(flower.FAILURES):
                unpacked(assembled(message.object_id, pieces | {name: other}).content)


def test_a_message_cannot_be_guessed() -> None:
    assert packed([b"x"]).object_id != packed([b"x"]).object_id


@pytest.mark.parametrize(
    "content",
    [
        RecordDict({}),
        RecordDict({PARCEL: ArrayRecord({"00000000": Array("uint8", (1,), "bytes", b"x")})}),
        RecordDict({ABOUT: ConfigRecord({CODE: "", COUNT: 2, "00000000": b"x"})}),
        RecordDict({ABOUT: ConfigRecord({CODE: "", COUNT: 1, "00000001": b"x"})}),
        RecordDict({ABOUT: ConfigRecord({CODE: "", COUNT: "1", "00000000": b"x"})}),
        RecordDict({ABOUT: ConfigRecord({CODE: 5, COUNT: 1, "00000000": b"x"})}),
        RecordDict({ABOUT: ConfigRecord({COUNT: 1, "00000000": b"x"})}),
    ],
    ids=range(7),
)
def test_what_is_none_of_ours_is_refused(content: RecordDict) -> None:
    with pytest.raises(ValueError, match="parcel"):
        unpacked(content)


def test_a_code_is_a_word_whatever_a_node_writes() -> None:
    assert unpacked(packed([], "late\n\x1b[31m<b>" + "x" * 100))[1] == "late31mb" + "x" * 27


def test_what_is_too_large_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flower, "LARGEST", 10)
    check_size([b"12345", b"67890"])
    with pytest.raises(UsageError, match="11 bytes is larger than 10: choose a smaller model"):
        check_size([b"12345", b"678901"])
    with pytest.raises(ValueError, match="half a parcel"):
        unpacked(packed([b"12345", b"678901"]))


@pytest.mark.parametrize("found", ["1.40.0", "1.43.0", "2.0.0", "1.7.0"])
def test_another_version_of_flower_is_refused(found: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flower, "version", lambda name: found)
    with pytest.raises(UsageError, match=rf"Flower {found} is installed.*below 1\.43: pip install"):
        check_version()


def test_without_flower_a_line_says_what_to_type(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(flower, "version", missing)
    with pytest.raises(UsageError, match=r"needs Flower 1\.41 .*: pip install 'polycentric\[deploy\]'"):
        check_version()


def test_the_engine_is_imported_without_flower() -> None:
    code = "import sys; sys.modules['flwr'] = sys.modules['torch'] = None\n"
    code += "import polycentric.deploy.engine.link, polycentric.deploy.engine.member, polycentric.deploy.engine.door\n"
    code += "from polycentric.errors import UsageError\n"
    code += "try:\n    import polycentric.deploy.engine.flower\nexcept UsageError as error:\n    print(error)"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert "pip install 'polycentric[deploy]'" in said


def test_large_parcels_are_pushed_few_at_a_time() -> None:
    peers = {k: str(k) for k in range(5)}
    small = list(batches(peers, {name: [b"x"] for name in peers.values()}))
    assert small == [peers]
    large = list(batches(peers, {name: [bytes(20 << 20)] for name in peers.values()}))
    assert [list(some) for some in large] == [[0, 1], [2, 3], [4]]
    assert list(batches({}, {})) == []
