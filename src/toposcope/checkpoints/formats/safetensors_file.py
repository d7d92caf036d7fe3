"""One ``.safetensors`` file; tensors are read from the memory map one by one."""

from functools import partial
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from toposcope.checkpoints.formats import Entry
from toposcope.errors import ToposcopeError

DTYPES = {
    "F64": "float64",
    "F32": "float32",
    "F16": "float16",
    "BF16": "bfloat16",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
    "I64": "int64",
    "I32": "int32",
    "I16": "int16",
    "I8": "int8",
    "U8": "uint8",
    "BOOL": "bool",
}


def claims(path: Path) -> bool:
    """By its ending."""
    return path.suffix == ".safetensors" and path.is_file()


def entries(path: Path) -> list[Entry]:
    """List the tensors from the header alone."""
    try:
        file: Any = safe_open(path, framework="pt")  # its methods carry no types
        found = []
        for name in file.keys():  # noqa: SIM118 - not a dictionary
            header = file.get_slice(name)
            dtype = DTYPES.get(header.get_dtype(), header.get_dtype().lower())
            found.append(Entry(name, tuple(header.get_shape()), dtype, partial(file.get_tensor, name)))
    except (SafetensorError, OSError) as error:
        raise ToposcopeError(
            f"{path}: truncated or damaged safetensors file ({error}); fetch or save it again"
        ) from error
    return found
