"""``python -m weiss`` is the command line."""

from weiss.cli import main

if __name__ == "__main__":
    main()
