#!/bin/sh
# The native kernels' tests with every access and every operation checked: AddressSanitizer and UndefinedBehaviorSanitizer.
# Python itself is not built for them, so their runtime is loaded before it, and what it leaves allocated is no leak.
set -eu
cd "$(dirname "$0")/.."
real=${CXX:-g++}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cat >"$work/c++" <<END
#!/bin/sh
exec $real "\$@" -O1 -g -fno-omit-frame-pointer -fsanitize=address,undefined -fno-sanitize-recover=all
END
chmod +x "$work/c++"
ARIL_COMPILE_KERNELS=1 CXX="$work/c++" ARIL_CACHE="$work/cache" LD_PRELOAD="$($real -print-file-name=libasan.so) $($real -print-file-name=libstdc++.so.6)" \
    ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=print_stacktrace=1 \
    "${PYTHON:-.venv/bin/python}" -m pytest -p no:cacheprovider tests/kernels tests/native -k "native or tape or pool" "$@"
