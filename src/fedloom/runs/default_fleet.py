"""The fleet of methods that reckon with devices, where none is chosen."""

from __future__ import annotations

from fedloom.method import Method

FLEET = "table4"  # unequal links and processors, and nobody is ever away: choices alone make the difference


def devices_left_open(method: Method, fleet: str) -> dict[str, str]:
    """The fleet of a method that needs devices; nothing if there is one, or if it needs none."""
    return {"fleet": FLEET} if method.needs_devices and fleet == "none" else {}


def fleet_notes(method: Method, fleet: str) -> list[str]:
    """What should be known of the default fleet before a run begins."""
    if not method.needs_devices or fleet != FLEET:
        return []
    return [
        f"clients have the devices of fleet '{FLEET}', the default of methods that reckon with devices (FedDD's "
        "simulation: 1 to 5 kbit/s up, 40 to 200 down); name yours, as in --fleet my.csv, or one of `fedloom list "
        "fleets`."
    ]
