"""Speed of rounds on this machine: named workloads, measured and compared with the device's limits."""
