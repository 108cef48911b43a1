"""`python -m ckpt`: the same as the command."""

from ckpt.cli.app import main

if __name__ == "__main__":
    main()
