#!/bin/sh
# The clients of others against `aril serve`: OpenAI's for Python and JavaScript, LangChain, LiteLLM, schemathesis, and
# the cases of the JSON Schema suite. They have an environment of their own, .venv-clients, made when its list changes.
# `scripts/clients.sh ARGUMENTS` hands them to pytest.
set -eu
cd "$(dirname "$0")/.."
list=tests/clients/requirements.txt
package=tests/clients/js/package.json
stamp=.venv-clients/.ready
mark=$(cat "$list" "$package" | cksum)
PATH=$PATH:$PWD/.venv-clients/bin

if [ ! -f "$stamp" ] || [ "$(cat "$stamp")" != "$mark" ]; then
    [ -x .venv-clients/bin/python ] || "${ARIL_PYTHON:-.venv/bin/python}" -m venv .venv-clients
    echo "Installing the clients of others into .venv-clients; the first time takes some minutes."
    .venv-clients/bin/python -m pip --disable-pip-version-check install -q --no-compile -r "$list"
    .venv-clients/bin/python -m pip --disable-pip-version-check download -q --no-deps --no-binary jsonschema \
        --dest .venv-clients "$(grep '^jsonschema==' "$list")" # the sources bring the cases
    npm install --prefix tests/clients/js --no-package-lock --no-audit --no-fund --silent
    echo "$mark" >"$stamp"
fi
exec .venv-clients/bin/python -m pytest tests/clients --ignore=tests/clients/evals --confcutdir=tests/clients -p no:cacheprovider --disable-warnings "$@"
