"""Every source gives a sound pool or one clear line, whatever the files hold."""

from __future__ import annotations

import gzip
import io
import json
import os
import pickle
import struct
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from PIL import Image

from polycentric import data
from polycentric.data import Natural, Pool, deal, find, load, npz, read
from polycentric.data.npz_file import save
from polycentric.errors import UsageError

REAL = {
    "unipen62": 317,
    "mnist": 836,
    "celeba-smile": 277,
    "har": 30,
    "fashion-mnist": 100,
    "shakespeare": 1142,
}


def sound(pool: Pool) -> Pool:
    """See that a pool is what the interface says."""
    n = len(pool.x)
    assert n > 0 and len(pool.y) == n
    assert pool.x.dtype in (torch.uint8, torch.int32, torch.float32)
    if pool.classes:
        assert pool.y.dtype == torch.int64
        assert 0 <= int(pool.y.min()) and int(pool.y.max()) < len(pool.classes)
    else:
        assert pool.y.dtype == torch.float32
    if pool.client is not None:
        assert len(torch.bincount(pool.client)) == len(pool.clients)
        assert int(torch.bincount(pool.client).min()) > 0
    if pool.symbols:
        assert 0 <= int(pool.x.min()) and int(pool.x.max()) < pool.symbols
    for flag in (pool.test, pool.common_test):
        assert flag is None or flag.dtype == torch.bool
    return pool


def refused(read_it: Callable[[], Any], *words: str) -> None:
    with pytest.raises(UsageError) as caught:
        read_it()
    message = str(caught.value)
    assert "\n" not in message
    for word in words:
        assert word in message


def never_raises_another(read_it: Callable[[], Pool]) -> None:
    """A damaged file gives a sound pool or a one-line mistake."""
    try:
        sound(read_it())
    except UsageError as mistake:
        assert "\n" not in str(mistake) and len(str(mistake)) < 500


def arrays(n: int = 12, **changes: Any) -> dict[str, Any]:
    """A small file in the library's layout; a change of None leaves an array out."""
    x = (np.arange(n * 4 * 5) % 251).astype(np.uint8).reshape(n, 4, 5)
    whole: dict[str, Any] = {
        "x": x,
        "y": (np.arange(n) % 3).astype(np.uint8),
        "classes": np.array(["a", "b", "c"]),
        "client": np.array([70, -5, 9])[np.arange(n) % 3],
        "test": np.arange(n) % 4 == 0,
        "canonical_test": np.arange(n) % 6 == 0,
        "group": np.arange(n) % 2,
        "group_names": np.array(["left", "right"]),
        "protected": np.arange(n) % 2,
    }
    whole.update(changes)
    return {key: value for key, value in whole.items() if value is not None}


def written(path: Path, content: dict[str, Any]) -> Path:
    np.savez_compressed(path, **content)
    return path


# --- made here


def test_digits() -> None:
    pool = sound(data.digits())
    assert pool.x.shape == (1797, 1, 8, 8) and pool.x.dtype == torch.uint8
    assert int(pool.x.max()) == 255 and pool.classes == tuple("0123456789")


def test_synthetic_is_the_same_for_a_client_whoever_else_is_there() -> None:
    few, many = (sound(data.synthetic(0.5, 0.5, clients=clients)) for clients in (3, 6))
    assert few.client is not None and many.client is not None
    assert torch.equal(few.x, many.x[many.client < 3])
    assert not torch.equal(data.synthetic(0.5, 0.5, clients=3, seed=1).x[:50], few.x[:50])
    sizes = torch.bincount(many.client)
    assert int(sizes.min()) >= 50 and int(sizes.max()) <= 10_000


def test_domains_are_one_function_seen_from_all_sides() -> None:
    pool = sound(data.domains(4, examples=4000, apart=3.0, noise=0.0))
    assert pool.client is not None and not pool.classes
    torch.testing.assert_close(pool.y, pool.x.square().sum(1) / 4)
    for k, mean in enumerate(((3, 0), (0, 3), (-3, 0), (0, -3))):
        mine = pool.x[pool.client == k]
        assert mine.mean(0).tolist() == pytest.approx(mean, abs=0.1) and mine.var(0).tolist() == pytest.approx(
            [1, 1], abs=0.1
        )
    assert torch.equal(
        data.domains(2, seed=1).x[:200], data.domains(4, seed=1).x[:200]
    )  # the first stands where it did


def test_synthetic_has_the_variances_it_says() -> None:
    pool = data.synthetic(0.0, 4.0, clients=200)
    assert pool.client is not None
    sizes = torch.bincount(pool.client).double()
    means = torch.zeros(200, 60).index_add(0, pool.client, pool.x) / sizes[:, None]
    centre = means.mean(1)  # B_k, up to 1/60 of the variance of v_k
    assert float(centre.var()) == pytest.approx(4.0, rel=0.3)
    residual = pool.x - means[pool.client]
    for j in (1, 10, 60):
        assert float(residual[:, j - 1].var()) == pytest.approx(j**-1.2, rel=0.05)


def test_teacher_vectors_lie_around_a_common_one() -> None:
    pool = sound(data.teacher(clients=200, dimension=5, examples=40, rho=0.7, noise=0.0))
    x, y = pool.x.view(200, 40, 5).double(), pool.y.view(200, 40, 1).double()
    truth = torch.linalg.lstsq(x, y).solution[:, :, 0]
    assert float(truth.std(0).mean()) == pytest.approx(0.7, rel=0.1)
    with_noise = data.teacher(clients=200, dimension=5, examples=40, rho=0.7, noise=0.5)
    assert float((with_noise.y - pool.y).std()) == pytest.approx(0.5, rel=0.05)


def test_the_rarer_class_is_at_a_few_clients_each_in_its_own_direction() -> None:
    pool = sound(data.minority(clients=100, share=0.05, dimension=8, examples=400, distance=2.0, spread=3.0))
    assert pool.group is not None
    y, has = pool.y.view(100, 400), pool.group.view(100, 400)[:, 0] == 1
    assert int(has.sum()) == 5 and bool((y[has].sum(1) == 200).all()) and int(y[~has].sum()) == 0
    x = pool.x.view(100, 400, 8).double()
    assert float(x[~has].mean((0, 1)).norm()) < 0.05
    centers = torch.stack([x[k][y[k] == 1].mean(0) for k in has.nonzero()[:, 0].tolist()])
    apart = (centers[:, None] - centers).norm(dim=2)
    assert float(apart[~torch.eye(5, dtype=torch.bool)].min()) > 1  # no two of them alike
    alike = data.minority(clients=100, share=0.05, dimension=8, examples=400, distance=2.0, spread=0.0)
    middle = alike.x[alike.y == 1].double().mean(0)
    assert float(middle.norm()) == pytest.approx(2.0, rel=0.1)


def test_a_mixture_has_one_true_vector_for_each_group_and_probes_that_tell_the_distance_to_it() -> None:
    pool = sound(data.mixture(k=3, clients=7, dimension=5, examples=40, noise=0.0))
    federation = data.deal(pool, Natural())
    assert federation.group is not None and federation.group.tolist() == [0, 1, 2, 0, 1, 2, 0]
    assert federation.train.sizes.tolist() == [40] * 7 and federation.test.sizes.tolist() == [10] * 7
    x, y = federation.train.x.view(7, 40, 5).double(), federation.train.y.view(7, 40, 1).double()
    truth = torch.linalg.lstsq(x, y).solution[:, :, 0]
    torch.testing.assert_close(truth[0], truth[3], rtol=1e-4, atol=1e-4)
    assert not torch.allclose(truth[0], truth[1], atol=0.1)
    w, b = torch.randn(5, generator=torch.Generator().manual_seed(0), dtype=torch.float64), 0.3
    for client in range(7):
        probe = federation.test.of(client)
        loss = (probe.x.double() @ w + b - probe.y).square().mean() / 2
        assert float(loss) == pytest.approx(float((w - truth[client]).square().sum() + b**2) / 2, rel=1e-4)


def test_a_mixture_is_as_noisy_and_as_far_apart_as_it_says() -> None:
    quiet, loud = (data.mixture(clients=50, noise=noise) for noise in (0.0, 0.5))
    assert quiet.test is not None
    assert float((loud.y - quiet.y)[~quiet.test].std()) == pytest.approx(0.5, rel=0.05)
    assert torch.equal(loud.y[quiet.test], quiet.y[quiet.test])
    probes = data.mixture(k=60, clients=60, dimension=30, examples=1, apart=4.0)
    assert probes.test is not None
    vectors = probes.y[probes.test].view(60, 60)[:, :30] / 30**0.5
    assert float(torch.cdist(vectors, vectors).sum() / (60 * 59)) == pytest.approx(4.0, rel=0.05)
    few, many = (data.mixture(clients=n) for n in (3, 6))
    assert many.client is not None and torch.equal(few.x, many.x[many.client < 3])


@pytest.mark.parametrize(
    "name",
    [
        "minority(0)",
        "minority(10,2)",
        "minority(10,0.1,5,1)",
        "mixture(0)",
        "mixture(clients=1.5)",
        "mixture(apart=-1)",
        "synthetic(x,1)",
        "synthetic(1,2,3,4,5)",
        "synthetic(-1,1)",
        "teacher(depth=3)",
        "digits(3)",
    ],
)
def test_built_in_names_are_checked(name: str) -> None:
    refused(lambda: find(name))


def test_built_in_names_take_numbers() -> None:
    assert find("synthetic(0, 0.5, clients=4)").name == "synthetic(0,0.5)"
    assert len(find("teacher(clients=3, examples=5)").y) == 15


# --- the library's layout


def test_layout_with_everything(tmp_path: Path) -> None:
    content = arrays()
    pool = sound(npz(written(tmp_path / "small.npz", content)))
    assert pool.name == "small" and pool.x.shape == (12, 1, 4, 5)
    assert np.array_equal(pool.x[:, 0].numpy(), content["x"])
    assert pool.clients == ("-5", "9", "70") and pool.client is not None
    assert [pool.clients[k] for k in pool.client] == [str(i) for i in content["client"]]
    assert pool.test is not None and np.array_equal(pool.test.numpy(), content["test"])
    assert pool.common_test is not None and pool.group_names == ("left", "right") and pool.protected is not None


@pytest.mark.parametrize(
    ("x", "shape", "kind"),
    [
        (np.zeros((12, 4, 5, 3), np.uint8), (12, 3, 4, 5), torch.uint8),
        (np.zeros((12, 9, 2), np.float16), (12, 2, 9), torch.float32),
        (np.zeros((12, 7), ">f8"), (12, 7), torch.float32),
        (np.asfortranarray(np.zeros((12, 4, 5), np.uint8)), (12, 1, 4, 5), torch.uint8),
    ],
)
def test_layout_turns_channels_to_the_front(tmp_path: Path, x: Any, shape: tuple[int, ...], kind: torch.dtype) -> None:
    pool = sound(npz(written(tmp_path / "small.npz", arrays(x=x))))
    assert tuple(pool.x.shape) == shape and pool.x.dtype == kind


def jpegs(n: int = 6, size: tuple[int, int] = (10, 8), mode: str = "RGB") -> tuple[Any, Any]:
    packed = []
    for i in range(n):
        stream = io.BytesIO()
        Image.new(mode, size, 40 * i if mode == "L" else (40 * i, 100, 20)).save(stream, "JPEG", quality=95)
        packed.append(stream.getvalue())
    return np.frombuffer(b"".join(packed), np.uint8), np.cumsum([0, *map(len, packed)])


@pytest.mark.parametrize(("mode", "channels"), [("RGB", 3), ("L", 1)])
def test_layout_with_jpeg(tmp_path: Path, mode: str, channels: int) -> None:
    jpeg, offset = jpegs(mode=mode)
    content = arrays(6, x=None, jpeg=jpeg, offset=offset)
    pool = sound(npz(written(tmp_path / "pictures.npz", content)))
    assert tuple(pool.x.shape) == (6, channels, 8, 10)
    assert [round(int(v) / 40) for v in pool.x[:, 0, 4, 4]] == list(range(6))
    content["offset"] = np.roll(offset, 1)
    refused(lambda: npz(written(tmp_path / "pictures.npz", content)), "offset must rise")


def test_jpegs_of_two_sizes_are_refused(tmp_path: Path) -> None:
    (a, first), (b, second) = jpegs(3), jpegs(3, size=(9, 8))
    offset = np.concatenate([first, second[1:] + first[-1]])
    content = arrays(6, x=None, jpeg=np.concatenate([a, b]), offset=offset)
    refused(lambda: npz(written(tmp_path / "p.npz", content)), "8x9", "one size")


def text_file(path: Path) -> Path:
    texts = [("abcde " * 60)[:300], "abc", ("edcba " * 20)[:81]]
    text = np.frombuffer("".join(texts).encode(), np.uint8)
    offset = np.cumsum([0, *map(len, texts)])
    return written(
        path,
        {
            "text": text,
            "offset": offset,
            "role": np.array(["A", "B", "C"]),
            "vocab": np.array(list(" abcde")),
        },
    )


@pytest.mark.parametrize(("stride", "windows"), [(80, 3), (10, 22), (1, 220)])
def test_text_becomes_windows(tmp_path: Path, stride: int, windows: int) -> None:
    pool = sound(npz(text_file(tmp_path / "text.npz"), stride=stride))
    assert pool.clients == ("A", "C") and pool.symbols == 6 and pool.x.shape[1] == 80
    assert pool.client is not None and pool.test is not None
    assert torch.bincount(pool.client).tolist() == [windows, 1]
    text = torch.tensor([" abcde".index(c) for c in ("abcde " * 60)[:300]])
    for i in range(windows):
        assert torch.equal(pool.x[i].long(), text[i * stride : i * stride + 80])
        assert int(pool.y[i]) == int(text[i * stride + 80])
    assert pool.test[:windows].tolist() == sorted(pool.test[:windows].tolist()), "the test part comes last"
    assert not bool(pool.test[-1]), "a single window is for training"


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "no x": ({"x": None}, "no array x"),
    "no y": ({"y": None}, "no array y"),
    "label too large": ({"y": np.full(12, 3)}, "labels run from 3 to 3"),
    "label below zero": ({"y": np.full(12, -1)}, "labels run from -1"),
    "huge label without names": ({"y": np.full(12, 10**15), "classes": None}, "labels run from"),
    "fractional labels": ({"y": np.zeros(12)}, "whole numbers"),
    "NaN": ({"x": np.full((12, 3), np.nan)}, "NaN"),
    "too large for float32": ({"x": np.full((12, 3), 1e300)}, "too large"),
    "NaN target": ({"y": np.full(12, np.nan), "classes": None}, "NaN"),
    "integers": ({"x": np.zeros((12, 3), np.int64)}, "uint8"),
    "complex": ({"x": np.zeros((12, 3), complex)}, "complex"),
    "one row": ({"x": np.zeros(12, np.uint8)}, "shape"),
    "five axes": ({"x": np.zeros((12, 1, 1, 1, 1), np.uint8)}, "shape"),
    "empty": ({"x": np.zeros((0, 4, 5), np.uint8), "y": np.zeros(0, np.uint8)}, "no examples"),
    "fewer labels": ({"y": np.zeros(11, np.uint8)}, "11"),
    "cubic labels": ({"y": np.zeros((12, 1, 1), np.uint8)}, "shape"),
    "several labels that are not 0 and 1": ({"y": np.full((12, 2), 7)}, "0 and 1"),
    "misspelled array": ({"clients": np.zeros(12, int)}, "did you mean 'client'"),
    "fewer clients": ({"client": np.zeros(11, int)}, "client"),
    "fractional clients": ({"client": np.zeros(12)}, "client"),
    "odd test flag": ({"test": np.full(12, 2)}, "test must be True or False"),
    "float test flag": ({"test": np.zeros(12)}, "test is float64"),
    "unnamed group": ({"group": np.full(12, 2)}, "group 2 has no name"),
    "negative group": ({"group": np.full(12, -2)}, "numbered from 0"),
    "numbers for names": ({"classes": np.arange(3)}, "strings"),
    "objects": ({"y": np.array([{}] * 12, dtype=object)}, "pickle"),
    "boxes beside labels": ({"boxes": np.zeros((3, 6))}, "both y and boxes"),
    "bad symbols": ({"x": np.full((12, 3), 9, np.uint8), "symbols": np.array(5)}, "outside 0 to 4"),
    "jpeg without offset": ({"x": None, "jpeg": np.zeros(9, np.uint8)}, "offset"),
    "no picture": ({"x": None, "jpeg": np.zeros(9, np.uint8), "offset": np.array([0, 9])}, "not a readable"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_content_is_one_line(tmp_path: Path, case: str) -> None:
    changes, message = WRONG[case]
    path = written(tmp_path / "wrong.npz", arrays(**changes))
    refused(lambda: npz(path), message, "wrong")


def test_names_cannot_reach_the_terminal_as_commands(tmp_path: Path) -> None:
    path = written(tmp_path / "names.npz", arrays(classes=np.array(["\x1b[31m", "\n", "b"])))
    assert npz(path).classes == ("\\x1b[31m", "\\n", "b")


@pytest.mark.parametrize("content", [b"", b"P", b"PK", b"hello", b"PK\x03\x04" + bytes(100), pickle.dumps([1])])
def test_files_that_are_no_archives(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "file.npz"
    path.write_bytes(content)
    refused(lambda: npz(path), "file.npz")


def test_missing_files_and_folders(tmp_path: Path) -> None:
    for reader in (data.idx, data.cifar, data.folders, data.leaf):
        refused(lambda reader=reader: reader(tmp_path / "absent"), "absent")  # type: ignore[misc]
    refused(lambda: find("n" * 5_000))
    refused(lambda: find("nul\0byte"))
    for name in ("all.json", "train-images-idx3-ubyte", "data_batch_1.bin"):
        (tmp_path / name).mkdir()
        refused(lambda: read(tmp_path))
        (tmp_path / name).rmdir()
        (tmp_path / name).symlink_to(tmp_path / "nowhere")
        refused(lambda: read(tmp_path))
        (tmp_path / name).unlink()
    refused(lambda: npz(tmp_path / "absent.npz"), "absent.npz")
    refused(lambda: npz(tmp_path), "folder")
    refused(lambda: read(tmp_path / "absent"), "absent")
    refused(lambda: read(tmp_path), "no form")


def test_archives_that_would_fill_the_memory(tmp_path: Path) -> None:
    path = written(tmp_path / "bomb.npz", arrays())
    refused(lambda: npz(path, limit=100), "limit")
    # A member that declares far more than its packed size could give.
    with zipfile.ZipFile(tmp_path / "ratio.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        with archive.open("x.npy", "w", force_zip64=True) as stream:
            for _ in range(80):
                stream.write(bytes(1 << 20))
    refused(lambda: npz(tmp_path / "ratio.npz"), "no real data")
    # A header that declares an array larger than its member.
    header = b"\x93NUMPY\x01\x00" + struct.pack("<H", 118)
    text = "{'descr': '|u1', 'fortran_order': False, 'shape': (10000000000000, 1, 1)}".ljust(117) + "\n"
    with zipfile.ZipFile(tmp_path / "header.npz", "w") as archive:
        archive.writestr("x.npy", header + text.encode() + bytes(10))
    refused(lambda: npz(tmp_path / "header.npz"), "should have")
    with zipfile.ZipFile(tmp_path / "lzma.npz", "w", zipfile.ZIP_LZMA) as archive:
        archive.writestr("x.npy", header + text.encode())
    refused(lambda: npz(tmp_path / "lzma.npz"), "unusual")


def test_a_declared_size_is_not_believed(tmp_path: Path) -> None:
    path = written(tmp_path / "attacker.npz", arrays())
    raw = path.read_bytes()
    at = raw.rindex(b"PK\x01\x02", 0, raw.index(b"y.npy", raw.index(b"PK\x01\x02")))
    for size in (0, 1, 2**32 - 2):
        path.write_bytes(raw[: at + 24] + struct.pack("<I", size) + raw[at + 28 :])
        refused(lambda: npz(path), "attacker.npz")


def test_truncated_files(tmp_path: Path) -> None:
    whole = written(tmp_path / "whole.npz", arrays()).read_bytes()
    path = tmp_path / "cut.npz"
    for end in range(0, len(whole), 37):
        path.write_bytes(whole[:end])
        refused(lambda: npz(path), "cut.npz")


@settings(max_examples=150)
@given(
    flips=st.lists(st.tuples(st.integers(0, 10**6), st.integers(1, 255)), min_size=1, max_size=4),
    text=st.booleans(),
)
def test_flipped_bytes(tmp_path: Path, flips: list[tuple[int, int]], text: bool) -> None:
    path = tmp_path / "flipped.npz"
    raw = bytearray((text_file(path) if text else written(path, arrays())).read_bytes())
    for at, change in flips:
        raw[at % len(raw)] ^= change
    path.write_bytes(raw)
    never_raises_another(lambda: npz(path))


@settings(max_examples=60)
@given(at=st.integers(0, 10**6), change=st.integers(1, 255))
def test_flipped_bytes_under_a_good_checksum(tmp_path: Path, at: int, change: int) -> None:
    """Damage inside an array, where the archive cannot notice it."""
    path = tmp_path / "inside.npz"
    with zipfile.ZipFile(path, "w") as archive:
        for number, (key, value) in enumerate(arrays().items()):
            stream = io.BytesIO()
            np.save(stream, value)
            raw = bytearray(stream.getvalue())
            if number == at % 9:
                raw[at // 9 % len(raw)] ^= change
            archive.writestr(f"{key}.npy", bytes(raw))
    never_raises_another(lambda: npz(path))


# --- IDX


def idx_bytes(array: Any) -> bytes:
    head = struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape)
    return head + bytes(array.astype(np.uint8).tobytes())


def idx_folder(folder: Path, *, packed: bool = True, prefix: str = "") -> Path:
    folder.mkdir(exist_ok=True)
    for part, n in (("train", 8), ("t10k" if not prefix else "test", 4)):
        images = (np.arange(n * 6) % 256).reshape(n, 2, 3)
        for kind, array in (("images-idx3", images), ("labels-idx1", np.arange(n) % 4 + 1)):
            name = f"{prefix}{part}-{kind}-ubyte"
            if packed:
                (folder / f"{name}.gz").write_bytes(gzip.compress(idx_bytes(array), mtime=0))
            else:
                (folder / name).write_bytes(idx_bytes(array))
    return folder


@pytest.mark.parametrize("packed", [True, False])
def test_idx(tmp_path: Path, packed: bool) -> None:
    pool = sound(read(idx_folder(tmp_path / "set", packed=packed)))
    assert tuple(pool.x.shape) == (12, 1, 2, 3) and pool.name == "set"
    assert pool.classes == ("1", "2", "3", "4") and pool.y.tolist() == [0, 1, 2, 3] * 3
    assert pool.test is not None and pool.test.tolist() == [False] * 8 + [True] * 4
    assert pool.x[0].flatten().tolist() == [0, 1, 2, 3, 4, 5]


def test_emnist_is_turned_upright_and_named(tmp_path: Path) -> None:
    pool = sound(data.idx(idx_folder(tmp_path / "set", prefix="emnist-letters-")))
    assert tuple(pool.x.shape) == (12, 1, 3, 2) and pool.classes == tuple("abcd")
    assert pool.x[0].flatten().tolist() == [0, 3, 1, 4, 2, 5]
    idx_folder(tmp_path / "set", prefix="emnist-byclass-")
    refused(lambda: data.idx(tmp_path / "set"), "several IDX sets")


def test_damaged_idx(tmp_path: Path) -> None:
    for packed, name in ((True, "train-images-idx3-ubyte.gz"), (False, "train-images-idx3-ubyte")):
        folder = idx_folder(tmp_path / f"set{packed}", packed=packed)
        whole = (folder / name).read_bytes()
        for end in range(len(whole)):
            (folder / name).write_bytes(whole[:end])
            refused(lambda folder=folder: data.idx(folder), name)  # type: ignore[misc]
    (folder / name).write_bytes(whole + b"more")
    refused(lambda: data.idx(folder), "longer")
    (folder / name).write_bytes(struct.pack(">HBB3I", 0, 8, 3, 2**31, 2**15, 2**15))
    refused(lambda: data.idx(folder), "declares")
    (folder / name).write_bytes(b"\x00\x00\x0d" + whole[3:])
    refused(lambda: data.idx(folder), "no such IDX file")
    (folder / name).unlink()
    refused(lambda: data.idx(folder), "missing")


def test_a_packed_bomb_is_not_unpacked(tmp_path: Path) -> None:
    folder = idx_folder(tmp_path / "set")
    bomb = gzip.compress(struct.pack(">HBB3I", 0, 8, 3, 2, 2, 3) + bytes(1 << 26), mtime=0)
    (folder / "train-images-idx3-ubyte.gz").write_bytes(bomb)
    tracemalloc.start()
    try:
        refused(lambda: data.idx(folder), "longer")
        assert tracemalloc.get_traced_memory()[1] < 1 << 20  # of 64 MiB
    finally:
        tracemalloc.stop()


@settings(max_examples=60)
@given(at=st.integers(0, 10**6), change=st.integers(1, 255), packed=st.booleans())
def test_flipped_bytes_in_idx(tmp_path: Path, at: int, change: int, packed: bool) -> None:
    folder = idx_folder(tmp_path / f"set{packed}", packed=packed)
    files = sorted(folder.iterdir())
    raw = bytearray(files[at % 4].read_bytes())
    raw[at // 4 % len(raw)] ^= change
    files[at % 4].write_bytes(raw)
    never_raises_another(lambda: data.idx(folder))


# --- CIFAR


def test_cifar10(tmp_path: Path) -> None:
    rows = np.zeros((3, 3073), np.uint8)
    rows[:, 0], rows[:, 1:1025], rows[:, 1025:2049] = [9, 0, 3], 7, 8
    for name in ("data_batch_1.bin", "data_batch_2.bin", "test_batch.bin"):
        (tmp_path / name).write_bytes(rows.tobytes())
    pool = sound(read(tmp_path))
    assert pool.name == "cifar10" and tuple(pool.x.shape) == (9, 3, 32, 32)
    assert pool.y.tolist() == [9, 0, 3] * 3 and pool.classes[9] == "truck"
    assert pool.x[0, :, 5, 5].tolist() == [7, 8, 0]
    assert pool.test is not None and int(pool.test.sum()) == 3
    (tmp_path / "test_batch.bin").write_bytes(rows.tobytes()[:-1])
    refused(lambda: read(tmp_path), "test_batch.bin", "multiple")
    rows[0, 0] = 10
    (tmp_path / "test_batch.bin").write_bytes(rows.tobytes())
    refused(lambda: read(tmp_path), "labels run from 0 to 10")


def test_cifar100_takes_fine_labels(tmp_path: Path) -> None:
    rows = np.zeros((2, 3074), np.uint8)
    rows[:, 0], rows[:, 1] = 1, [5, 99]
    for name in ("train.bin", "test.bin"):
        (tmp_path / name).write_bytes(rows.tobytes())
    (tmp_path / "fine_label_names.txt").write_text("\n".join(f"thing {i}" for i in range(100)))
    pool = sound(read(tmp_path))
    assert pool.y.tolist() == [5, 99, 5, 99] and pool.classes[99] == "thing 99"


class _Trap:
    def __reduce__(self) -> tuple[Any, ...]:
        return (os._exit, (1,))


@pytest.mark.parametrize("names", [("data_batch_1", "test_batch"), ("train", "test", "meta")])
def test_pickled_cifar_is_never_opened(tmp_path: Path, names: tuple[str, ...]) -> None:
    for name in names:
        (tmp_path / name).write_bytes(pickle.dumps(_Trap()))
    refused(lambda: read(tmp_path), "binary version")
    refused(lambda: data.cifar(tmp_path), "binary version")


# --- folders of pictures


def picture(path: Path, colour: Any = 100, size: tuple[int, int] = (6, 5)) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("L" if isinstance(colour, int) else "RGB", size, colour).save(path)


def test_folders_of_pictures(tmp_path: Path) -> None:
    root = tmp_path / "set"
    for client in ("anna", "bert"):
        for label in ("cat", "dog"):
            for i in range(2):
                picture(root / client / label / f"{i}.png", 10 * i + (100 if label == "dog" else 0))
    (root / "anna" / "cat" / "notes.txt").write_text("no picture")
    picture(root / ".hidden" / "cat" / "0.png")
    pool = sound(read(root))
    assert tuple(pool.x.shape) == (8, 1, 5, 6) and pool.classes == ("cat", "dog")
    assert pool.clients == ("anna", "bert") and pool.x[:, 0, 0, 0].tolist() == [0, 10, 100, 110] * 2
    picture(root / "bert" / "dog" / "9.jpg", (250, 0, 0))
    coloured = sound(read(root))
    assert tuple(coloured.x.shape) == (9, 3, 5, 6) and coloured.x[3, :, 0, 0].tolist() == [110] * 3
    picture(root / "bert" / "dog" / "8.bmp", 0, size=(7, 5))
    refused(lambda: read(root), "8.bmp", "size=(height, width)")
    assert tuple(sound(data.folders(root, size=(4, 4))).x.shape) == (10, 3, 4, 4)
    (root / "anna" / "cat" / "0.png").write_bytes(b"\x89PNG broken")
    refused(lambda: read(root), "0.png", "readable")


def test_folders_of_groups(tmp_path: Path) -> None:
    root = tmp_path / "set"
    for group, client in (("east", "anna"), ("east", "bert"), ("west", "anna")):
        for label in ("cat", "dog"):
            picture(root / group / client / label / "0.png", 30 if group == "east" else 60)
    pool = sound(read(root))
    assert pool.clients == ("east/anna", "east/bert", "west/anna") and pool.group_names == ("east", "west")
    assert pool.group is not None and pool.x[:, 0, 0, 0].tolist() == [[30, 60][g] for g in pool.group.tolist()]
    assert deal(pool, Natural()).group.tolist() == [0, 0, 1]  # type: ignore[union-attr]
    picture(root / "east" / "cat" / "0.png")
    refused(lambda: read(root), "east/cat/0.png", "GROUP/CLIENT/CLASS/picture")


def test_links_that_leave_the_folder_are_refused(tmp_path: Path) -> None:
    picture(tmp_path / "secret.png")
    picture(tmp_path / "set" / "anna" / "cat" / "0.png")
    (tmp_path / "set" / "anna" / "cat" / "1.png").symlink_to(tmp_path / "secret.png")
    refused(lambda: read(tmp_path / "set"), "leaves")


# --- LEAF


def leaf_folder(root: Path, x: Callable[[int], Any], y: Callable[[int], Any], *, split: bool = True) -> Path:
    for part, n in (("train", 4), ("test", 2)) if split else (("", 4),):
        users = {f"u{k}": {"x": [x(i) for i in range(n)], "y": [y(i) for i in range(n)]} for k in range(3)}
        (root / part).mkdir(parents=True, exist_ok=True)
        content = {"users": list(users), "num_samples": [n] * 3, "user_data": users}
        (root / part / "all_data.json").write_text(json.dumps(content))
    return root


def test_leaf_images(tmp_path: Path) -> None:
    pool = sound(read(leaf_folder(tmp_path / "femnist", lambda i: [i / 10] * 784, lambda i: 61 - i)))
    assert tuple(pool.x.shape) == (18, 1, 28, 28) and len(pool.classes) == 62 and pool.classes[61] == "z"
    assert pool.clients == ("u0", "u1", "u2") and pool.test is not None and int(pool.test.sum()) == 6
    federation = deal(pool, Natural())
    assert federation.train.sizes.tolist() == [4, 4, 4] and federation.test.sizes.tolist() == [2, 2, 2]


def test_leaf_vectors_without_a_split(tmp_path: Path) -> None:
    pool = sound(read(leaf_folder(tmp_path / "flat", lambda i: [i, 1.5], lambda i: float(i), split=False)))
    assert tuple(pool.x.shape) == (12, 2) and pool.test is None and pool.classes == tuple("0123")


def test_leaf_text(tmp_path: Path) -> None:
    pool = sound(read(leaf_folder(tmp_path / "plays", lambda i: "ab" * 40, lambda i: "xyz."[i])))
    assert pool.symbols == 80 == len(pool.classes) and pool.x.dtype == torch.uint8
    assert [pool.classes[int(c)] for c in pool.y[:4]] == list("xyz.")
    other = sound(read(leaf_folder(tmp_path / "more", lambda i: "aä" * 40, lambda i: "a")))
    assert other.classes == ("a", "ä")
    third = sound(read(leaf_folder(tmp_path / "third", lambda i: "ab" * 40, lambda i: "ö")))
    assert third.symbols == len(third.classes) == 3, "one alphabet for what goes in and what comes out"


def test_leaf_messages(tmp_path: Path) -> None:
    row = ["id", "date", "query", "user", "Good morning, WORLD", "labels"]
    pool = sound(read(leaf_folder(tmp_path / "sent140", lambda i: row, lambda i: i % 2)))
    assert tuple(pool.x.shape) == (18, 25) and pool.symbols == 10_000
    assert (pool.x[0] > 0).tolist() == [False] * 21 + [True] * 4
    again = sound(read(leaf_folder(tmp_path / "again", lambda i: [*row[:4], "good MORNING , world"], lambda i: 0)))
    assert torch.equal(again.x[0], pool.x[0])


def test_leaf_pictures_stay_inside_the_folder(tmp_path: Path) -> None:
    root = leaf_folder(tmp_path / "celeba", lambda i: f"{i}.jpg", lambda i: i % 2)
    refused(lambda: read(root), "no picture '0.jpg'")
    for i in range(4):
        picture(root / "images" / f"{i}.jpg", (50 * i, 0, 0))
    pool = sound(read(root))
    assert tuple(pool.x.shape) == (18, 3, 84, 84)
    assert tuple(data.leaf(root, size=(8, 8)).x.shape) == (18, 3, 8, 8)
    picture(tmp_path / "secret.jpg")
    for name in ("../secret.jpg", str(tmp_path / "secret.jpg"), "images/../../secret.jpg", "..\\secret.jpg"):
        leaf_folder(root, lambda i, name=name: name, lambda i: 0)  # type: ignore[misc]
        refused(lambda: read(root), "inside the folder")


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"[" * 100_000,
        b'{"user_data": {}}',
        b'{"users": ["a"], "user_data": {}}',
        b'{"users": 3, "user_data": {}}',
        b'{"users": [[1]], "user_data": {"a": 1}}',
        b'{"users": ["a"], "num_samples": [2], "user_data": {"a": {"x": [[1]], "y": [0]}}}',
        b'{"users": ["a"], "user_data": {"a": {"x": [[1], [1, 2]], "y": [0, 0]}}}',
        b'{"users": ["a"], "user_data": {"a": {"x": [[NaN]], "y": [0]}}}',
        b'{"users": ["a"], "user_data": {"a": {"x": [[1e999]], "y": [0]}}}',
        b'{"users": ["a"], "user_data": {"a": {"x": [[1]], "y": [-1]}}}',
        b'{"users": ["a"], "user_data": {"a": {"x": [[1]], "y": [1e300]}}}',
        b'{"users": ["a"], "user_data": {"a": {"x": [[1]], "y": [null]}}}',
        b'{"users": ["a"], "user_data": {"a": {"x": [null], "y": [0]}}}',
        b'{"users": ["a"], "user_data": {"a": {"x": [{}], "y": [0]}}}',
        b'{"users": ["a"], "user_data": {"a": {"x": ["short"], "y": ["c"]}}}',
        b'{"users": ["a"], "user_data": {"a": {"x": [["one"]], "y": [0]}}}',
        b"\xff\xfe\x00",
    ],
)
def test_wrong_leaf_files(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "all.json").write_bytes(content)
    refused(lambda: data.leaf(tmp_path))


# --- Hugging Face


class Columns:
    """What this library needs of a dataset."""

    def __init__(self, features: dict[str, Any] | None = None, **columns: list[Any]) -> None:
        self.columns, self.features = columns, features or {}
        self.column_names = list(columns)

    def __getitem__(self, column: str) -> list[Any]:
        return self.columns[column]


def test_hugging_face() -> None:
    images = [Image.new("RGB", (6, 5), (i, 0, 0)) for i in range(4)]

    class Names:
        names = ("no", "yes")

    train = Columns({"label": Names()}, image=images, label=[0, 1, 1, 0], who=["b", "a", "a", "b"])
    pool = sound(data.hugging_face(train, client="who"))
    assert tuple(pool.x.shape) == (4, 3, 5, 6) and pool.classes == ("no", "yes") and pool.clients == ("a", "b")
    both = sound(data.hugging_face(train, test=train))
    assert both.test is not None and both.test.tolist() == [False] * 4 + [True] * 4
    flagged = sound(data.hugging_face(Columns(f=[[1, 2], [3, 4]], label=["u", "v"], t=[0, 1]), image="f", test="t"))
    assert flagged.x.dtype == torch.float32 and flagged.classes == ("u", "v")
    assert flagged.test is not None and flagged.test.tolist() == [False, True]
    arrays_ = Columns(image=[np.zeros((5, 6), np.uint8)] * 2, label=[0.5, 1.5])
    assert tuple(sound(data.hugging_face(arrays_)).x.shape) == (2, 1, 5, 6)
    refused(lambda: data.hugging_face(train, label="labels"), "no column 'labels'")
    refused(lambda: data.hugging_face(Columns(image=[[1], [1, 2]], label=[0, 1])))
    refused(lambda: data.hugging_face(Columns(image=[], label=[])), "no examples")
    refused(lambda: load(both), "which client", "--partition")
    assert load(both, "iid", clients=2).n_clients == 2


def test_texts_of_hugging_face() -> None:
    rows = Columns(sentence=["a bb ccc", "a", "bb " * 9], label=[0, 1, 1])

    def tokenizer(text: str) -> list[int]:
        return [len(word) for word in text.split()]

    how: dict[str, Any] = {"text": "sentence", "tokenizer": tokenizer, "length": 4}
    pool = sound(data.hugging_face(rows, **how))
    assert pool.x.tolist() == [[0, 1, 2, 3], [0, 0, 0, 1], [2, 2, 2, 2]] and pool.symbols == 4
    assert data.hugging_face(rows, **how, symbols=1000).x.dtype == torch.int32
    refused(lambda: data.hugging_face(rows, **how, symbols=3), "0 to 3", "symbols 0 to 2")
    refused(lambda: data.hugging_face(rows, text="sentence"), "tokenizer=")
    refused(lambda: data.hugging_face(rows, **(how | {"tokenizer": str.split})), "example 0", "whole numbers")
    refused(lambda: data.hugging_face(rows, **(how | {"length": 0})), "length")


def test_several_labels_of_hugging_face() -> None:
    def told(*labels: Any, names: Any = None) -> Any:
        class Inner:
            pass

        Inner.names = names  # type: ignore[attr-defined]
        sequence = type("Sequence", (), {"feature": Inner()})()
        return data.hugging_face(Columns({"label": sequence}, image=[[1.0, 2.0]] * len(labels), label=list(labels)))

    pool = told([0, 2], [], [1], names=["a", "b", "c"])
    assert (pool.kind, pool.classes) == ("labels", ("a", "b", "c"))
    assert pool.y.tolist() == [[1, 0, 1], [0, 0, 0], [0, 1, 0]]
    assert told([0, 2], [1]).classes == ("0", "1", "2")
    assert told([0, 1, 0], [0, 0, 0]).y.tolist() == [[0, 1, 0], [0, 0, 0]]  # 0 and 1 for each already
    refused(lambda: told([0, 3], [1], names=["a", "b"]), "0 to 3", "0 to 1")
    refused(lambda: told(["x"], ["y", "z"]), "whole numbers")


# --- names


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two folders of data and an empty cache."""
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
    monkeypatch.setenv("POLYCENTRIC_DATA", os.pathsep.join([str(tmp_path / "one"), "", str(tmp_path / "two")]))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path


def test_names_are_looked_up_in_order(places: Path) -> None:
    written(places / "two" / "mine.npz", arrays(12))
    assert len(find("mine").x) == 12
    written(places / "one" / "mine.npz", arrays(9))
    idx_folder(places / "two" / "handwriting")
    assert len(find("mine").x) == 9 and find("handwriting").name == "handwriting"
    assert len(find(str(places / "two" / "mine.npz")).x) == 12
    (places / "two" / "broken.npz").write_bytes(b"PK")
    found, own = {name: (where, what) for name, where, what in data.available()}, ("mine", "broken", "handwriting")
    assert list(found) == ["digits", "domains", "minority", "mixture", "streets", "synthetic", "teacher", *own]
    assert found["mine"] == (str(places / "one"), "9 examples of 4x5, 3 classes, natural clients")
    assert "broken.npz" in found["broken"][1]
    refused(lambda: find("mien"), "did you mean 'mine'", "POLYCENTRIC_DATA")
    refused(lambda: find("../one/mine"), "unknown data set")


SOURCES: dict[str, Callable[[Path], Pool]] = {
    "images": lambda tmp: npz(written(tmp / "a.npz", arrays())),
    "colour": lambda tmp: npz(written(tmp / "a.npz", arrays(x=np.arange(720).astype(np.uint8).reshape(12, 4, 5, 3)))),
    "series": lambda tmp: npz(written(tmp / "a.npz", arrays(x=np.arange(240.0).reshape(12, 10, 2)))),
    "text": lambda tmp: npz(text_file(tmp / "a.npz")),
    "idx": lambda tmp: read(idx_folder(tmp / "set")),
    "leaf": lambda tmp: read(leaf_folder(tmp / "set", lambda i: [i / 10] * 784, lambda i: i)),
    "messages": lambda tmp: read(leaf_folder(tmp / "set", lambda i: [*"abcd", "some words"], lambda i: i % 2)),
}


@pytest.mark.parametrize("kind", SOURCES)
def test_installed_data_are_the_same_data(places: Path, kind: str) -> None:
    first = SOURCES[kind](places)
    path = places / "a.npz" if (places / "a.npz").exists() else places / "set"
    target = data.install(path, "kept")
    assert [file.name for file in target.parent.iterdir()] == ["kept.npz"]
    again = sound(find("kept"))
    for field in ("x", "y", "client", "test", "common_test", "group", "protected"):
        before, after = getattr(first, field), getattr(again, field)
        assert (before is None) == (after is None), field
        assert before is None or (before.dtype == after.dtype and torch.equal(before, after)), field
    for field in ("classes", "clients", "group_names", "symbols", "note"):
        assert getattr(first, field) == getattr(again, field), field
    refused(lambda: data.install(path, "kept"), "force=True")
    data.install(path, "kept", force=True)


def test_install_wants_a_plain_name(places: Path) -> None:
    path = written(places / "a.npz", arrays())
    for name in ("digits", "../up", "", "a/b", ".hidden"):
        refused(lambda name=name: data.install(path, name), "cannot name")  # type: ignore[misc]
    refused(lambda: data.install(path, "my visits (1)"), "such as --name my-visits-1")
    refused(lambda: data.install(path, "digits"), "such as --name my-digits")


def test_labels_without_names_are_the_classes_that_occur(places: Path) -> None:
    y = np.array([8, 1, 1] * 4)
    path = written(places / "a.npz", arrays(y=y, classes=None))
    for pool in (npz(path), npz(data.install(path, "kept"))):
        assert pool.classes == ("1", "8") and pool.y.tolist() == [1, 0, 0] * 4
    path = written(places / "b.npz", arrays(y=y % 3, classes=None))
    assert npz(path).classes == ("1", "2")


@pytest.mark.filterwarnings("always")
def test_a_class_that_has_a_name_and_no_example_stays_and_is_said_where_it_is_run(places: Path, say: Any) -> None:
    path = written(places / "a.npz", arrays(40, y=np.arange(40) % 2))
    assert npz(path).classes == ("a", "b", "c")
    how = "--rounds 1 --fine-tune 0 --quiet --executor looped --out".split()
    told = say("run", "fedavg", "--data", str(path), *how, str(places / "r"))
    assert "note: data 'a': class c has a name and no example; models put out 3 classes all the same" in told.err
    whole = written(places / "b.npz", arrays(40))
    assert "no example" not in say("run", "fedavg", "--data", str(whole), *how, str(places / "s")).err


def test_several_inputs_are_kept(places: Path) -> None:
    both = {"image": np.arange(96, dtype=np.uint8).reshape(6, 4, 4), "age": np.arange(6.0)}
    pool = data.from_arrays(both, [0, 1] * 3, client=[0, 1] * 3)
    save(pool, places / "two.npz")
    again = npz(places / "two.npz")
    assert again.inputs == pool.inputs == (("image", (1, 4, 4)), ("age", (1,))) and again.recipe == pool.recipe
    assert torch.equal(again.x, pool.x)
    whole = arrays(12, x=np.zeros((12, 4), np.float32))
    for wrong in ("3", "[1]", '[["a"]]', '[["a", "b"]]', '{"a": [4]}'):
        refused(lambda wrong=wrong: npz(written(places / "w.npz", whole | {"inputs": np.array(wrong)})), "inputs must")  # type: ignore[misc]
    refused(lambda: load(written(places / "w.npz", whole | {"inputs": np.array('[["a", [3]]]')})), "3 numbers")


def test_what_was_done_to_pictures_is_kept(places: Path) -> None:
    for at, name in enumerate(("ann/a", "ann/b", "bob/a", "bob/b")):
        (places / "set" / name).mkdir(parents=True)
        Image.fromarray(np.full((4 + at, 5, 3), at, np.uint8)).save(places / "set" / name / "p.png")
    pool = npz(data.install(places / "set", "kept", size=(3, 2)))
    assert pool.recipe == {"pictures": {"size": [3, 2], "channels": 3}} and pool.x.shape == (4, 3, 3, 2)


# --- real files


@pytest.mark.parametrize("name", REAL)
def test_real_data(name: str) -> None:
    folders = os.environ.get("POLYCENTRIC_DATA", "").split(os.pathsep)
    if not any(folder and (Path(folder) / f"{name}.npz").is_file() for folder in folders):
        pytest.skip(f"set POLYCENTRIC_DATA to the folder with {name}.npz")
    natural = name != "fashion-mnist"  # nobody knows who made those
    federation = load(name) if natural else load(name, partition="iid", clients=REAL[name])
    assert federation.n_clients == REAL[name]
    assert int(federation.train.sizes.min()) >= 1
    assert len(federation.test) > 0
