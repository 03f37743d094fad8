"""A two-stage detector: the first stage proposes regions, the second says of each what is in it.

    image -> backbone -> p3, p4, p5
    first stage    on every cell of the three grids and each of its anchors a: object logit o, offsets t (4)
    proposals      decode(t, a), clipped to the image: of the best, those that stay after NMS
    second stage   RoIAlign of p3 at every proposal q -> dense -> class logits z (C + 1, the last is background)
                   and offsets v (4), one box for all classes

    loss     =  1/N [ sum_{a positive} BCE(o_a, 1) + SL(t_a - encode(b_a, a), 3) + w sum_{a negative} BCE(o_a, 0) ]
              + 1/R [ sum_{q positive} CE(z_q, c_q) + SL(v_q - encode(b_q, q) / S, 1) + u sum_{q negative} CE(z_q, C) ]
    SL(d, s) =  sum of  (s d)^2 / 2  where |d| < 1 / s^2,  |d| - 1 / (2 s^2)  elsewhere
    w        =  max(N - positive, N / 2) / negative
    u        =  max(R - positive, 3 R / 4) / negative

An anchor is positive if its IoU with a true box b_a is at least `positive`, or the highest that this box has with any
anchor; negative if it is below .3 with all; it is left out otherwise. A proposal is positive, with the class c_q of the
true box b_q with which its IoU is highest, if that is at least .5, and negative otherwise: background. S = (.1, .1, .2,
.2). In every step the reference draws N anchors, of which at most half are positive, and R proposals, at most a
quarter; w and u are what the terms of the negatives are then expected to weigh, so that the loss needs no draw.

True boxes are not put among the proposals, as the reference does in training: the forward pass does not know them. The
second stage begins to learn places as soon as the first proposes something useful. Gradients do not flow through the
places of proposals. Nothing here depends on values in Python, so that a stack of models runs in vmap.

Reference: Ren et al., Faster R-CNN: towards real-time object detection with region proposal networks, 2015. He et al.,
Mask R-CNN, ICCV 2017 (RoIAlign). Luo et al., Real-world image datasets for federated learning, 2019 (its use in a
federation, with sigma 3 and 1).
"""

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits as bce, grid_sample, leaky_relu

from .anchors import anchors, cells
from .boxes import decode, encode, iou, nms, taken
from .pyramid import SLOPE, STRIDES, Convolution, Pyramid, anchor_head, by_anchor

NEGATIVE, OBJECT = 0.3, 0.5  # IoU below which an anchor is negative, from which on a proposal is positive
OVERLAP = 0.7  # IoU above which the worse of two proposals goes
SCALES = (0.1, 0.1, 0.2, 0.2)  # S: what the second stage's offsets are measured in


def smooth_l1(difference: Tensor, sigma: float) -> Tensor:
    """SL, (..., 4) -> (...)."""
    size = difference.abs()
    near = (sigma * difference).square() / 2
    return torch.where(size < sigma**-2, near, size - sigma**-2 / 2).sum(-1)


def as_if_drawn(found: Tensor, positive: Tensor, absent: Tensor, negative: Tensor, n: int, most: float) -> Tensor:
    """The expected mean of n terms, at most a share `most` of them positive, the others drawn from all negatives.

    Terms are (images, rows), beside which of them are positive and which negative. Gives (images,).
    """
    n_positive, n_negative = (which.to(found.dtype).sum(-1) for which in (positive, negative))
    weight = (n - n_positive).clamp(min=n * (1 - most)) / n_negative.clamp(min=1)
    return (torch.where(positive, found, 0.0).sum(-1) + weight * torch.where(negative, absent, 0.0).sum(-1)) / n


def roi_align(features: Tensor, boxes: Tensor, extent: Tensor, bins: int, samples: int = 2) -> Tensor:
    """Features inside boxes: the mean over samples x samples points of each of bins x bins parts.

    Values between the middles of cells are interpolated in both directions; beyond the last middle they stay the same.

    Arguments:
        features: (n, channels, rows, columns).
        boxes: (n, r, 4) in shares of the image's sides.
        extent: (2,) the sides of the grid of cells, in shares of the image's: a little over 1 where cells reach over
            the edge.
        bins: parts of a side.
        samples: points of a part's side.

    Gives (n, r, channels, bins, bins).
    """
    n, channels = features.shape[:2]
    r, points = boxes.shape[1], bins * samples
    share = (torch.arange(points, device=boxes.device) + 0.5).to(boxes.dtype) / points
    at = boxes[..., None, :2] + share[:, None] * (boxes[..., None, 2:] - boxes[..., None, :2])  # (n, r, points, 2)
    at = 2 * at / extent - 1  # from -1 to 1 over the grid, as grid_sample wants it
    x = at[:, :, None, :, 0].expand(n, r, points, points)
    y = at[:, :, :, None, 1].expand(n, r, points, points)
    grid = torch.stack([x, y], -1).reshape(n, r * points, points, 2)
    values = grid_sample(features, grid, mode="bilinear", padding_mode="border", align_corners=False)
    parts = values.reshape(n, channels, r, bins, samples, bins, samples).mean((4, 6))
    return parts.transpose(1, 2)


class FasterRCNN(nn.Module):
    """The detector for images of one shape.

    Arguments:
        shape: (channels, height, width), the latter two at least 64.
        n_outputs: C, the number of classes.
        width: channels of the backbone's first convolution; its last has eight times as many.
        looked_at: proposals before NMS.
        proposed: proposals after it, at most.
        positive: the IoU from which on an anchor is positive; .7 in the reference, whose objects are larger.
        drawn: N and R.
        bins: parts of a region's side.

    >>> FasterRCNN((3, 144, 176), 7)(torch.zeros(2, 3, 144, 176)).shape
    torch.Size([2, 1623, 17])
    """

    anchors: Tensor  # (a, 4)
    extent: Tensor  # (2,) sides of the finest grid, in shares of the image's
    scales: Tensor  # (4,) S

    def __init__(
        self,
        shape: tuple[int, ...],
        n_outputs: int,
        width: int = 16,
        looked_at: int = 128,
        proposed: int = 48,
        positive: float = 0.5,
        drawn: tuple[int, int] = (32, 16),
        bins: int = 5,
    ) -> None:
        super().__init__()
        channels, height, breadth = shape
        self.n_classes, self.looked_at, self.proposed = n_outputs, looked_at, proposed
        self.positive, self.drawn, self.bins = positive, drawn, bins
        self.backbone = Pyramid(channels, width)
        inner, hidden = self.backbone.channels, 8 * width
        self.proposal = Convolution(inner, inner)
        self.proposal_head = anchor_head(inner, 5, 0)
        self.dense1 = nn.Linear(inner * bins**2, hidden)
        self.dense2 = nn.Linear(hidden, hidden)
        self.head1 = nn.Linear(hidden, n_outputs + 1)
        self.head2 = nn.Linear(hidden, 4)
        self._begin()
        boxes, _ = anchors(height, breadth, STRIDES)
        rows, columns = cells(height, breadth, STRIDES[0])
        extent = torch.tensor([columns / breadth, rows / height]) * STRIDES[0]
        self.register_buffer("anchors", boxes, persistent=False)
        self.register_buffer("extent", extent, persistent=False)
        self.register_buffer("scales", torch.tensor(SCALES), persistent=False)

    def _begin(self) -> None:
        """First parameters of the second stage: it says little of classes, and less of places."""
        for layer in (self.dense1, self.dense2):
            nn.init.kaiming_normal_(layer.weight, a=SLOPE)
        for head, deviation in ((self.head1, 0.01), (self.head2, 0.001)):
            nn.init.normal_(head.weight, std=deviation)
        for layer in (self.dense1, self.dense2, self.head1, self.head2):
            nn.init.zeros_(layer.bias)

    def forward(self, x: Tensor) -> Tensor:
        """Images (n, channels, height, width) in [0, 1] -> raw outputs (n, a + r, 10 + C).

        A row of one of the a anchors: (o, t (4), zeros); of a proposal: (q (4), 1 or, if NMS left fewer, 0, v (4), z).
        """
        maps: tuple[Tensor, Tensor, Tensor] = self.backbone(x)
        first = torch.cat([by_anchor(self.proposal_head(self.proposal(one)), 5) for one in maps], 1)
        proposals, present = self.proposals(first.detach())
        inside = roi_align(maps[0], proposals, self.extent, self.bins).flatten(2)
        hidden = leaky_relu(self.dense2(leaky_relu(self.dense1(inside), SLOPE)), SLOPE)
        second = torch.cat([proposals, present[..., None], self.head2(hidden), self.head1(hidden)], -1)
        padding = torch.zeros_like(second[:, :1, 5:]).expand(-1, first.shape[1], -1)
        return torch.cat([torch.cat([first, padding], -1), second], 1)

    def proposals(self, first: Tensor) -> tuple[Tensor, Tensor]:
        """Regions (n, r, 4), the best first, and whether they are there (n, r), from the first stage (n, a, 5)."""
        score, best = first[..., 0].topk(self.looked_at, dim=-1)
        boxes = decode(taken(first[..., 1:], best), self.anchors[best]).clamp(0, 1)
        stays = nms(boxes, score, OVERLAP)
        order = (~stays).sort(dim=-1, stable=True).indices[..., : self.proposed]
        return taken(boxes, order), stays.gather(-1, order).to(boxes.dtype)

    def candidates(self, outputs: Tensor) -> Tensor:
        """Boxes and every class's score in [0, 1], (n, r, 4 + C)."""
        proposals, present, offsets, logits = self._second(outputs)
        scores = logits.softmax(-1)[..., :-1] * present[..., None]
        return torch.cat([decode(offsets * self.scales, proposals).clamp(0, 1), scores], -1)

    def _second(self, outputs: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Proposals (n, r, 4), whether they are there (n, r), offsets (n, r, 4) and class logits (n, r, C + 1)."""
        rows = outputs[..., len(self.anchors) :, :]
        return rows[..., :4], rows[..., 4], rows[..., 5:9], rows[..., 9:]

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The loss of every image, (n,).

        Arguments:
            outputs: (n, a + r, 10 + C), of `forward`.
            targets: (n, m, 5) rows (class, x0, y0, x1, y1) in shares of the sides; class -1: there is no box.
        """
        return self._first_loss(outputs[..., : len(self.anchors), :5], targets) + self._second_loss(outputs, targets)

    def _first_loss(self, first: Tensor, targets: Tensor) -> Tensor:
        truth, present = targets[..., 1:], targets[..., 0] >= 0
        overlap = torch.where(present[..., None, :], iou(self.anchors, truth), 0.0)  # (n, a, m)
        highest, which = overlap.max(-1)
        # An anchor as near to a true box as any is: none may be left without.
        nearest = ((overlap == overlap.amax(-2, keepdim=True)) & (overlap > 0)).any(-1)
        positive, negative = nearest | (highest >= self.positive), ~nearest & (highest < NEGATIVE)
        aim = encode(taken(truth, which), self.anchors)
        logit = first[..., 0]
        found = bce(logit, torch.ones_like(logit), reduction="none") + smooth_l1(first[..., 1:] - aim, 3.0)
        absent = bce(logit, torch.zeros_like(logit), reduction="none")
        return as_if_drawn(found, positive, absent, negative, self.drawn[0], 1 / 2)

    def _second_loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        proposals, there, offsets, logits = self._second(outputs)
        proposals = proposals.detach()
        truth, present = targets[..., 1:], targets[..., 0] >= 0
        overlap = torch.where(present[..., None, :], iou(proposals, truth), 0.0)
        highest, which = overlap.max(-1)
        positive, negative = (there > 0) & (highest >= OBJECT), (there > 0) & (highest < OBJECT)
        own = taken(targets, which)
        kind = torch.where(positive, own[..., 0], float(self.n_classes)).long()
        wrong = -logits.log_softmax(-1).gather(-1, kind[..., None]).squeeze(-1)
        aim = encode(own[..., 1:], proposals) / self.scales
        found = wrong + smooth_l1(offsets - aim, 1.0)
        return as_if_drawn(found, positive, wrong, negative, self.drawn[1], 1 / 4)
