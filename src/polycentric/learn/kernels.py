"""Convolutions of a stack of clients as matrix products whose left factor is never written down.

    product   y[c, m, o]  =  sum_k  x[c, m, k] w[c, k, o]  (+ b[c, o])      convolution, and its slope in x
    weigh     v[c, o, k]  =  sum_m  g[c, m, o] x[c, m, k]                   its slope in w

c is a client, m = (image, row, column) a pixel of the result, k = (channel, tap) a number under the kernel, o a channel
of the result. x[c, m, k] is read from the image where it lies: pixel m moved by the tap, zero outside the image. A grid
program computes a tile for one client, in an order that depends on nothing but shapes; nothing is added by atomic
operations, so the same input gives the same bits. Sums are in float32 whatever the numbers are; factors of float32
are read as TF32 if `PRECISION` says so.

This module needs Triton, which comes with torch where there is a GPU; `convolve` does without it.
"""

# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def product(
    x,
    w,
    b,
    y,
    rows,  # pixels of the result of one client: images * YH * YW
    x_client,  # from client to client; 0 where all have the same
    w_client,
    b_client,
    XC: tl.constexpr,  # channels, height and width of x, of y
    XH: tl.constexpr,
    XW: tl.constexpr,
    YC: tl.constexpr,
    YH: tl.constexpr,
    YW: tl.constexpr,
    KH: tl.constexpr,
    KW: tl.constexpr,
    SH: tl.constexpr,
    SW: tl.constexpr,
    PH: tl.constexpr,
    PW: tl.constexpr,
    TURNED: tl.constexpr,  # the slope in x: a pixel goes to where it came from
    LAST: tl.constexpr,  # channels of x lie together; otherwise pixels do
    BIASED: tl.constexpr,
    PRECISION: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
):
    """w is (client, YC, taps, XC): what is summed over lies together. y is (client, image, YC, YH, YW)."""
    K: tl.constexpr = KH * KW * XC
    TILES: tl.constexpr = (YC + BN - 1) // BN
    WHOLE: tl.constexpr = XC % BK == 0  # a tile of k is under one tap
    PIXEL: tl.constexpr = XC if LAST else 1
    CHANNEL: tl.constexpr = 1 if LAST else XH * XW
    ACROSS: tl.constexpr = 1 if LAST else 0  # the axis that a vector over m is spread along; one over k along the other
    DOWN: tl.constexpr = 0 if LAST else 1
    TOGETHER: tl.constexpr = 4 if (YH * YW) % 4 == 0 else 1  # pixels m, m + 1, ... that surely lie together in y

    client = tl.program_id(1).to(tl.int64)
    tile = tl.program_id(0)
    m = (tile // TILES) * BM + tl.arange(0, BM)
    o = (tile % TILES) * BN + tl.arange(0, BN)
    image, pixel = m // (YH * YW), m % (YH * YW)
    if TURNED:
        h, v = pixel // YW + PH, pixel % YW + PW
    else:
        h, v = (pixel // YW) * SH - PH, (pixel % YW) * SW - PW
    h, v = tl.expand_dims(h, ACROSS), tl.expand_dims(v, ACROSS)
    there = tl.expand_dims(m < rows, ACROSS)
    x_image = tl.expand_dims(image * (XC * XH * XW), ACROSS)
    x += client * x_client
    w += client * w_client

    total = tl.zeros((BM, BN), dtype=tl.float32)
    for first in range(0, K, BK):
        k = first + tl.arange(0, BK)
        if WHOLE:
            tap = first // XC
            channel = tl.expand_dims(tl.multiple_of(first % XC, BK) + tl.arange(0, BK), DOWN)
            inside = there
        else:
            tap = tl.expand_dims(k // XC, DOWN)
            channel = tl.expand_dims(k % XC, DOWN)
            inside = there & tl.expand_dims(k < K, DOWN)
        if TURNED:
            hh, vv = h - tap // KW, v - tap % KW
            inside = inside & (hh >= 0) & (vv >= 0)
            if SH > 1:
                inside = inside & (hh % SH == 0)
                hh = hh // SH
            if SW > 1:
                inside = inside & (vv % SW == 0)
                vv = vv // SW
            inside = inside & (hh < XH) & (vv < XW)
        else:
            hh, vv = h + tap // KW, v + tap % KW
            if PH > 0:
                inside = inside & (hh >= 0) & (hh < XH)
            if PW > 0:
                inside = inside & (vv >= 0) & (vv < XW)
        left = tl.load(x + (x_image + (hh * XW + vv) * PIXEL + channel * CHANNEL), mask=inside, other=0.0)
        if not LAST:
            left = tl.trans(left)
        right = tl.load(w + (k[:, None] + o[None, :] * K), mask=(k[:, None] < K) & (o[None, :] < YC), other=0.0)
        total = tl.dot(left, right, total, input_precision=PRECISION)

    if BIASED:
        total += tl.load(b + client * b_client + o, mask=o < YC, other=0.0).to(tl.float32)[None, :]
    place = tl.max_contiguous(tl.multiple_of(image * (YC * YH * YW) + pixel, TOGETHER), TOGETHER)
    y += client * rows * YC
    to = y + (o[:, None] * (YH * YW) + place[None, :])
    tl.store(to, tl.trans(total).to(y.dtype.element_ty), mask=(o[:, None] < YC) & (m[None, :] < rows))


@triton.jit
def weigh(
    x,
    g,
    v,
    rows,  # pixels of g of one client: images * GH * GW
    part,  # how many of them a program adds up
    clients,
    x_client,
    g_client,
    XC: tl.constexpr,
    XH: tl.constexpr,
    XW: tl.constexpr,
    GC: tl.constexpr,
    GH: tl.constexpr,
    GW: tl.constexpr,
    KH: tl.constexpr,
    KW: tl.constexpr,
    SH: tl.constexpr,
    SW: tl.constexpr,
    PH: tl.constexpr,
    PW: tl.constexpr,
    PRECISION: tl.constexpr,
    BM: tl.constexpr,  # of GC
    BN: tl.constexpr,  # of XC * KH * KW
    BK: tl.constexpr,  # of pixels
):
    """v is (part, client, GC, XC, KH, KW), in float32; x and g are (client, image, channel, height, width)."""
    K: tl.constexpr = XC * KH * KW
    TILES: tl.constexpr = (GC + BM - 1) // BM
    TOGETHER: tl.constexpr = 4 if (GH * GW) % 4 == 0 else 1

    client = tl.program_id(1).to(tl.int64)
    tile, begin = tl.program_id(0), tl.program_id(2) * part
    o = (tile % TILES) * BM + tl.arange(0, BM)
    k = (tile // TILES) * BN + tl.arange(0, BN)
    tap = k % (KH * KW)
    down, right = (tap // KW - PH)[:, None], (tap % KW - PW)[:, None]
    x_place = (k // (KH * KW) * (XH * XW))[:, None]
    x += client * x_client
    g += client * g_client

    total = tl.zeros((BM, BN), dtype=tl.float32)
    for first in range(begin, min(begin + part, rows), BK):
        m = first + tl.arange(0, BK)
        image, pixel = m // (GH * GW), m % (GH * GW)
        place = tl.max_contiguous(tl.multiple_of(image * (GC * GH * GW) + pixel, TOGETHER), TOGETHER)
        left = tl.load(
            g + (o[:, None] * (GH * GW) + place[None, :]), mask=(o[:, None] < GC) & (m[None, :] < rows), other=0.0
        )
        hh = ((pixel // GW) * SH)[None, :] + down
        vv = ((pixel % GW) * SW)[None, :] + right
        inside = (k[:, None] < K) & (m[None, :] < rows)
        if PH > 0:
            inside = inside & (hh >= 0) & (hh < XH)
        if PW > 0:
            inside = inside & (vv >= 0) & (vv < XW)
        moved = tl.load(x + ((image * (XC * XH * XW))[None, :] + x_place + hh * XW + vv), mask=inside, other=0.0)
        total = tl.dot(left, tl.trans(moved), total, input_precision=PRECISION)

    v += (tl.program_id(2) * clients + client) * (GC * K)
    tl.store(v + (o[:, None] * K + k[None, :]), total, mask=(o[:, None] < GC) & (k[None, :] < K))
