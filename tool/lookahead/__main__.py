"""`python -m lookahead`: what the launcher runs inside its virtual environment."""

from .cli import main

if __name__ == "__main__":
    main()
