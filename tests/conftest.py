"""What all tests share: one thread, repeatable properties, interpreted kernels, the flag that stores golden numbers."""

import os

import pytest
import torch
from hypothesis import settings

torch.set_num_threads(1)  # tiny matrices; a second thread only waits
settings.register_profile("fedloom", deadline=None, derandomize=True, database=None)
settings.load_profile("fedloom")
if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # Triton reads it when it is imported: kernels then run on a CPU


def pytest_addoption(parser: pytest.Parser) -> None:
    """`pytest tests/golden --store-golden` writes new golden numbers instead of comparing."""
    parser.addoption("--store-golden", action="store_true", help="write tests/golden/*.json anew")
