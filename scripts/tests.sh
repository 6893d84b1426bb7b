#!/usr/bin/env bash
# All tests, as two pytest processes side by side, for they wait more than they compute. `scripts/tests.sh OPTIONS` hands
# pytest's options to both. Every folder of tests has ports, servers and databases of its own, and what processes share,
# such as the cache of compiled kernels, is made for several: tests may run beside any others.
#
# What fails among thousands beside real servers, on a machine that others use, is told, and asked once more when both
# have ended: a claim that fails twice does not hold. A run that was cut short (not status 1) is not asked again.
set -uo pipefail -m # -m: a process of its own group hears of Ctrl-C from here alone, and is not deaf to it
cd "$(dirname "$0")/.."
half=(tests/bench tests/cli tests/docs tests/quant tests/server) # half of the time: the first three start `aril` again and again
rest=("${half[@]/#/--ignore=}")
heard=$(mktemp)
trap 'rm -f "$heard"' EXIT
trap 'kill -INT $(jobs -p) 2>/dev/null' INT TERM HUP # both tell how far they came

ask() { # SECONDS, NAME, ARGUMENTS
    exec timeout --signal=INT --kill-after=60 "$1" \
        "${PYTEST:-.venv/bin/pytest}" -o cache_dir=".pytest_cache/$2" "${@:3}" </dev/null
}

end_of() { # PROCESS: its status, however often a signal interrupts the wait
    local status
    wait "$1"; status=$?
    while kill -0 "$1" 2>/dev/null; do wait "$1"; status=$?; done
    return $status
}

settle() { # STATUS, NAME, ARGUMENTS: the status when what failed has been asked once more
    [ "$1" -eq 1 ] || return "$1"
    ask 900 "${@:2}" --lf --lfnf=none &
    end_of $!
}

ask 3900 half "${half[@]}" "$@" & first=$!
ask 3900 rest "${rest[@]}" "$@" >"$heard" 2>&1 & second=$!
end_of $first; first=$?
end_of $second; second=$?
cat "$heard"

none=5 # pytest's status where OPTIONS chose no test: it is no failure of one half
if [ $first -eq $none ]; then first=0; elif [ $second -eq $none ]; then second=0; fi
settle $first half "${half[@]}" "$@"; first=$?
settle $second rest "${rest[@]}" "$@"; second=$?
[ $first -ne 0 ] || first=$second
exit $first
