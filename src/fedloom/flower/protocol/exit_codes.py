"""Exit codes with which a node or a command that watches a run ends, for the units that start them."""

AGAIN = 75  # it could do nothing more, and is as good as new when it is started again
REMOVED = 77  # the link has taken its key back: starting it again does not help, and units do not
REFUSED = 2  # a person has to mend something
