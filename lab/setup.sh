#!/usr/bin/env bash
# Makes the virtual environment and what it needs. Quick when nothing has changed.
#   lab/setup.sh runtime    what `make demo` needs
#   lab/setup.sh dev        and the tools for tests and checks
#   lab/setup.sh system     and, where we are root, Chromium for the browser tests
set -euo pipefail
cd "$(dirname "$0")/.."
mode="${1:-runtime}"
say() { printf '  %s\n' "$*"; }

# Where root has the checkout in a closed folder (/root), jobs of other users could reach neither Python nor their own
# folders: both then live where everybody may pass.
open_to_all() {
  local path
  path="$(pwd -P)"
  while [ "$path" != / ]; do
    case "$(stat -c %A "$path")" in *[xt]) ;; *) return 1 ;; esac
    path="$(dirname "$path")"
  done
}
if [ "$(id -u)" = 0 ] && ! open_to_all; then
  outside="/var/lib/switchyard/$(pwd -P | sha256sum | cut -c1-12)"
  mkdir -p "$outside"
  chmod 0711 /var/lib/switchyard "$outside"
  for name in venv var; do
    link=".venv"; [ "$name" = var ] && link="var"
    if [ ! -e "$link" ] && [ ! -L "$link" ]; then
      mkdir -p "$outside/$name"
      ln -s "$outside/$name" "$link"
    fi
  done
fi

find_python() {
  local candidate
  for candidate in /usr/bin/python3 python3.11 python3.12 python3.13 python3; do
    if command -v "$candidate" >/dev/null 2>&1 &&
      "$candidate" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null; then
      command -v "$candidate"
      return 0
    fi
  done
  return 1
}
python="$(find_python)" || { echo "switchyard: Python 3.11, 3.12 or 3.13 is needed and none was found" >&2; exit 1; }

if ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
  package="python3-venv"
  case "$python" in /usr/bin/python3) package="python3-venv python$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')-venv" ;; esac
  if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    say "installing $package"
    apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq $package >/dev/null
  else
    echo "switchyard: Python's venv module is missing. Install it with:" >&2
    echo "    sudo apt-get install -y $package" >&2
    exit 1
  fi
fi

if [ ! -x .venv/bin/python ] || ! .venv/bin/python -c '' 2>/dev/null; then
  say "making the virtual environment with $python"
  "$python" -m venv --clear "$(readlink -f .venv)"  # venv takes no link
fi

lock=requirements.lock
[ "$mode" = runtime ] || lock=requirements-dev.lock
stamp=".venv/.installed-$lock"
wanted="$(sha256sum < "$lock" | cut -d' ' -f1)"
# What the tools need holds what the product needs, so the larger set serves both.
have="$(cat "$stamp" 2>/dev/null || true)"
if [ "$mode" = runtime ] && [ "$(cat .venv/.installed-requirements-dev.lock 2>/dev/null)" = "$(sha256sum < requirements-dev.lock | cut -d' ' -f1)" ]; then
  have="$wanted"
fi
if [ "$have" != "$wanted" ]; then
  say "installing packages from $lock (a minute or two)"
  .venv/bin/python -m pip install --quiet --disable-pip-version-check --no-warn-script-location --require-hashes -r "$lock"
  printf '%s\n' "$wanted" > "$stamp"
fi

if [ "$mode" = system ]; then
  if [ -x /usr/bin/chromium ] || [ -x /usr/bin/chromium-browser ]; then :
  elif [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    say "installing Chromium for the browser tests"
    apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq chromium >/dev/null
  else
    say "Chromium is not installed, so the browser tests are skipped. To run them: sudo apt-get install -y chromium"
  fi
fi
