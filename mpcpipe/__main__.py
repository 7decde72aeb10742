"""`python -m mpcpipe`, the same as `mpcpipe`."""

from mpcpipe.cli.main import main

if __name__ == "__main__":
    main()
