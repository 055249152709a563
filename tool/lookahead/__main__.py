"""`python -m lookahead`, inside an environment that has what the tool needs."""

from .cli import main

if __name__ == "__main__":
    main()
