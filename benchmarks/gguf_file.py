"""Token ids and logits of a GGUF file in llama.cpp, against the model and tokenizer in Transformers.

    PYTHONPATH=. python benchmarks/gguf_file.py MODEL FILE.gguf 'DATA/*.jsonl.gz' [--documents 40] [--random 20000]

MODEL is the folder that `polder model gguf` made the file of, best with `--type f32`. Needs llama-cpp-python, which no
lock has (`pip install llama-cpp-python` compiles llama.cpp). Of each file of texts so many documents are encoded, up to
20,000 characters of each, and random texts of what pre-tokenizers differ in. llama.cpp keeps keys and values in fp32
here; by default it rounds them to fp16.
"""

from __future__ import annotations

import argparse
import glob
import gzip
import json
import random
from itertools import islice
from pathlib import Path

import llama_cpp
import numpy as np
import torch
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM

CHARACTERS = (
    " \t\n\r\x0b\x0c\x85\xa0\u2028\u2009\u3000'’‘sStTlLdDmMrRvVeEaé\u0301ſ\u212a12٣½²Ⅷ一ab.,!?<>|_-😀\u200d\ufe0f🇳🇱"
)
CHARACTERS += "\x00\x1c\u1680\u180e\ufeffİıßǅʰª𝟘𐍈"
STRINGS = [" " * 7, "\n\n\n", "12345678", "'s", "'ll", "'RE", " 't huis", "👩‍👩‍👧"]


def read_texts(pattern: str, documents: int) -> list[str]:
    """Return the first texts of each file."""
    texts = []
    for name in sorted(glob.glob(pattern)):
        with gzip.open(name, "rt", encoding="utf-8") as lines:
            texts += [json.loads(line)["text"][:20_000] for line in islice(lines, documents)]
    return texts


def make_texts(number: int, names: list[str]) -> list[str]:
    """Return random texts of difficult characters, and of names of special tokens and markers."""
    draw = random.Random(1)
    parts = [*CHARACTERS * 5, *STRINGS, *names]
    return ["".join(draw.choices(parts, k=draw.randint(1, 60))) for _ in range(number)]


def main() -> None:
    """Print how many texts have other ids, and how far logits are apart."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("file", type=Path)
    parser.add_argument("pattern", help="JSON lines with `text`, gzipped")
    parser.add_argument("--documents", type=int, default=40)
    parser.add_argument("--random", type=int, default=20_000)
    asked = parser.parse_args()

    tokenizer = Tokenizer.from_file(str(asked.model / "tokenizer.json"))
    names = [token.content for token in tokenizer.get_added_tokens_decoder().values()]
    real = read_texts(asked.pattern, asked.documents)
    vocabulary = llama_cpp.Llama(str(asked.file), vocab_only=True, verbose=False)
    for kind, texts in {"documents": real, "random texts": make_texts(asked.random, names)}.items():
        expected = [encoding.ids for encoding in tokenizer.encode_batch(texts)]
        results = [vocabulary.tokenize(text.encode(), add_bos=True, special=True) for text in texts]
        others = [text for text, ours, theirs in zip(texts, expected, results, strict=True) if ours != theirs]
        tokens = sum(map(len, expected))
        print(f"{len(texts):,} {kind}, {tokens:,} tokens: {len(others)} texts have other ids {others[:3]}")
    vocabulary.close()

    network = AutoModelForCausalLM.from_pretrained(asked.model, dtype=torch.float32)
    length = min(network.config.max_position_embeddings, 512)
    ids = tokenizer.encode(" ".join(real)).ids[:length]
    exact = {"type_k": llama_cpp.GGML_TYPE_F32, "type_v": llama_cpp.GGML_TYPE_F32, "flash_attn": False}
    theirs = llama_cpp.Llama(str(asked.file), logits_all=True, n_ctx=length, n_batch=length, verbose=False, **exact)
    theirs.eval(ids)
    logits_TV = np.array(theirs.scores[: len(ids)])
    theirs.close()
    with torch.inference_mode():
        expected_TV = network(torch.tensor([ids])).logits[0].numpy()
    apart = np.abs(logits_TV - expected_TV).max()
    equal = (logits_TV.argmax(1) == expected_TV.argmax(1)).mean()
    print(f"logits of {len(ids)} tokens: {apart:.1e} apart at most, deviation {expected_TV.std():.2f}")
    print(f"the likeliest token is the same after {equal:.1%}; llama-cpp-python {llama_cpp.__version__}")


if __name__ == "__main__":
    main()
