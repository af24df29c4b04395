#!/usr/bin/env bash
# Makes the virtual environment $1 and installs the locks $2... into it. Safe to interrupt: the stamp comes last, and the
# next call goes on with the packages that are missing.
set -euo pipefail
venv=$1; shift
need_gb=6
say() { echo "assay: $*" >&2; exit 1; }

version=$("$PYTHON" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null) || version=none
[ "$version" = 3.11 ] || say "Python 3.11 is needed, '$PYTHON' is $version: install it, or name it with 'make PYTHON=/path/to/python3.11'."

here=$(dirname "$venv")
free_gb=$(df -Pk "$here" | awk 'NR==2 {print int($4 / 1048576)}')
have_gb=0
[ ! -d "$venv" ] || have_gb=$(du -sk "$venv" | awk '{print int($1 / 1048576)}')
[ $((free_gb + have_gb)) -ge $need_gb ] || say "$free_gb GB free in $(cd "$here" && pwd), $need_gb GB are needed: free some space, or name another place with 'make VENV=DIR'."

# An environment whose making was interrupted has no mark and is made again.
if [ ! -e "$venv/.made" ]; then
  rm -rf "$venv"
  "$PYTHON" -m venv "$venv" || say "'$PYTHON' cannot make a virtual environment: install its venv module (Debian: python3.11-venv)."
  touch "$venv/.made"
fi

# pip writes INSTALLER after a package's files: a package without it was cut off half-way and is installed again.
find "$venv"/lib -path '*.dist-info/METADATA' | while read -r file; do
  [ -e "${file%METADATA}INSTALLER" ] || rm -rf "${file%/METADATA}"
done

# In parts, because pip installs nothing before it has everything: so an interruption loses one part only.
trap 'rm -f "$venv"/.part-*' EXIT
total=$(cat "$@" | grep -c ==)
grep -h == "$@" | split -l 36 - "$venv/.part-"
echo "Installing $total packages into $venv (about 3 minutes and 3.6 GB the first time) ..."
finished=0
for part in "$venv"/.part-*; do
  "$venv/bin/python" -m pip install -qq --disable-pip-version-check --no-deps --progress-bar off -r "$part" ||
    say "the install did not finish (its reason is above): 'make install' goes on where it stopped."
  finished=$((finished + $(wc -l < "$part")))
  echo "  $finished of $total"
done
# So that `import assay` works in this environment wherever one stands, as it would for an installed package.
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
for site in "$venv"/lib/python*/site-packages; do echo "$root" > "$site/assay-checkout.pth"; done
touch "$venv/.installed"
echo "Installed."
