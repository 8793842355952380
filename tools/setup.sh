# Sourced by tools/plimsoll, tools/test and tools/presubmit: what they need, and how they build.
# Everything is said on standard error, so that `--json -` stays a document.
#
#   PLIMSOLL_NO_INSTALL=1   install nothing; name what is missing
#   PLIMSOLL_BUILD=DIR      build there and not in build/
#   PLIMSOLL_SETUP=WORDS    further words for `meson setup`

build=${PLIMSOLL_BUILD:-$root/build}

say() { printf 'plimsoll: %s\n' "$*" >&2; }

die() {
  say "$*"
  exit 3
}

# Debian packages whose content is not found here; $* are further ones, named "package:command".
missing_packages() {
  command -v c++ >/dev/null || command -v g++ >/dev/null || echo g++
  command -v python3 >/dev/null || echo python3
  command -v meson >/dev/null || echo meson
  command -v ninja >/dev/null || echo ninja-build
  if ! command -v pkg-config >/dev/null; then
    echo pkg-config libfmt-dev nlohmann-json3-dev libyaml-cpp-dev libtomlplusplus-dev libcli11-dev libbenchmark-dev libopenblas-dev
  else
    pkg-config --exists fmt || echo libfmt-dev
    pkg-config --exists nlohmann_json || echo nlohmann-json3-dev
    pkg-config --exists yaml-cpp || echo libyaml-cpp-dev
    pkg-config --exists tomlplusplus || echo libtomlplusplus-dev
    pkg-config --exists CLI11 || echo libcli11-dev
    pkg-config --exists benchmark || echo libbenchmark-dev
    pkg-config --exists openblas || echo libopenblas-dev  # without it the host's products are slow
  fi
  command -v cbc >/dev/null || echo coinor-cbc  # its library is loaded by batch --fleet
  # Header-only and without a pkg-config file.
  [ -e /usr/include/doctest/doctest.h ] || echo doctest-dev
  # The schema test takes either; python3-jsonschema is the small one.
  [ -e /usr/include/valijson/validator.hpp ] || [ -d /usr/lib/python3/dist-packages/jsonschema ] ||
    echo python3-jsonschema
  for extra in "$@"; do
    command -v "${extra#*:}" >/dev/null || echo "${extra%%:*}"
  done
}

# Without these there is no build; the libraries have Meson wraps.
is_tool() {
  case $1 in g++ | python3 | meson | ninja-build) return 0 ;; esac
  return 1
}

install_packages() {
  say "installing Debian packages: $*"
  log=$(mktemp)
  if { apt-get update && DEBIAN_FRONTEND=noninteractive \
    apt-get install -y --no-install-recommends "$@"; } >"$log" 2>&1 </dev/null; then
    rm -f "$log"
    return 0
  fi
  say "apt-get failed:"
  tail -n 5 "$log" >&2
  rm -f "$log"
  return 1
}

# Installs what is missing where that is allowed, else names it. Ends the script (3) only where
# a build is impossible.
require_packages() {
  missing=$(missing_packages "$@" | tr '\n' ' ')
  [ -n "${missing% }" ] || return 0
  if [ "$(id -u)" = 0 ] && [ "${PLIMSOLL_NO_INSTALL:-0}" != 1 ] && command -v apt-get >/dev/null; then
    # shellcheck disable=SC2086
    install_packages $missing || say "going on without them where that is possible"
    missing=$(missing_packages "$@" | tr '\n' ' ')
    [ -n "${missing% }" ] || return 0
  else
    say "missing (Debian package names): $missing"
    say "to install them: sudo apt-get install --no-install-recommends $missing"
  fi
  for package in $missing; do
    is_tool "$package" && die "cannot build without $package"
  done
  return 0
}

# Runs a command quietly; shows the end of its output and gives up where it fails.
quietly() {
  what=$1
  shift
  "$@" >"$build/last.log" 2>&1 </dev/null || give_up "$what"
}

give_up() {
  say "$1 failed (the whole log: $build/last.log):"
  grep -E -A 3 '(error|ERROR|FAILED)' "$build/last.log" | head -n 30 >&2
  rm -f "$build/.building.$$" "$build/.failed.$$"
  exit 3
}

# Ninja's lines, "12 326 Compiling …", into the log; how far it is, on standard error: on a terminal in
# one line, else by quarters.
watched() {
  quarter=0
  while IFS= read -r line; do
    printf '%s\n' "$line"
    case $line in [0-9]*' '[0-9]*' '*) ;; *) continue ;; esac
    built=${line%% *} all=${line#* } all=${all%% *}
    if [ -t 2 ]; then
      printf '\rplimsoll: building: %s of %s' "$built" "$all" >&2
      [ "$built" != "$all" ] || printf '\r\033[K' >&2
    elif [ "$all" -ge 40 ] && [ $((built * 4 / all)) -gt $quarter ]; then
      quarter=$((built * 4 / all))
      [ $quarter -ge 4 ] || say "building: $((quarter * 25)) %"
    fi
  done
}

run_ninja() {
  NINJA_STATUS='%f %t ' ninja -C "$build" "$@" 2>&1 || touch "$build/.failed.$$"
}

# build TARGET…: configures where needed, then builds; several at once wait for each other. The stamp
# bears the time at which the build began, so that an edit made meanwhile is seen next time.
build() {
  mkdir -p "$build" 2>/dev/null || die "cannot create $build; PLIMSOLL_BUILD=DIR builds elsewhere"
  (: >"$build/.lock") 2>/dev/null || die "cannot write to $build; PLIMSOLL_BUILD=DIR builds elsewhere"
  exec 9>"$build/.lock"
  if command -v flock >/dev/null; then flock 9; fi
  touch "$build/.building.$$"
  [ -f "$build/build.ninja" ] || quietly "meson setup" meson setup "$build" "$root" ${PLIMSOLL_SETUP-}
  rm -f "$build/.failed.$$"
  run_ninja "$@" </dev/null | watched >"$build/last.log"
  [ ! -e "$build/.failed.$$" ] || give_up "the build"
  mv -f "$build/.building.$$" "$build/.built"
  exec 9>&-
}
