"""What the plain install leaves out: which extra brings a package, and the one line that says so."""

from importlib import import_module
from importlib.util import find_spec

from toposcope.elsewhere import install
from toposcope.errors import ToposcopeError, message_of

EXTRAS = {
    "torch": ("PyTorch", "torch"),
    "tokenizers": ("tokenizers", "torch"),
    "transformers": ("transformers", "hf"),
    "datasets": ("datasets", "hf"),
    "ray": ("Ray", "ray"),
    "tensorboard": ("TensorBoard", "tensorboard"),
    "mcp": ("the MCP SDK", "mcp"),
    "optuna": ("Optuna", "optuna"),
}
"""Of each package that is imported: its name, and the extra that installs it."""


def is_installed(module: str) -> bool:
    """Return whether a package can be found; it is not imported."""
    return find_spec(module) is not None


def require(module: str, what: str) -> None:
    """Import a module of an extra, or raise a `ToposcopeError` that says what needs it, and how to install it."""
    try:
        import_module(module)
    except ImportError as error:
        raise ToposcopeError(f"{what}: {missing(error, module)}") from error


def missing(error: ImportError, module: str = "") -> str:
    """Return what an import lacks and how to install it; nothing where the module belongs to no extra."""
    absent = (error.name or "").partition(".")[0]
    package = module.partition(".")[0] or absent
    if package not in EXTRAS:
        return ""
    is_absent = isinstance(error, ModuleNotFoundError) and absent == package
    reason = "is not installed" if is_absent else f"does not load ({message_of(error)})"
    name, extra = EXTRAS[package]
    return f"needs {name}, which {reason}; {install(extra=extra)}"
