"""Whether code runs again in a backward pass, as `torch.utils.checkpoint` lets it."""

import torch


def recomputing() -> bool:
    """Whether this thread is inside a backward pass."""
    return bool(torch._C._current_graph_task_id() != -1)
