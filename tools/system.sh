#!/usr/bin/env bash
# Install missing system packages: `system.sh python compiler clang java maven kcat isal graphviz chromium`.
# Runs apt-get if the user is root, or has sudo without a password. Otherwise names the packages and the command to type.
# Does nothing if no package is missing.
set -euo pipefail
cd "$(dirname "$0")/.."

missing=()   # names for messages
packages=()  # names of apt packages

lacks() {
    missing+=("$1")
    packages+=("${@:2}")
}

check_python() {
    local python package
    if ! python=$(tools/python.sh); then
        if [ -n "${PYTHON:-}" ]; then exit 1; fi  # no package makes this one usable
        lacks "Python 3.10 or later" python3 python3-venv python3-dev
        return
    fi
    package=$(basename "$python")
    if ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
        lacks "Python's venv module" "$package-venv"
    fi
    if ! "$python" -c 'import os, sys, sysconfig
sys.exit(not os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h")))'; then
        lacks "Python's headers" "$package-dev"
    fi
}

check_compiler() {
    if ! echo '#include <string.h>' | "${CC:-cc}" -E - >/dev/null 2>&1; then
        lacks "a C compiler" gcc libc6-dev
    fi
}

check_clang() {
    if ! command -v clang >/dev/null; then
        lacks "clang" clang
    fi
}

check_java() {
    if ! tools/with_java.sh true 2>/dev/null; then
        lacks "a JDK 17 or later" "$(jdk_package)"
    fi
    if ! command -v ps >/dev/null; then  # Spark's start script calls it, and a minimal system lacks it
        lacks "ps" procps
    fi
}

check_maven() {
    if ! command -v mvn >/dev/null; then
        lacks "Maven" maven
    fi
}

check_kcat() {
    if ! command -v kcat >/dev/null; then
        lacks "kcat" kcat
    fi
}

check_isal() {
    if ! /sbin/ldconfig -p | grep 'libisal\.so\.2' >/dev/null; then
        lacks "ISA-L, the floor of CRC checks" libisal2
    fi
}

check_graphviz() {
    if ! command -v dot >/dev/null; then
        lacks "Graphviz" graphviz
    fi
}

check_chromium() {
    if ! command -v chromium chromium-browser google-chrome >/dev/null; then
        lacks "Chromium, which shows pages to tests" chromium
    fi
}

# Prints the package of a JDK on which Spark and Kafka are known to run, as this release names it.
jdk_package() {
    local version
    for version in 17 21; do
        if apt-cache policy "openjdk-$version-jdk-headless" 2>/dev/null | grep -q 'Candidate: [0-9]'; then
            echo "openjdk-$version-jdk-headless"
            return
        fi
    done
    echo default-jdk-headless
}

# Fills the two lists again.
check() {
    local need
    missing=()
    packages=()
    for need in "$@"; do
        "check_$need"
    done
}

# Prints the names of what is missing, separated by commas.
listed() {
    local list
    list=$(printf ', %s' "${missing[@]}")
    echo "${list#, }"
}

# Prints the prefix that runs a command as root without a password. Fails if there is none.
root_prefix() {
    if [ "$(id -u)" -eq 0 ]; then
        echo "env"
    elif sudo -n true 2>/dev/null; then
        echo "sudo -n env"
    else
        return 1
    fi
}

check "$@"
if [ ${#missing[@]} -eq 0 ]; then
    exit 0
fi
if ! command -v apt-get >/dev/null; then
    echo "This system lacks $(listed). Install that, then try again." >&2
    exit 1
fi
if ! as_root=$(root_prefix); then
    echo "This system lacks $(listed). Type this, then try again:" >&2
    echo "    sudo apt-get update && sudo apt-get install ${packages[*]}" >&2
    exit 1
fi
echo "This system lacks $(listed): installing that with apt-get."
$as_root apt-get update -qq
check "$@"  # only now is the name of the JDK known
# Another program may hold the lock of the packages, like an unattended upgrade.
$as_root DEBIAN_FRONTEND=noninteractive apt-get install -y -qq -o DPkg::Lock::Timeout=300 --no-install-recommends "${packages[@]}" >/dev/null
check "$@"
if [ ${#missing[@]} -ne 0 ]; then
    echo "apt-get installed the packages of this release, but the system still lacks $(listed)." >&2
    exit 1
fi
