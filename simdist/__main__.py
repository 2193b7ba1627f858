"""`python -m simdist`: the `simdist` command."""

from simdist.cli import main

if __name__ == "__main__":
    main(prog_name="simdist")
