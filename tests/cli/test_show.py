"""What is said of a finished run."""

from __future__ import annotations

from fedloom.cli.show import pace_of


def test_clients_in_flight_are_weighed_by_time_and_staleness_by_replies():
    rows = [
        {"virtual_seconds": 9.0, "in_flight": 4.0, "arrived": 3, "staleness_mean": 1.0, "staleness_max": 2.0},
        {"virtual_seconds": 1.0, "in_flight": 14.0, "arrived": 1, "staleness_mean": 5.0, "staleness_max": 5.0},
        {"virtual_seconds": 0.0, "in_flight": 14.0, "arrived": 0, "staleness_mean": None, "staleness_max": None},
    ]
    assert pace_of(rows) == "5.0 clients, 2.0 steps (at most 5)"
    assert pace_of(rows[2:]) == "0.0 clients, no reply counted"
