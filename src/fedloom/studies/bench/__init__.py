"""How fast is a round on this machine? Named workloads, measured and set against what the device can do."""

from fedloom.studies.bench.measure import Measured, measure
from fedloom.studies.bench.workloads import WORKLOADS, Workload

__all__ = ["WORKLOADS", "Measured", "Workload", "measure"]
