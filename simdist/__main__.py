"""`python -m simdist`: the `simdist` command."""

from simdist.cli import entry

if __name__ == "__main__":
    entry()
