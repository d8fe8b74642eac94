"""`python -m fedloom` is the command `fedloom`."""

from fedloom.cli.main import main

if __name__ == "__main__":
    main()
