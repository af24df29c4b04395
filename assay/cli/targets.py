"""Files that a command is to write, looked at before the work and not after it."""

from collections.abc import Mapping
from pathlib import Path

from assay.errors import InvalidRequest


def check_targets(targets: Mapping[str, Path | None], kinds: Mapping[str, tuple[str, ...]]) -> None:
    """``targets``: option -> file; ``kinds``: the endings that an option's file may have. Raises ``InvalidRequest``."""
    for option, path in targets.items():
        if path is None:
            continue
        if path.is_dir() or not path.absolute().parent.is_dir():
            raise InvalidRequest(f"'{path}' cannot be written: its folder is missing, or it is a folder itself", option)
        if option in kinds and path.suffix not in kinds[option]:
            raise InvalidRequest(f"the {option} '{path}' has an ending that it cannot have", option, kinds[option])
