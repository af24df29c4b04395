"""Programs that tests need and Python does not bring: Debian's packages, installed where they are missing."""

import os
import subprocess


def install(package: str) -> None:
    sudo = [] if os.getuid() == 0 else ["sudo", "-n"]
    quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for words in (["update", "-qq"], ["install", "-y", "-qq", "--no-install-recommends", package]):
        subprocess.run([*sudo, "apt-get", *words], env=quiet, check=True, stdout=subprocess.DEVNULL)
