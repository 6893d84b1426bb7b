"""What is told of a revision or an alias that is not there, to those whose adapter it is of."""

from __future__ import annotations

from pathlib import Path

from builders.registry import ADAPTERS, Place, alive


@alive
async def test_who_names_a_revision_or_an_alias_of_their_own_that_is_not_there_hears_which_are(
    sqlite_place: Place, folders: list[Path]
) -> None:
    async with sqlite_place.running() as registry:
        for folder in folders[:2]:
            await registry.upload("org/pirate", folder, activate="null")
        retired = await registry.http.post(f"{ADAPTERS}/org/pirate/revisions/2/retire")
        assert retired.is_success, retired.text
        for selector, why in (
            ("2", " (a revision that is retired, rejected or not yet checked is not)"),
            ("9", " (a revision that is retired, rejected or not yet checked is not)"),
            ("prod", ""),
            ("sha256:00000000", ""),
        ):
            body = {"model": f"org/pirate@{selector}", "prompt": "a", "max_tokens": 1}
            answer = await registry.http.post("/v1/completions", json=body)
            error = answer.json()["error"]
            assert (answer.status_code, error["code"], error["param"]) == (404, "model_not_found", "model")
            assert error["message"] == (
                f"the model 'org/pirate@{selector}' does not exist or is not active{why}; "
                "of 'org/pirate' there are revisions that are ready: 1; aliases: default"
            )
