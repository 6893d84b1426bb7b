# Each target sets up what it needs first (scripts/setup.sh), and is quick the second time.
.PHONY: demo serve lint test clients evals sanitize setup setup-dev

demo: setup
	.venv/bin/aril demo

serve: setup
	.venv/bin/aril serve demo

lint: setup-dev
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	MYPYPATH=.venv/src .venv/bin/mypy

test: lint
	bash scripts/tests.sh

clients: setup-dev
	sh scripts/clients.sh

evals: setup-dev
	sh scripts/evals.sh

sanitize: setup-dev
	sh scripts/sanitize.sh

setup:
	@sh scripts/setup.sh run

setup-dev:
	@sh scripts/setup.sh dev
