"""Importing flwr 1.41 warns of deprecations in its own dependencies; what we do with it must not warn."""

import warnings

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    import flwr.clientapp
    import flwr.common.serde
    import flwr.serverapp.strategy  # noqa: F401
