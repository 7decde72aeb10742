"""What a process imports that others are forked from: torch loads half of itself at the first use of a `meta` tensor,
which takes seconds, and every dealer would pay for it again.
"""

import torch

_BLANK = torch.empty((2, 3), dtype=torch.int64, device="meta")
torch.cat([_BLANK, _BLANK + 1], dim=1).sum(dim=1)
