"""`python -m polycentric` is the command `polycentric`."""

from .cli import main

if __name__ == "__main__":
    main()
