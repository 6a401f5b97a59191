# Finds out which Debian packages are missing and installs those, and only those.
#
# Sourced by ./run and ./test. Nothing happens when everything is there; what happens is printed before it does.
# Other systems than Debian and its relatives are told the names of what is needed.

# What the build needs besides Rust: a C compiler for SQLite, and libclang with its headers. libclang is there for
# bindgen, which makes the bindings of SQLite's preupdate hook.
missing_for_build() {
    command -v cc >/dev/null 2>&1 || echo gcc libc6-dev
    has_libclang || libclang_packages
}

# What the tests need besides: PostgreSQL's server programs and psql, Python and Node for the drivers of these
# languages, which the tests install under the target directory, and a browser. The tests start servers of their own.
missing_for_tests() {
    has_postgresql || echo postgresql
    command -v psql >/dev/null 2>&1 || echo postgresql-client
    python3 -c 'import venv, ensurepip' >/dev/null 2>&1 || echo python3 python3-venv
    command -v node >/dev/null 2>&1 || echo nodejs
    command -v npm >/dev/null 2>&1 || echo npm
    command -v chromium >/dev/null 2>&1 || echo chromium
}

has_libclang() {
    [ -n "${LIBCLANG_PATH:-}" ] && return 0
    has_file /usr/lib/llvm-*/lib/libclang.so* || has_file /usr/lib/llvm-*/lib/libclang-[0-9]*.so* ||
        /sbin/ldconfig -p 2>/dev/null | grep -q 'libclang[-.0-9]*\.so' || return 1
    has_file /usr/lib/llvm-*/lib/clang/*/include/stdarg.h || has_file /usr/lib/clang/*/include/stdarg.h ||
        command -v clang >/dev/null 2>&1
}

# The library and the headers of the system's own version; the package for developers has both and much besides.
libclang_packages() {
    version=$(apt-cache depends libclang-dev 2>/dev/null | sed -n 's/.*Depends: libclang-\([0-9][0-9]*\)-dev.*/\1/p' | head -n 1)
    if [ -n "$version" ]; then
        echo "libclang1-$version libclang-common-$version-dev"
    else
        echo libclang-dev
    fi
}

has_postgresql() {
    command -v initdb >/dev/null 2>&1 && command -v postgres >/dev/null 2>&1 && return 0
    has_file /usr/lib/postgresql/*/bin/initdb && has_file /usr/lib/postgresql/*/bin/postgres
}

# Whether the first argument is a file; a pattern that matches nothing is none.
has_file() {
    [ -e "$1" ]
}

# Installs the packages named by its arguments, if there are any.
install_packages() {
    [ $# -gt 0 ] || return 0
    if ! command -v apt-get >/dev/null 2>&1; then
        echo "These Debian packages, or what your system has in their place, are missing: $*" >&2
        return 1
    fi
    if [ "$(id -u)" -eq 0 ]; then
        as_root=
    elif command -v sudo >/dev/null 2>&1; then
        as_root=sudo
    else
        echo "Packages are missing, and there is no sudo to install them with. As root, run:" >&2
        echo "    apt-get install --no-install-recommends $*" >&2
        return 1
    fi
    echo "Installing what is missing: $*"
    # The lists of packages may be absent or old; they are fetched only if it does not work without.
    apt_install "$@" || { run_shown $as_root apt-get update && apt_install "$@"; }
}

apt_install() {
    run_shown $as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "$@"
}

run_shown() {
    echo "\$ $*"
    "$@"
}

require_cargo() {
    command -v cargo >/dev/null 2>&1 && return 0
    echo "Isles is built with Rust, and there is no cargo in PATH. See https://rustup.rs" >&2
    return 1
}
