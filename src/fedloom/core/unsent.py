"""Numbers that were not sent or did not arrive are replaced by the model's own."""

import torch
from torch import Tensor

from fedloom.accel.machine import own_kernels
from fedloom.core.types import Reply, State, column


def read_unsent_as_unchanged(model: Tensor, reply: Reply, whole: bool = False, read: bool = False) -> Reply:
    """Replace what was not sent or did not arrive: numbers by the model's own, extras and reports by zeros.

    `whole`: everything is known to have arrived, which need not be checked; on an accelerator a check would wait for
    the device. `read`: replies that arrived were processed before. With Triton kernels `reply.params` changes in place.
    """
    arrived, mask = reply.arrived, reply.mask
    whole = whole or (arrived.device.type == "cpu" and bool(arrived.all()))
    if whole and mask is None:
        return reply
    if _in_place(model, reply):
        from fedloom.accel.unsent_kernel import put_back

        reply = reply._replace(mask=put_back(model, reply.params, mask, None if whole else arrived, read))
    elif whole:
        assert mask is not None
        reply = reply._replace(params=torch.where(mask, reply.params, model))
    else:
        sent = column(arrived, reply.params) if mask is None else mask & column(arrived, mask)
        reply = reply._replace(params=torch.where(sent, reply.params, model), mask=None if mask is None else sent)
    if whole:
        return reply
    lost = ~arrived
    return reply._replace(extras=_without(lost, reply.extras), report=_without(lost, reply.report))


def _in_place(model: Tensor, reply: Reply) -> bool:
    """Whether a kernel may write into `reply.params`.

    The rows that engines return are fresh, and client states were copied from them before. Only extras that a rule
    sends could share their memory.
    """
    params, mask = reply.params, reply.mask
    if not own_kernels(params.device.type) or params.numel() == 0:
        return False
    kinds = model.dtype == params.dtype == torch.float32 and (mask is None or mask.dtype == torch.bool)
    dense = all(t.is_contiguous() for t in (model, params, reply.arrived)) and (mask is None or mask.stride(1) == 1)
    place = params.untyped_storage().data_ptr()
    return kinds and dense and all(v.untyped_storage().data_ptr() != place for v in reply.extras.values())


def _without(lost: Tensor, values: State) -> State:
    """The values [C, ...] with zeros where nothing arrived; never in place, since a rule may send shared memory.

    Matrices take one pass with `where`; `masked_fill` copies first.
    """
    return {
        name: torch.where(column(lost, v), 0, v)
        if v.dim() > 1 and v.is_floating_point()
        else v.masked_fill(column(lost, v), 0)
        for name, v in values.items()
    }
