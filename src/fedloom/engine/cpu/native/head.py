"""A goal's loss as the C code reads it."""

from __future__ import annotations

import ctypes

import torch
import torch.nn.functional as F
from torch import Tensor

from fedloom.core.goal import Goal, Head, Transform
from fedloom.data.augment import shares

KINDS = ("softmax", "squared", "binary")  # in the order of native/head.h


class HeadFacts(ctypes.Structure):
    """`Head` of native/head.h."""

    _fields_ = [
        ("kind", ctypes.c_int64),
        ("width", ctypes.c_int64),
        ("targets", ctypes.c_void_p),
        ("weights", ctypes.c_void_p),
        ("smoothing", ctypes.c_double),
    ]


def head_facts(head: Head, y: Tensor, outputs: int) -> HeadFacts | None:
    """The loss and targets [n, ...] for a network with so many outputs; None: the targets do not suit it."""
    weights = None if head.weights is None else torch.tensor(head.weights, dtype=torch.float32)
    width, wanted = y[:1].numel(), 1 if head.kind == "softmax" else outputs
    if y.dtype != target_dtype(head) or not y.is_contiguous() or width != wanted:
        return None
    if weights is not None and head.kind == "softmax":
        if len(weights) > outputs:
            return None
        weights = F.pad(weights, (0, outputs - len(weights)))  # outputs that are no classes
    address = None if weights is None else weights.data_ptr()
    facts = HeadFacts(KINDS.index(head.kind), width, y.data_ptr(), address, head.smoothing)
    facts.kept = y, weights  # as long as the addresses are
    return facts


def target_dtype(head: Head) -> torch.dtype:
    """The type of the targets that a loss takes."""
    return torch.float32 if head.kind == "squared" else torch.int64


def why_not_goal(goal: Goal, transform: Transform | None) -> str:
    """Why the C code cannot count examples as a goal does; empty if it can."""
    head = goal.head
    if head is None:
        return "the goal's loss is not one that it knows"
    if (goal.weigh is not None) != (head.kind == "softmax" and head.weights is not None):
        return "the goal weighs examples otherwise than by their classes"
    if shares(transform):
        return "the transform turns classes into shares of them, and it takes one class of each example"
    return ""
