"""Convolutional models for images (channels, height, width), and for series (channels, time) such as a phone's sensors.

    image -> [convolution, (norm), pool, ReLU] x depth -> flatten -> [dense, ReLU] -> head -> n_outputs

The largest of some numbers commutes with ReLU, with the same bits and the same gradients; after the pool it has a
quarter of the numbers to go over. Layers are called `conv1`, `norm1`, `dense1`, ..., `head`, so that a method which
keeps some of them private can name them. Where a paper has BatchNorm there is GroupNorm: it has no running statistics,
which could neither be averaged like parameters nor be kept in a stack of models.

Reference: McMahan et al., Communication-efficient learning of deep networks from decentralized data,
AISTATS 2017 (mnist-cnn). Xie et al., Multi-center federated learning, 2020 (femnist-cnn). Liang et al.,
Think locally, act globally, 2020 (lg-lenet). Caldas et al., LEAF, 2018 (celeba-cnn). Simonyan and
Zisserman, Very deep convolutional networks, ICLR 2015 (vgg11). Wu and He, Group normalization, ECCV 2018.
"""

from collections import OrderedDict

from torch import nn

# VGG-11, configuration A: channels of each convolution, 0 where the image is halved.
VGG11 = (64, 0, 128, 0, 256, 256, 0, 512, 512, 0, 512, 512, 0)


def two_convolutions(shape: tuple[int, ...], n_outputs: int, n_dense: int | None) -> nn.Sequential:
    """Two 5 x 5 convolutions that keep the size, each halved by a pool, and one dense layer or none.

    On 1 x 28 x 28:

        n_dense    outputs    name           parameters
        512        10         mnist-cnn       1,663,370
        248        62         femnist-cnn       845,510
        None       10         fmnist-cnn         83,466
    """
    channels, height, width = shape
    flat = 64 * (height // 4) * (width // 4)
    dense = {} if n_dense is None else {"dense1": nn.Linear(flat, n_dense), "relu3": nn.ReLU()}
    return nn.Sequential(
        OrderedDict(
            conv1=nn.Conv2d(channels, 32, 5, padding=2),
            pool1=nn.MaxPool2d(2),
            relu1=nn.ReLU(),
            conv2=nn.Conv2d(32, 64, 5, padding=2),
            pool2=nn.MaxPool2d(2),
            relu2=nn.ReLU(),
            flatten=nn.Flatten(),
            **dense,
            head=nn.Linear(flat if n_dense is None else n_dense, n_outputs),
        )
    )


def lg_lenet(shape: tuple[int, ...], n_outputs: int) -> nn.Sequential:
    """LG-FedAvg's net for CIFAR-10: 64,102 parameters on 3 x 32 x 32 with 10 outputs.

    2,872 of them are in conv1 and conv2, the part that LG-FedAvg's published program shares.
    """
    channels, height, width = shape
    return nn.Sequential(
        OrderedDict(
            conv1=nn.Conv2d(channels, 6, 5),
            pool1=nn.MaxPool2d(2),
            relu1=nn.ReLU(),
            conv2=nn.Conv2d(6, 16, 5),
            pool2=nn.MaxPool2d(2),
            relu2=nn.ReLU(),
            flatten=nn.Flatten(),
            dense1=nn.Linear(16 * _lenet_side(height) * _lenet_side(width), 120),
            relu3=nn.ReLU(),
            dense2=nn.Linear(120, 100),
            relu4=nn.ReLU(),
            head=nn.Linear(100, n_outputs),
        )
    )


def celeba_cnn(shape: tuple[int, ...], n_outputs: int) -> nn.Sequential:
    """LEAF's net for CelebA: 31,202 parameters on 3 x 84 x 84 with 2 outputs, 29,154 on 3 x 32 x 32.

    GroupNorm in groups of 4 channels stands where LEAF has BatchNorm.
    """
    channels, height, width = shape
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    for i in range(1, 5):
        layers[f"conv{i}"] = nn.Conv2d(channels, 32, 3, padding=1)
        layers[f"norm{i}"] = nn.GroupNorm(8, 32)
        # LEAF's pool rounds an odd side up (84, 42, 21, 11, 6), where torch's own habit is down.
        layers[f"pool{i}"] = nn.MaxPool2d(2, ceil_mode=True)
        layers[f"relu{i}"] = nn.ReLU()
        channels, height, width = 32, -(-height // 2), -(-width // 2)
    layers["flatten"] = nn.Flatten()
    layers["head"] = nn.Linear(channels * height * width, n_outputs)
    return nn.Sequential(layers)


def vgg11(shape: tuple[int, ...], n_outputs: int) -> nn.Sequential:
    """VGG-11 with GroupNorm and one linear layer: 9,231,114 parameters on 3 x 32 x 32 with 10 outputs.

    The five pools leave one pixel of a 32 x 32 image; what a larger one leaves is averaged, so that the
    number of parameters does not depend on the size.
    """
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    n_channels, n_convolutions, n_pools = shape[0], 0, 0
    for width in VGG11:
        if width == 0:
            n_pools += 1
            layers[f"pool{n_pools}"] = nn.MaxPool2d(2)
            continue
        n_convolutions += 1
        layers[f"conv{n_convolutions}"] = nn.Conv2d(n_channels, width, 3, padding=1)
        layers[f"norm{n_convolutions}"] = nn.GroupNorm(width // 16, width)
        layers[f"relu{n_convolutions}"] = nn.ReLU()
        n_channels = width
    layers["mean"] = nn.AdaptiveAvgPool2d(1)
    layers["flatten"] = nn.Flatten()
    layers["head"] = nn.Linear(n_channels, n_outputs)
    return nn.Sequential(layers)


def har_cnn(shape: tuple[int, ...], n_outputs: int) -> nn.Sequential:
    """Three 1-D convolutions and a mean over time: 33,318 parameters on 6 x 128 with 6 outputs.

    The mean makes the number of parameters independent of the length.
    """
    channels, _ = shape
    return nn.Sequential(
        OrderedDict(
            conv1=nn.Conv1d(channels, 32, 9, padding=4),
            norm1=nn.GroupNorm(4, 32),
            pool1=nn.MaxPool1d(2),
            relu1=nn.ReLU(),
            conv2=nn.Conv1d(32, 64, 5, padding=2),
            norm2=nn.GroupNorm(4, 64),
            pool2=nn.MaxPool1d(2),
            relu2=nn.ReLU(),
            conv3=nn.Conv1d(64, 64, 5, padding=2),
            norm3=nn.GroupNorm(4, 64),
            relu3=nn.ReLU(),
            mean=nn.AdaptiveAvgPool1d(1),
            flatten=nn.Flatten(),
            head=nn.Linear(64, n_outputs),
        )
    )


def _lenet_side(side: int) -> int:
    """What two 5 x 5 convolutions without padding, each halved, leave of a side: 5 of 32."""
    return ((side - 4) // 2 - 4) // 2
