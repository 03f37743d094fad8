"""A one-stage detector: in one pass every anchor of three grids says where an object is, whether, and of which class.

    image (3, height, width) -> backbone -> a head at each of strides 8, 16, 32
                             -> outputs (p, 5 + C): (tx, ty, tw, th, to, class logits) of every anchor

    box        x = cx + sx sigma(tx),  y = cy + sy sigma(ty),  w = wa exp(tw),  h = ha exp(th)
    score_c    = sigma(to) sigma(z_c)

(cx, cy) is the corner and (sx, sy) are the sides of the anchor's cell, (wa, ha) the sides of the anchor. Of every image

    U loss = a sum_{p responsible}  (2 - w h) 1/2 [(sigma(tx) - x*)^2 + (sigma(ty) - y*)^2 + (tw - w*)^2 + (th - h*)^2]
           +   sum_{p responsible}  BCE(to, 1) + sum_c BCE(z_c, [c is the box's class])
           + b sum_{p neither responsible nor ignored}  BCE(to, 0),          U = 32, so that usual learning rates do

The responsible anchors of a true box are in the cells, one a grid, that hold its centre: the one whose shape is most
like its own, and every other whose shape has IoU > `alike` with it. (The reference has the first alone, `alike` = 1,
and learns more slowly from few images.) An anchor claimed by several boxes serves the one it is most alike. An anchor
that is not responsible is ignored where what it predicts has IoU > `ignore` with a true box: it is no mistake to see an
object there. x*, y* are the box's place in the cell, w*, h* the logs of its sides over the anchor's.

What the reference has and this has not: Darknet-53's weights from ImageNet, BatchNorm (GroupNorm stands here, whose
output for an image does not depend on others), concatenation in the neck (a sum stands here), anchors fitted to data.

Reference: Redmon and Farhadi, YOLOv3: an incremental improvement, 2018. Luo et al., Real-world image datasets for
federated learning, 2019 (its use in a federation).
"""

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits as bce

from .anchors import anchors
from .boxes import LONGEST, area, centred, cornered, iou, taken
from .pyramid import STRIDES, Pyramid, anchor_head, by_anchor

UNIT = 32  # U; the reference has 1


class Yolo(nn.Module):
    """The detector for images of one shape.

    Arguments:
        shape: (channels, height, width), the latter two at least 64.
        n_outputs: C, the number of classes.
        width: channels of the backbone's first convolution; its last has eight times as many.
        coordinate: a, the weight of the places.
        no_object: b, the weight of anchors without an object.
        ignore: above this IoU with a true box an anchor that is not responsible is ignored.
        alike: above this IoU of shapes an anchor is responsible though another is more alike.

    >>> Yolo((3, 144, 176), 7)(torch.zeros(2, 3, 144, 176)).shape
    torch.Size([2, 1575, 12])
    """

    anchors: Tensor  # (p, 4)
    steps: Tensor  # (p, 2) sides of the anchors' cells

    def __init__(
        self,
        shape: tuple[int, ...],
        n_outputs: int,
        width: int = 16,
        coordinate: float = 2.0,
        no_object: float = 0.5,
        ignore: float = 0.5,
        alike: float = 0.3,
    ) -> None:
        super().__init__()
        channels, height, breadth = shape
        self.n_classes, self.coordinate, self.no_object = n_outputs, coordinate, no_object
        self.ignore, self.alike = ignore, alike
        self.backbone = Pyramid(channels, width)
        self.head1, self.head2, self.head3 = (anchor_head(self.backbone.channels, 5 + n_outputs, 4) for _ in STRIDES)
        boxes, steps = anchors(height, breadth, STRIDES)
        self.register_buffer("anchors", boxes, persistent=False)
        self.register_buffer("steps", steps, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Images (n, channels, height, width) in [0, 1] -> raw outputs (n, p, 5 + C)."""
        p3, p4, p5 = self.backbone(x)
        said = self.head1(p3), self.head2(p4), self.head3(p5)
        return torch.cat([by_anchor(one, 5 + self.n_classes) for one in said], 1)

    def boxes(self, outputs: Tensor) -> Tensor:
        """Decoded boxes (n, p, 4) in shares of the sides."""
        at, sides = centred(self.anchors)
        centre = at + self.steps * (outputs[..., :2].sigmoid() - 0.5)
        return cornered(centre, sides * outputs[..., 2:4].clamp(max=LONGEST).exp())

    def candidates(self, outputs: Tensor) -> Tensor:
        """Boxes and every class's score in [0, 1], (n, p, 4 + C)."""
        scores = outputs[..., 4:5].sigmoid() * outputs[..., 5:].sigmoid()
        return torch.cat([self.boxes(outputs).clamp(0, 1), scores], -1)

    def responsible(self, truth: Tensor, present: Tensor) -> Tensor:
        """How alike every anchor is to the true boxes (n, m, 4) it is responsible for, (n, p, m); 0: it is not."""
        at, sides = centred(self.anchors)  # (p, 2)
        centre, true_sides = centred(truth)  # (n, m, 2)
        # Cells are compared as whole numbers: by rounding, a centre on a line might be in none. One on the lower or
        # right edge of the image belongs to the last cell.
        cell = (centre.clamp(0, 1 - 1e-6)[..., None, :, :] / self.steps[:, None]).floor()  # (n, p, m, 2)
        holds = (cell == (at / self.steps).floor()[:, None]).all(-1) & present[..., None, :]
        zero = torch.zeros_like(sides)
        alike = iou(cornered(zero, sides), cornered(torch.zeros_like(true_sides), true_sides))
        alike = torch.where(holds, alike.clamp(min=1e-6), 0.0)
        first = alike.argmax(-2, keepdim=True)  # (n, 1, m)
        most = torch.arange(len(sides), device=first.device)[:, None] == first
        return torch.where(most | (alike > self.alike), alike, 0.0)

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The loss of every image, (n,).

        Arguments:
            outputs: (n, p, 5 + C), of `forward`.
            targets: (n, m, 5) rows (class, x0, y0, x1, y1) in shares of the sides; class -1: there is no box.
        """
        present, truth = targets[..., 0] >= 0, targets[..., 1:]
        claims = self.responsible(truth, present)
        alike, which = claims.max(-1)  # (n, p)
        positive = alike > 0
        own = taken(targets, which)  # (n, p, 5) the box an anchor serves
        seen = torch.where(present[..., None, :], iou(self.boxes(outputs.detach()), truth), 0.0).amax(-1)
        negative = ~positive & (seen <= self.ignore)

        place = self._place(outputs, own[..., 1:])
        objectness = outputs[..., 4]
        is_class = own[..., :1] == torch.arange(self.n_classes, device=own.device)
        kind = bce(outputs[..., 5:], is_class.to(outputs.dtype), reduction="none").sum(-1)
        found = self.coordinate * place + bce(objectness, torch.ones_like(objectness), reduction="none") + kind
        absent = bce(objectness, torch.zeros_like(objectness), reduction="none")
        each = torch.where(positive, found, 0.0) + self.no_object * torch.where(negative, absent, 0.0)
        return each.sum(-1) / UNIT

    def _place(self, outputs: Tensor, truth: Tensor) -> Tensor:
        """(2 - w h) times half the squared error of place and log sides, (n, p)."""
        at, sides = centred(self.anchors)
        centre, true_sides = centred(truth)
        inside = (centre - at) / self.steps + 0.5
        tiny = torch.finfo(sides.dtype).eps  # where there is no box, whose terms have weight zero
        grown = (true_sides.clamp(min=tiny) / sides).log()
        error = torch.cat([outputs[..., :2].sigmoid() - inside, outputs[..., 2:4] - grown], -1).square().sum(-1) / 2
        return (2 - area(truth)) * error
