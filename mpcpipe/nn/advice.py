"""What to use instead of a layer that cannot be trained securely, or not yet."""

from __future__ import annotations

SUPPORTED = (
    "Linear, Conv2d, ReLU, Flatten, AvgPool2d, MaxPool2d, AdaptiveAvgPool2d, BatchNorm1d, BatchNorm2d, Dropout, "
    "Identity, Sequential, and the addition of two branches"
)

# Names of modules and functions in lower case, without underscores, and what to do about them.
GROUPS: tuple[tuple[str, str], ...] = (
    (
        "gelu silu sigmoid tanh leakyrelu elu celu selu prelu rrelu mish hardswish hardsigmoid hardtanh relu6 softplus "
        "softsign tanhshrink logsigmoid hardshrink softshrink threshold glu exp log sqrt rsqrt pow abs clamp",
        "use ReLU, which is exact; this would be approximated, slowly",
    ),
    (
        "layernorm groupnorm instancenorm1d instancenorm2d instancenorm3d instancenorm rmsnorm normalize "
        "localresponsenorm crossmaplrn2d syncbatchnorm",
        "use BatchNorm2d (BatchNorm1d after Linear), whose statistics are shared by the whole batch, or none",
    ),
    (
        "softmax logsoftmax softmax2d softmin",
        "leave it out at the end: the model ends in plain scores, and the loss of the job (cross_entropy) contains it",
    ),
    (
        "crossentropyloss crossentropy nllloss mseloss bceloss bcewithlogitsloss l1loss",
        "leave it out: the job names the loss",
    ),
    (
        "lstm gru rnn lstmcell grucell rnncell multiheadattention scaleddotproductattention transformer "
        "transformerencoder transformerencoderlayer transformerdecoder transformerdecoderlayer",
        "sequence models are not supported; use Conv2d over the sequence, with a height of 1",
    ),
    ("embedding embeddingbag", "use one-hot features and Linear, which is the same map"),
    (
        "conv1d avgpool1d maxpool1d adaptiveavgpool1d conv3d avgpool3d maxpool3d batchnorm3d",
        "use the 2d form; a sequence is an image with a height of 1",
    ),
    (
        "convtranspose1d convtranspose2d convtranspose3d upsample interpolate pixelshuffle maxunpool2d",
        "layers that enlarge an image are not supported; use Conv2d and pooling only",
    ),
    ("adaptivemaxpool1d adaptivemaxpool2d", "use AdaptiveAvgPool2d or MaxPool2d"),
    ("lppool2d fractionalmaxpool2d", "use AvgPool2d or MaxPool2d"),
    ("dropout1d dropout2d dropout3d alphadropout featurealphadropout featuredropout", "use Dropout"),
    ("mul imul matmul mm bmm einsum bilinear", "products of activations are not supported; use an addition"),
    (
        "sub isub neg truediv div",
        "only additions of two branches are supported; move signs and factors into the weights of the layer before",
    ),
    ("linear conv2d batchnorm", "use its module form (torch.nn), so that its weights have a name"),
    ("cat concat stack chunk split", "joining by concatenation is not supported; use an addition"),
    ("mean sum amax max", "use AdaptiveAvgPool2d(1) and Flatten for a mean over the image"),
    (
        "permute transpose t unflatten squeeze unsqueeze getitem expand repeat",
        "only Flatten, to (batch, features), may change the shape",
    ),
    ("pad zeropad2d reflectionpad2d replicationpad2d constantpad2d", "use the padding of Conv2d"),
    (
        "lazylinear lazyconv2d lazybatchnorm1d lazybatchnorm2d",
        "run the model once in the clear, so that its sizes are known",
    ),
)


def advice(kind: str) -> str:
    """What to use instead of the module or function called `kind`."""
    key = kind.lower().replace("_", "")
    return next((what for names, what in GROUPS if key in names.split()), f"supported are {SUPPORTED}")
