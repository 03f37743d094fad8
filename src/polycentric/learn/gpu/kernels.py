"""Convolutions of a stack of clients as matrix products whose left factor is never written down; max pools; moves.

    product   y[c, m, o]  =  sum_k  x[c, m, k] w[c, k, o]  (+ b[c, o])      convolution, and its gradient in x
    weigh     v[c, o, k]  =  sum_m  g[c, m, o] x[c, m, k]                   its gradient in w

c is a client, m = (image, row, column) a pixel of the result, k a number under the kernel, o a channel of the result.
x[c, m, k] is read from the image where it lies: at m, moved by k. The image has its zeros around it already, so both
moves are plain sums of places, and nothing has to look for a border; tiles that reach over the end of m or o read the
last one again, and do not write it. A grid program computes a tile for one client, in an order that depends on nothing
but shapes; nothing is added by atomic operations, so the same input gives the same bits. Sums are in float32 whatever
the numbers are; factors of float32 are read as TF32 if `PRECISION` says so.

    frame     an image with zeros around it, and perhaps between its pixels; channels last if there are several

    multiply  y[c]  =  a[c] b[c]                                            few rows, or few summands
              w[c] moves along a[c] b[c], where that is a gradient: it is never written down

    largest   y[m] = max of the window m, and its place there    gather   y[m] = u[m, place[m]]
    spread    u[m, k] = g[m] if k is place[m], otherwise 0       its gradient

In the pools m is a window of whichever image, and k a pixel in it; programs take what they write in its order in
memory, and count from the image they begin in, so that no number but the first place needs 64 bits.

    move      v <- beta v + g + decay w,  w <- w - lr v          some columns of a row, in place

This module needs Triton, which comes with torch where there is a GPU; `convolve` does without it.
"""

# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def product(
    # rows: pixels of the result of one client, images * YH * YW; x_client: from client to client, 0 where all share it
    x, w, b, y, rows, x_client, w_client, b_client,
    XC: tl.constexpr, XH: tl.constexpr, XW: tl.constexpr, YC: tl.constexpr, YH: tl.constexpr, YW: tl.constexpr,
    KH: tl.constexpr, KW: tl.constexpr, SH: tl.constexpr, SW: tl.constexpr, BIASED: tl.constexpr,
    PRECISION: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """x is (client, image, XH, XW, XC), w is (client, YC, KH, KW, XC), y is (client, image, YC, YH, YW).

    What a row of the kernel covers, KW * XC numbers, lies together in x and in w.
    """
    K: tl.constexpr = KH * KW * XC
    LINE: tl.constexpr = KW * XC
    TILES: tl.constexpr = (YC + BN - 1) // BN
    TOGETHER: tl.constexpr = 4 if (YH * YW) % 4 == 0 else 1  # pixels m, m + 1, ... that surely lie together in y

    client = tl.program_id(1).to(tl.int64)
    tile = tl.program_id(0)
    m = (tile // TILES) * BM + tl.arange(0, BM)
    o = (tile % TILES) * BN + tl.arange(0, BN)
    here = tl.minimum(m, rows - 1)
    image, pixel = here // (YH * YW), here % (YH * YW)
    x_place = ((image * XH + (pixel // YW) * SH) * XW + (pixel % YW) * SW) * XC
    w_place = tl.minimum(o, YC - 1) * K
    x += client * x_client
    w += client * w_client

    total = tl.zeros((BM, BN), dtype=tl.float32)
    for first in range(0, K, BK):
        k = first + tl.arange(0, BK)
        if LINE % BK == 0:  # all under one row of the kernel
            move = (first // LINE) * (XW * XC) + tl.multiple_of(first % LINE, BK) + tl.arange(0, BK)
        else:
            move = (k // LINE) * (XW * XC) + k % LINE
        if K % BK == 0:
            left = tl.load(x + (x_place[:, None] + move[None, :]))
            right = tl.load(w + (k[:, None] + w_place[None, :]))
        else:
            left = tl.load(x + (x_place[:, None] + move[None, :]), mask=k[None, :] < K, other=0.0)
            right = tl.load(w + (k[:, None] + w_place[None, :]), mask=k[:, None] < K, other=0.0)
        total = tl.dot(left, right, total, input_precision=PRECISION)

    if BIASED:
        total += tl.load(b + client * b_client + o, mask=o < YC, other=0.0).to(tl.float32)[None, :]
    image, pixel = m // (YH * YW), m % (YH * YW)
    place = tl.max_contiguous(tl.multiple_of(image * (YC * YH * YW) + pixel, TOGETHER), TOGETHER)
    y += client * rows * YC
    to = y + (o[:, None] * (YH * YW) + place[None, :])
    tl.store(to, tl.trans(total).to(y.dtype.element_ty), mask=(o[:, None] < YC) & (m[None, :] < rows))


@triton.jit
def step_along(g, w, v, rate, here, beta, decay, MOMENTUM: tl.constexpr, DECAYS: tl.constexpr):
    """v <- beta v + g + decay w, w <- w - rate v, at places of one client: w and v are pointers to them."""
    old = tl.load(w, mask=here, other=0.0)
    if DECAYS:
        g += decay * old
    if MOMENTUM:
        g += beta * tl.load(v, mask=here, other=0.0)
        tl.store(v, g, mask=here)
    tl.store(w, old - rate * g, mask=here)


@triton.jit(do_not_specialize=["clients"])  # one program, however many there are
def weigh(
    # rows: pixels of g of one client, images * GH * GW, of which a program adds up `part`
    # BM of GC, BN of XC * KH * KW, BK of pixels; if it MOVES: v is what moves, and u its velocity
    x, g, v, rows, part, clients, x_client, g_client,
    v_client, u, u_client, lr, beta, decay, MOVES: tl.constexpr, MOMENTUM: tl.constexpr, DECAYS: tl.constexpr,
    XC: tl.constexpr, XH: tl.constexpr, XW: tl.constexpr, GC: tl.constexpr, GH: tl.constexpr, GW: tl.constexpr,
    KH: tl.constexpr, KW: tl.constexpr, SH: tl.constexpr, SW: tl.constexpr, PRECISION: tl.constexpr, BM: tl.constexpr,
    BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """x is (client, image, XC, XH, XW), g is (client, image, GC, GH, GW), v is (part, client, GC, XC, KH, KW).

    v is in float32; weights that move do so in one part. Here the sum is over pixels, so it is pixels that lie together
    in x and in g, and that threads side by side read; pixels are the first axis of `right` for that reason.
    """
    K: tl.constexpr = XC * KH * KW
    TILES: tl.constexpr = (GC + BM - 1) // BM
    TOGETHER: tl.constexpr = 4 if (GH * GW) % 4 == 0 else 1

    client = tl.program_id(1).to(tl.int64)
    tile, begin = tl.program_id(0), tl.program_id(2) * part
    o = (tile % TILES) * BM + tl.arange(0, BM)
    k = (tile // TILES) * BN + tl.arange(0, BN)
    here = tl.minimum(k, K - 1)
    tap = here % (KH * KW)
    move = ((here // (KH * KW)) * XH + tap // KW) * XW + tap % KW
    g_place = tl.minimum(o, GC - 1) * (GH * GW)
    x += client * x_client
    g += client * g_client

    total = tl.zeros((BM, BN), dtype=tl.float32)
    for first in range(begin, min(begin + part, rows), BK):
        m = first + tl.arange(0, BK)
        image, pixel = m // (GH * GW), m % (GH * GW)
        place = tl.max_contiguous(tl.multiple_of(image * (GC * GH * GW) + pixel, TOGETHER), TOGETHER)
        x_place = (image * (XC * XH) + (pixel // GW) * SH) * XW + (pixel % GW) * SW
        left = tl.load(g + (g_place[:, None] + place[None, :]), mask=m[None, :] < rows, other=0.0)
        right = tl.load(x + (x_place[:, None] + move[None, :]), mask=m[:, None] < rows, other=0.0)
        total = tl.dot(left, right, total, input_precision=PRECISION)

    at, inside = o[:, None] * K + k[None, :], (o[:, None] < GC) & (k[None, :] < K)
    if MOVES:
        v += client * v_client
        u += client * u_client
        step_along(total, v + at, u + at, tl.load(lr + client), inside, beta, decay, MOMENTUM, DECAYS)
    else:
        v += (tl.program_id(2) * clients + client) * v_client
        tl.store(v + at, total, mask=inside)


@triton.jit
def multiply(
    # tiles: programs for one client; a_client: from client to client, 0 where all have the same
    # rows of a and y, columns of b and y; a_row: from row to row of a, from column to column; and so for b
    a, b, y, tiles, a_client, b_client, rows, columns, inner, a_row, a_column, b_row, b_column,
    # if it MOVES: y is what moves, from client to client y_client, and v its velocity
    y_client, v, v_client, lr, beta, decay, MOVES: tl.constexpr, MOMENTUM: tl.constexpr, DECAYS: tl.constexpr,
    PRECISION: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """a is (client, rows, inner), b is (client, inner, columns), y is (client, rows, columns)."""
    across = tl.cdiv(columns, BN)
    client = (tl.program_id(0) // tiles).to(tl.int64)
    tile = tl.program_id(0) % tiles
    m = (tile // across) * BM + tl.arange(0, BM)
    n = (tile % across) * BN + tl.arange(0, BN)
    a += client * a_client
    b += client * b_client
    total = tl.zeros((BM, BN), dtype=tl.float32)
    for first in range(0, inner, BK):
        k = first + tl.arange(0, BK)
        a_here, b_here = (m[:, None] < rows) & (k[None, :] < inner), (k[:, None] < inner) & (n[None, :] < columns)
        left = tl.load(a + (m[:, None] * a_row + k[None, :] * a_column), mask=a_here, other=0.0)
        right = tl.load(b + (k[:, None] * b_row + n[None, :] * b_column), mask=b_here, other=0.0)
        total = tl.dot(left, right, total, input_precision=PRECISION)
    at, here = m[:, None] * columns + n[None, :], (m[:, None] < rows) & (n[None, :] < columns)
    y += client * y_client
    if MOVES:
        v += client * v_client
        step_along(total, y + at, v + at, tl.load(lr + client), here, beta, decay, MOMENTUM, DECAYS)
    else:
        tl.store(y + at, total, mask=here)


@triton.jit
def frame(
    # tiles: programs for one image
    x, y, tiles,
    XC: tl.constexpr, XH: tl.constexpr, XW: tl.constexpr, YH: tl.constexpr, YW: tl.constexpr, TOP: tl.constexpr,
    LEFT: tl.constexpr, SH: tl.constexpr, SW: tl.constexpr, BC: tl.constexpr, BP: tl.constexpr,
):  # fmt: skip
    """x is (image, XC, XH, XW), y is (image, YH, YW, XC): read pixel by pixel, written channel by channel."""
    CHANNELS: tl.constexpr = (XC + BC - 1) // BC
    image = (tl.program_id(0) // tiles).to(tl.int64)
    tile = tl.program_id(0) % tiles
    pixel = (tile // CHANNELS) * BP + tl.arange(0, BP)
    down, right = pixel // YW - TOP, pixel % YW - LEFT
    row, column = tl.maximum(down, 0) // SH, tl.maximum(right, 0) // SW
    some = (down >= 0) & (right >= 0) & (row < XH) & (column < XW) & (row * SH == down) & (column * SW == right)
    x += image * (XC * XH * XW)
    y += image * (XC * YH * YW)
    if XC == 1:
        found = tl.load(x + (row * XW + column), mask=some, other=0.0)
        tl.store(y + pixel, found, mask=pixel < YH * YW)
    else:
        channel = (tile % CHANNELS) * BC + tl.arange(0, BC)
        place = channel[:, None] * (XH * XW) + (row * XW + column)[None, :]
        found = tl.load(x + place, mask=some[None, :] & (channel[:, None] < XC), other=0.0)
        to = y + (pixel[:, None] * XC + channel[None, :])
        tl.store(to, tl.trans(found), mask=(pixel[:, None] < YH * YW) & (channel[None, :] < XC))


@triton.jit
def largest(
    # n: windows in all
    x, y, place, n,
    XH: tl.constexpr, XW: tl.constexpr, YH: tl.constexpr, YW: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """x is (image, XH, XW), y and place are (image, YH, YW). The first of equals, and the last that is no number."""
    first = tl.program_id(0).to(tl.int64) * BLOCK
    x += first // (YH * YW) * (XH * XW)
    m = (first % (YH * YW)).to(tl.int32) + tl.arange(0, BLOCK)
    inside = tl.arange(0, BLOCK) < n - first
    pixel = m % (YH * YW)
    x += m // (YH * YW) * (XH * XW) + (pixel // YW) * (KH * XW) + (pixel % YW) * KW
    most = tl.load(x, mask=inside, other=0.0)
    where = tl.zeros((BLOCK,), dtype=tl.int32)
    for k in tl.static_range(1, KH * KW):
        here = tl.load(x + ((k // KW) * XW + k % KW), mask=inside, other=0.0)
        better = (here.to(tl.float32) > most.to(tl.float32)) | (here != here)
        most = tl.where(better, here, most)
        where = tl.where(better, k, where)
    to = first + tl.arange(0, BLOCK)
    tl.store(y + to, most, mask=inside)
    tl.store(place + to, where.to(tl.uint8), mask=inside)


@triton.jit
def gather(
    # n: windows in all
    u, place, y, n,
    XH: tl.constexpr, XW: tl.constexpr, YH: tl.constexpr, YW: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """u is (image, XH, XW), place and y are (image, YH, YW)."""
    first = tl.program_id(0).to(tl.int64) * BLOCK
    u += first // (YH * YW) * (XH * XW)
    m = (first % (YH * YW)).to(tl.int32) + tl.arange(0, BLOCK)
    inside = tl.arange(0, BLOCK) < n - first
    pixel = m % (YH * YW)
    to = first + tl.arange(0, BLOCK)
    k = tl.load(place + to, mask=inside, other=0).to(tl.int32)
    u += m // (YH * YW) * (XH * XW) + ((pixel // YW) * KH + k // KW) * XW + (pixel % YW) * KW + k % KW
    tl.store(y + to, tl.load(u, mask=inside, other=0.0), mask=inside)


@triton.jit
def spread(
    # n: pixels in all
    g, place, u, n,
    XH: tl.constexpr, XW: tl.constexpr, YH: tl.constexpr, YW: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """g and place are (image, YH, YW), u is (image, XH, XW); pixels that are in no window are zero."""
    first = tl.program_id(0).to(tl.int64) * BLOCK
    image = first // (XH * XW) * (YH * YW)
    m = (first % (XH * XW)).to(tl.int32) + tl.arange(0, BLOCK)
    inside = tl.arange(0, BLOCK) < n - first
    pixel = m % (XH * XW)
    row, column = pixel // XW, pixel % XW
    some = inside & (row < YH * KH) & (column < YW * KW)
    at = m // (XH * XW) * (YH * YW) + (row // KH) * YW + column // KW
    chosen = tl.load(place + image + at, mask=some, other=0).to(tl.int32)
    gradient = tl.load(g + image + at, mask=some, other=0.0)
    here = some & (chosen == (row % KH) * KW + column % KW)
    tl.store(u + first + tl.arange(0, BLOCK), tl.where(here, gradient, 0.0), mask=inside)


@triton.jit
def move(
    # n: numbers of one client; tiles: programs for one client; g_client: 0 where all have the same
    w, g, n, tiles, g_client, w_client, v, v_client, lr, beta, decay,
    MOMENTUM: tl.constexpr, DECAYS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """v <- beta v + g + decay w, w <- w - lr v: some columns of every client's row, in place."""
    client = (tl.program_id(0) // tiles).to(tl.int64)
    k = (tl.program_id(0) % tiles) * BLOCK + tl.arange(0, BLOCK)
    inside = k < n
    g = tl.load(g + client * g_client + k, mask=inside, other=0.0)
    w += client * w_client
    v += client * v_client
    step_along(g, w + k, v + k, tl.load(lr + client), inside, beta, decay, MOMENTUM, DECAYS)
