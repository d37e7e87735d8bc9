"""Flan-T5 architectures with random weights and a T5 tokenizer, made without a hub."""

import random
from pathlib import Path

from transformers import PreTrainedTokenizerFast, T5Config, T5ForConditionalGeneration, T5Tokenizer

from torchrl_glam.envs import GoalSpace
from torchrl_glam.envs.playground.vocabulary import OBJECTS
from torchrl_glam.text import PromptTemplate

SIZES = {
    "micro": {"d_model": 64, "d_kv": 16, "d_ff": 128, "num_layers": 2, "num_heads": 4},
    "base": {"d_model": 768, "d_kv": 64, "d_ff": 2048, "num_layers": 12, "num_heads": 12},
}


def make_tokenizer() -> PreTrainedTokenizerFast:
    """T5's tokenizer, trained on texts of Playground-Text.

    With few pieces it cuts words, so that prompts of six objects have about 90 tokens, which is
    what T5's own pieces give.
    """
    rng = random.Random(0)
    goals = GoalSpace("train").texts
    texts = []
    for _ in range(500):
        items = rng.sample(OBJECTS, 6)
        observation = (
            f"You see: {', '.join(items)}\nYou are on: {items[0]}\nYou are holding: nothing\n"
            "You have grown: nothing"
        )
        texts.append(PromptTemplate().fill(rng.choice(goals), observation))
        texts.append(f"Go to {items[1]} Grasp Release")
    trained = T5Tokenizer(extra_ids=0).train_new_from_iterator(texts, 200, show_progress=False)
    # Of a class that has no special tokens but these, which a test may take away.
    special = {"pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}
    return PreTrainedTokenizerFast(tokenizer_object=trained.backend_tokenizer, **special)


def make_flan_t5(folder: Path, size: str = "micro") -> Path:
    """Saves a model of Flan-T5's gated, untied architecture and its tokenizer to a folder."""
    tokenizer = make_tokenizer()
    vocab_size = 32128 if size == "base" else len(tokenizer)
    kind = {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}
    config = T5Config(vocab_size=vocab_size, decoder_start_token_id=0, **kind, **SIZES[size])
    T5ForConditionalGeneration(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
