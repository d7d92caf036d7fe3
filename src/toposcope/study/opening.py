"""Opens the series of a study before anything of it is written."""

from pathlib import Path

from toposcope.checkpoints import Access, Series
from toposcope.errors import ToposcopeError
from toposcope.study.declaration import Declaration


def open_series(declaration: Declaration, directory: Path, access: Access) -> dict[str, Series]:
    """Open the series of a new study.

    Parameters
    ----------
    declaration : Declaration
    directory : Path
        The study's; nothing is opened of one that was begun, whose rows stand whatever can be reached now.
    access : Access

    Returns
    -------
    dict of Series
        Those that can be opened, by name; the study reports the others.

    Raises
    ------
    ToposcopeError
        If there is nothing else in the study and none can be opened; as the first of them says.
    """
    if (directory / "study.db").exists():
        return {}
    opened, errors = {}, []
    for name, declared in declaration.named_series().items():
        if declared.path:
            try:
                opened[name] = declared.open(access)
            except (ToposcopeError, OSError) as error:
                errors.append(error)
    if errors and not opened and not declaration.runs and not any(s.features for s in declaration.series):
        more = f" (and {len(errors) - 1} more series)" if len(errors) > 1 else ""
        raise ToposcopeError(f"{errors[0]}{more}") from errors[0]
    return opened
