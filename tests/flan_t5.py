"""Flan-T5 architectures with random weights and a tokenizer of T5's kind, made without a hub."""

import random
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from tokenizers.trainers import UnigramTrainer
from transformers import PreTrainedTokenizerFast, T5Config, T5ForConditionalGeneration

from torchrl_glam.envs import GoalSpace
from torchrl_glam.envs.playground.vocabulary import OBJECTS
from torchrl_glam.text import PromptTemplate

SIZES = {
    "micro": {"d_model": 64, "d_kv": 16, "d_ff": 128, "num_layers": 2, "num_heads": 4},
    "base": {"d_model": 768, "d_kv": 64, "d_ff": 2048, "num_layers": 12, "num_heads": 12},
}


def make_tokenizer(vocabulary_size: int = 200) -> PreTrainedTokenizerFast:
    """A Unigram tokenizer that marks word starts and ends texts with ``</s>``, as T5's does.

    With few pieces it cuts words, so that prompts of six objects have about 90 tokens, which is
    what T5's own tokenizer gives.
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
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Replace("\n", " "), normalizers.Strip(left=True, right=True)]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    special = ["<pad>", "</s>", "<unk>"]
    tokenizer.train_from_iterator(
        texts,
        UnigramTrainer(
            vocab_size=vocabulary_size,
            special_tokens=special,
            unk_token="<unk>",
            show_progress=False,
        ),
    )
    tokenizer.post_processor = processors.TemplateProcessing(
        single="$A </s>", pair="$A </s> $B </s>", special_tokens=[("</s>", 1)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", eos_token="</s>", unk_token="<unk>"
    )


def make_flan_t5(folder: Path, size: str = "micro") -> Path:
    """Saves a model of Flan-T5's gated, untied architecture and its tokenizer to a folder."""
    tokenizer = make_tokenizer()
    config = T5Config(
        vocab_size=32128 if size == "base" else len(tokenizer),
        feed_forward_proj="gated-gelu",
        tie_word_embeddings=False,
        dropout_rate=0.1,
        pad_token_id=0,
        eos_token_id=1,
        decoder_start_token_id=0,
        **SIZES[size],
    )
    T5ForConditionalGeneration(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
