#!/usr/bin/env bash
# Run a command with JAVA_HOME set to a JDK that Spark and Kafka run on: `with_java.sh COMMAND ARGUMENT...`.
# Tries JAVA_HOME, then the java on the PATH, then other installed JDKs. Exits with 127 if no JDK is 17 or later.
set -euo pipefail

readonly oldest=17

# Prints the feature version of the JDK under the given home (8 calls itself 1.8), or 0 if there is none.
version_of() {
    local version
    version=$("$1/bin/javac" -version 2>&1 | sed -n 's/^javac \(1\.\)\{0,1\}\([0-9]*\).*/\2/p') || true
    echo "${version:-0}"
}

# Prints the home of the java on the PATH. This java is a link or, on macOS, a stub that calls java_home.
home_of_path() {
    local java
    if [ -x /usr/libexec/java_home ]; then
        /usr/libexec/java_home 2>/dev/null || true
    elif java=$(command -v java); then
        dirname "$(dirname "$(readlink -f "$java")")"
    fi
}

# The lowest versions first: Spark and Kafka were tested on them for the longest time.
installed_homes() {
    local home
    for home in /usr/lib/jvm/* /Library/Java/JavaVirtualMachines/*/Contents/Home /opt/homebrew/opt/openjdk*; do
        if [ -x "$home/bin/javac" ]; then echo "$(version_of "$home") $home"; fi
    done | sort -n | cut -d ' ' -f 2-
}

while read -r home <&3; do
    if [ -n "$home" ] && [ "$(version_of "$home")" -ge "$oldest" ]; then
        export JAVA_HOME=$home PATH=$home/bin:$PATH
        exec "$@" 3<&-
    fi
done 3< <(echo "${JAVA_HOME:-}"; home_of_path; installed_homes)
echo "no JDK $oldest or later found: set JAVA_HOME to one" >&2
exit 127
