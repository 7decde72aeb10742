"""A secret number or tensor as a value to compute with: what is local is an operator, what needs the others an await.

a + b   a - b   -a   a + 1.5   a * 3   a.sum()      local
await (a * b)   await (a @ b)   await (a * 0.5)     one exchange of messages or more
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, overload

import torch

from mpcpipe.nn.fixed import Fixed, added, summed
from mpcpipe.protocol.rounds import Operation
from mpcpipe.ring.bilinear import Shape

if TYPE_CHECKING:
    from mpcpipe.programs.local import Party

Public = float | torch.Tensor
"""What all parties know: a number or a tensor, the same at each."""


@dataclass(frozen=True, eq=False)
class Secret:
    """This party's shares of a tensor that nobody sees. Shapes broadcast as torch's do.

    All parties must write the same program. repr shows the shape, never a value.
    """

    value: Fixed
    party: Party

    @property
    def shape(self) -> Shape:
        """Shape of the secret tensor: public."""
        return self.value.shape

    @property
    def T(self) -> Secret:
        """The transpose of a matrix. Local."""
        if len(self.shape) != 2:
            raise ValueError(f"the transpose is that of a matrix, not of a tensor of shape {self.shape}")
        return self._with(Fixed(self.value.data.transpose(1, 2).contiguous(), self.value.fraction_bits))

    def __repr__(self) -> str:
        return f"Secret(shape={self.shape}, fraction_bits={self.value.fraction_bits}, party={self.party.number})"

    def __bool__(self) -> bool:
        raise TypeError("a secret is neither true nor false to this party: programs cannot branch on it")

    def reshape(self, *shape: int) -> Secret:
        """The same numbers in another shape. Local."""
        return self._with(self.value.reshape(*shape))

    def sum(self, dim: int | None = None) -> Secret:
        """The sum of all elements, or over one dimension. Local."""
        dims = range(len(self.shape)) if dim is None else [dim % len(self.shape)]
        return self._with(summed(self.value, tuple(dims)) if self.shape else self.value)

    # local

    def __neg__(self) -> Secret:
        return self._with(Fixed(self.party.protocol.ring.wrap(-self.value.data), self.value.fraction_bits))

    def __add__(self, other: Secret | Public) -> Secret:
        first, second = aligned(self, self._secret(other))
        return self._with(added(self.party.protocol, first, second))

    def __sub__(self, other: Secret | Public) -> Secret:
        return self + (-other)

    __radd__ = __add__

    def __rsub__(self, other: Public) -> Secret:
        return -self + other

    # with the others

    @overload
    def __mul__(self, other: int) -> Secret: ...

    @overload
    def __mul__(self, other: Secret | Public) -> Operation[Secret]: ...

    def __mul__(self, other: Secret | Public) -> Secret | Operation[Secret]:
        """By a whole number: local. By anything else: await it (3 rounds under replicated3)."""
        if isinstance(other, int):
            return self._with(Fixed(self.party.protocol.ring.wrap(self.value.data * other), self.value.fraction_bits))
        return self.party.mul(self, self._secret(other))

    @overload
    def __rmul__(self, other: int) -> Secret: ...

    @overload
    def __rmul__(self, other: Public) -> Operation[Secret]: ...

    def __rmul__(self, other: Public) -> Secret | Operation[Secret]:
        return self * other

    def __matmul__(self, other: Secret | torch.Tensor) -> Operation[Secret]:
        """The matrix product: await it (3 rounds under replicated3)."""
        return self.party.matmul(self, self._secret(other))

    def __rmatmul__(self, other: torch.Tensor) -> Operation[Secret]:
        return self.party.matmul(self._secret(other), self)

    def _with(self, value: Fixed) -> Secret:
        return Secret(value, self.party)

    def _secret(self, other: Any) -> Secret:
        if isinstance(other, Secret):
            return other
        if isinstance(other, int | float | torch.Tensor):
            return self.party.public(other)
        raise TypeError(f"a secret goes with secrets, numbers and torch tensors, not with a {type(other).__name__}")


def aligned(*secrets: Secret) -> Sequence[Fixed]:
    """Values whose tensors have the same number of dimensions, so that shares broadcast as the secret tensors do."""
    shapes = [secret.shape for secret in secrets]
    try:
        torch.broadcast_shapes(*shapes)  # type: ignore[no-untyped-call]
    except RuntimeError:
        raise ValueError(f"shapes {' and '.join(map(str, shapes))} do not go together") from None
    most = max(map(len, shapes))
    return [secret.value.reshape(*(1,) * (most - len(secret.shape)), *secret.shape) for secret in secrets]
