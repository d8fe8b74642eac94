"""Lets fluke import a torchvision built for CUDA beside a torch for CPUs, which then has none of its own operators.

torchvision asks at import that these two are known; nothing here calls them.
"""

import torch

for name in ("nms", "qnms"):
    torch.library.define(f"torchvision::{name}", "(Tensor boxes, Tensor scores, float iou_threshold) -> Tensor")
