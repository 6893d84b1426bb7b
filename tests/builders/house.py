"""A tiny model and an adapter of it on disk, for servers that programs outside of this environment ask.

`python -m builders.house FOLDER`, run in tests/, writes FOLDER/model and FOLDER/red.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from builders.adapters import make_adapter
from builders.models import make_model

# Hermes' way to show tools and their calls, in the frame of ChatML, as Qwen's models do it.
CHAT_TEMPLATE = (
    "{%- if tools -%}<|im_start|>system\n<tools>{% for tool in tools %}\n{{ tool | tojson }}{% endfor %}\n</tools>"
    "<|im_end|>\n{%- endif -%}"
    "{%- for message in messages -%}<|im_start|>{{ message.role }}\n{{ message.content or '' }}"
    "{%- for call in message.tool_calls or [] -%}"
    "<tool_call>\n{{ (call.function or call) | tojson }}\n</tool_call>"
    "{%- endfor -%}<|im_end|>\n{%- endfor -%}"
    "{%- if add_generation_prompt -%}<|im_start|>assistant\n{%- endif -%}"
)
CONTEXT = 4096


def make_house(folder: Path) -> None:
    """Both, in `folder`."""
    model = make_model(folder / "model", max_position_embeddings=CONTEXT)
    settings = model / "tokenizer_config.json"
    settings.write_text(json.dumps({**json.loads(settings.read_text()), "chat_template": CHAT_TEMPLATE}))
    (model / "chat_template.jinja").write_text(CHAT_TEMPLATE)
    make_adapter(folder / "red", model)


if __name__ == "__main__":
    make_house(Path(sys.argv[1]))
