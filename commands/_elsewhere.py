"""Flags of vLLM's that would have no effect here, and what there is instead: each is refused with that.

The names are those of its engine arguments and of its server's, from 0.6 on. One that Aril takes cannot stand here too.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping

ALONE = "one process computes, on one device; start more servers for more"
CHUNKS = "a long prompt is always computed in chunks, so that others go on: --max-num-batched-tokens is their length"
DRAFTS = "no tokens are drafted; leave it out"
FILES = "the files of a model say by themselves what they are; leave it out"
GRAPHS = "nothing is compiled at the start, and --enforce-eager alone says whether graphs are captured"
MEMORIES = "weights and KV cache stay where they are; a request that makes room for another is computed again"
NONE = "there is no such thing here; leave it out"
OWN_CONFIG = "the config.json of a model is believed; to change it, serve a folder of your own"
TEXT = "only text models are served"
TOKENIZER = "a model is served with the tokenizer that lies beside it"

OF_ENGINES = {
    "--max-lora-rank": "there is no such limit: an adapter takes memory by its own rank; --adapter-memory bounds it",
    "--max-cpu-loras": "adapters on the host are bounded by bytes: --adapter-cache-memory",
    "--lora-dtype": "adapters are computed in the number format of the base: --dtype",
    "--lora-extra-vocab-size": "adapters that bring tokens of their own are not served",
    "--long-lora-scaling-factors": "adapters are served on the positions of the base",
    "--lora-target-modules": "an adapter names its modules by itself; leave it out",
    "--enable-lora-bias": "adapters with a bias are not served",
    "--qlora-adapter-name-or-path": "an adapter is named by --lora-modules NAME=PATH",
    **dict.fromkeys(
        ("--enable-prompt-adapter", "--max-prompt-adapters", "--max-prompt-adapter-token"),
        "of PEFT's kinds only LoRA is served",
    ),
    **dict.fromkeys(
        (
            "--tensor-parallel-size", "-tp", "--pipeline-parallel-size", "-pp", "--data-parallel-size", "-dp",
            "--data-parallel-size-local", "-dpl", "--data-parallel-rank", "--data-parallel-address",
            "--data-parallel-rpc-port", "--data-parallel-backend", "--decode-context-parallel-size", "-dcp",
            "--prefill-context-parallel-size", "-pcp", "--enable-expert-parallel", "-ep", "--enable-eplb",
            "--distributed-executor-backend", "--worker-use-ray", "--ray-workers-use-nsight", "--worker-cls",
            "--max-parallel-loading-workers", "--disable-custom-all-reduce", "--nnodes", "--node-rank", "--master-addr",
            "--master-port", "--fully-sharded-loras",
        ),
        ALONE,
    ),
    **dict.fromkeys(
        (
            "--enable-chunked-prefill", "--no-enable-chunked-prefill", "--max-num-partial-prefills",
            "--max-long-partial-prefills", "--long-prefill-token-threshold",
        ),
        CHUNKS,
    ),
    **dict.fromkeys(
        (
            "--speculative-config", "-sc", "--speculative-model", "--num-speculative-tokens", "--spec-model",
            "--spec-tokens", "--spec-method", "--ngram-prompt-lookup-max", "--ngram-prompt-lookup-min",
            "--num-lookahead-slots",
        ),
        DRAFTS,
    ),
    **dict.fromkeys(
        (
            "--load-format", "--model-loader-extra-config", "--safetensors-load-strategy", "--config-format",
            "--ignore-patterns", "--pt-load-map-location", "--use-tqdm-on-load", "--model-impl",
        ),
        FILES,
    ),
    **dict.fromkeys(
        (
            "--compilation-config", "-cc", "-O", "-O0", "-O1", "-O2", "-O3", "--optimization-level",
            "--max-seq-len-to-capture", "--cudagraph-capture-sizes", "--cuda-graph-sizes",
            "--max-cudagraph-capture-size",
        ),
        GRAPHS,
    ),
    **dict.fromkeys(
        (
            "--swap-space", "--preemption-mode", "--cpu-offload-gb", "--offload-backend", "--kv-offloading-size",
            "--kv-offloading-backend", "--kv-transfer-config",
        ),
        MEMORIES,
    ),
    **dict.fromkeys(("--hf-overrides", "--hf-config-path", "--rope-scaling", "--rope-theta"), OWN_CONFIG),
    **dict.fromkeys(
        (
            "--limit-mm-per-prompt", "--mm-processor-kwargs", "--mm-processor-cache-gb", "--media-io-kwargs",
            "--disable-mm-preprocessor-cache", "--allowed-local-media-path", "--allowed-media-domains",
            "--interleave-mm-strings", "--skip-mm-profiling", "--language-model-only", "--default-mm-loras",
        ),
        TEXT,
    ),
    **dict.fromkeys(
        (
            "--tokenizer", "--tokenizer-mode", "--skip-tokenizer-init", "--tokenizer-pool-size",
            "--tokenizer-pool-type", "--tokenizer-pool-extra-config",
        ),
        TOKENIZER,
    ),
    **dict.fromkeys(("--code-revision", "--tokenizer-revision"), "--revision is that of all files"),
    **dict.fromkeys(("--task", "--runner", "--convert"), "every model answers and embeds; leave it out"),
    **dict.fromkeys(
        ("--override-pooler-config", "--pooler-config"), "--pooling-type says how prompts are embedded, as last or mean"
    ),
    **dict.fromkeys(
        ("--kv-cache-dtype", "--calculate-kv-scales"), "the KV cache has the number format of the base: --dtype"
    ),
    **dict.fromkeys(
        ("--kv-cache-memory-bytes", "--num-gpu-blocks-override"), "the KV cache is sized by --kv-cache-memory, as 2GiB"
    ),
    **dict.fromkeys(
        ("--guided-decoding-backend", "--structured-outputs-config"),
        "--grammar-backend says who holds answers to a schema",
    ),
    **dict.fromkeys(
        ("--logits-processors", "--logits-processor-pattern", "--scheduler-cls", "--io-processor-plugin"),
        "no code of others runs in the engine",
    ),
    **dict.fromkeys(
        (
            "--num-scheduler-steps", "--multi-step-stream-outputs", "--scheduler-delay-factor", "--async-scheduling",
            "--no-async-scheduling", "--disable-async-output-proc", "--use-v2-block-manager", "--disable-cascade-attn",
            "--disable-sliding-window", "--disable-hybrid-kv-cache-manager", "--prefix-caching-hash-algo",
            "--stream-interval", "--enable-sleep-mode", "--enable-prompt-embeds", "--kv-events-config",
            "--additional-config", "--collect-detailed-traces", "--show-hidden-metrics-for-version",
        ),
        NONE,
    ),
    "-q": "write --quantization",
    "--download-dir": "HF_HOME says where files of the hub are kept",
    "--hf-token": "HF_TOKEN, in the environment, opens gated models of the hub",
    "--scheduling-policy": "priorities of requests are always heeded; leave it out",
    "--max-logprobs": "a request may ask for up to 20, which is OpenAI's bound",
    "--logprobs-mode": "log-probabilities are those before temperature and penalties",
    "--override-generation-config": "--generation-config takes a folder with a generation_config.json of your own",
    "--disable-log-stats": "the log tells no statistics, they are in /metrics; leave it out",
}  # fmt: skip
OF_SERVERS = {
    "--model": "the model stands without a flag: aril serve MODEL",
    "--config": "flags stand on the command line, and in no file",
    "--headless": ALONE,
    **dict.fromkeys(
        (
            "--disable-log-requests", "--no-disable-log-requests", "--enable-log-requests", "--no-enable-log-requests",
            "--disable-uvicorn-access-log", "--disable-access-log-for-endpoints",
        ),
        "--access-log json, text or off is the line for each request",
    ),
    **dict.fromkeys(
        ("--max-log-len", "--enable-log-outputs"), "--log-prompts adds the beginnings of prompts and answers to the log"
    ),
    "--uvicorn-log-level": "write --log-level",
    "--log-config-file": "--log-level and --access-log say what is logged, on stderr",
    "--disable-frontend-multiprocessing": "--api-server-count 1, the default, is that",
    "--response-role": "answers have the role assistant",
    "--chat-template-content-format": "chat templates are given texts; leave it out",
    "--default-chat-template-kwargs": "requests bring chat_template_kwargs; --chat-template sets another template",
    "--return-tokens-as-token-ids": "requests ask for it: return_tokens_as_token_ids",
    "--enable-force-include-usage": "requests ask for it: stream_options",
    "--enable-prompt-tokens-details": "usage always counts cached tokens; leave it out",
    "--enable-request-id-headers": "every answer has an x-request-id; leave it out",
    "--enable-server-load-tracking": "/metrics tells what runs and waits",
    "--exclude-tools-when-tool-choice-none": "with tool_choice none the model hears of no tools; leave it out",
    "--middleware": "no code of others runs in the server",
    "--prompt-adapters": "of PEFT's kinds only LoRA is served",
    **dict.fromkeys(
        (
            "--disable-fastapi-docs", "--enable-offline-docs", "--enable-ssl-refresh", "--ssl-ciphers",
            "--h11-max-header-count", "--tool-parser-plugin", "--reasoning-parser-plugin", "--tool-server",
            "--enable-tokenizer-info-endpoint",
        ),
        NONE,
    ),
}  # fmt: skip


def refuse_elsewhere(parser: argparse.ArgumentParser, *hints: Mapping[str, str]) -> None:
    """Have `parser` refuse each of these flags with its hint; --help does not show them."""
    for flag, hint in (each for found in hints for each in found.items()):
        parser.add_argument(flag, nargs="?", action=_Elsewhere, const=hint, help=argparse.SUPPRESS)


class _Elsewhere(argparse.Action):
    """A flag of vLLM's that means nothing here; `const` says what does."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: object,
        option_string: str | None = None,
    ) -> None:
        parser.error(f"{self.option_strings[0]}: {self.const}")
