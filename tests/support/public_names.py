"""What `toposcope` and its packages export, one name a line.

After a change that is meant: ``python tests/support/public_names.py > tests/cli/public_names.txt``.
"""

import pkgutil
import sys
from importlib import import_module

import toposcope


def public_names() -> list[str]:
    """Every name in ``__all__`` of `toposcope` and of the packages directly below it, sorted."""
    packages = ["toposcope", *(f"toposcope.{found.name}" for found in pkgutil.iter_modules(toposcope.__path__))]
    return sorted(
        f"{package}.{name}" for package in packages for name in getattr(import_module(package), "__all__", ())
    )


if __name__ == "__main__":
    sys.stdout.write("\n".join(public_names()) + "\n")
