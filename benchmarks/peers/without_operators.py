"""Stand-ins for torchvision's operators, so that fluke can import a torchvision for CUDA with a torch for CPUs.

torchvision checks at import that these two exist; nothing here calls them.
"""

import torch

for name in ("nms", "qnms"):
    torch.library.define(f"torchvision::{name}", "(Tensor boxes, Tensor scores, float iou_threshold) -> Tensor")
