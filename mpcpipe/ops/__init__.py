"""PyTorch operators on mpcpipe's kernels. Importing this package registers them as `torch.ops.mpcpipe.*`."""

from mpcpipe.ops.functional import depthwise_conv2d, pointwise_conv2d
from mpcpipe.ops.registered import OPERATORS

__all__ = ["OPERATORS", "depthwise_conv2d", "pointwise_conv2d"]
