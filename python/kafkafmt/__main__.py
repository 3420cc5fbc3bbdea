"""`python -m kafkafmt`: the command line, where no script is on the PATH."""

from kafkafmt.cli import main

if __name__ == "__main__":
    main(prog_name="kafkafmt")
