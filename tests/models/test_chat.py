"""Prompts of chat models: goal and observation are the user's turn, the action is the answer."""

import pytest
import torch
from families import ACTIONS, GOALS, OBSERVATIONS, make_model
from tensordict import TensorDict
from tokenizers import processors
from transformers import Qwen2Tokenizer

from torchrl_glam.models import make_trunk
from torchrl_glam.text import PromptTemplate, TokenizeText, check_composition, encode_text

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
# As Llama 2 writes it, with the start of the text in the template and a space before the answer.
INST = (
    "{{ bos_token }}{% for m in messages %}{% if m.role == 'user' %}[INST] {{ m.content }} [/INST]"
    "{% else %} {{ m.content }}{{ eos_token }}{% endif %}{% endfor %}"
)
# Without anything between the name of the turn and its text.
GLUED = "{% for m in messages %}<|im_start|>{{ m.role }}{{ m.content }}{% endfor %}"


def make_tokenizer(chat_template):
    """Of Qwen's kind, byte by byte; it puts <s> before every text."""
    special = {"pad_token": "<pad>", "bos_token": "<s>", "eos_token": "<|im_end|>"}
    texts = [*GOALS, *OBSERVATIONS, "user assistant [INST] [/INST] Goal: Action:", "assistantGrasp"]
    options = {"new_special_tokens": ["<|im_start|>"], "show_progress": False}
    tokenizer = Qwen2Tokenizer(**special).train_new_from_iterator(texts, 400, **options)
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", tokenizer.bos_token_id)]
    )
    tokenizer.chat_template = chat_template
    return tokenizer


def chat_tokens(tokenizer, goal, observation, action):
    """Tokens before the answer, and of the answer, from the tokenizer's own rendering."""
    question = {"role": "user", "content": f"Goal: {goal}\n{observation}\nAction:"}
    turns = [question, {"role": "assistant", "content": action}]
    rendered = tokenizer.apply_chat_template(turns, tokenize=False)
    until = rendered.rindex(action)
    before = rendered[:until].rstrip(" ")  # a space belongs to the answer
    ids = tokenizer(rendered[: until + len(action)], add_special_tokens=False).input_ids
    start = len(tokenizer(before, add_special_tokens=False).input_ids)
    return ids[:start], ids[start:]


@pytest.mark.parametrize("chat_template", [CHATML, INST], ids=["chatml", "inst"])
@pytest.mark.parametrize("family", ["qwen2", "llama"])
def test_scores_are_those_of_the_answer(family, chat_template):
    tokenizer = make_tokenizer(chat_template)
    model = make_model(family, tokenizer)
    template = PromptTemplate().as_chat(tokenizer)
    trunk = make_trunk(model, tokenizer, template)
    texts = {"goal": GOALS, "observation": OBSERVATIONS, "actions": ACTIONS}
    states = TensorDict({key: encode_text(words) for key, words in texts.items()}, [3])
    tokenize = TokenizeText(tokenizer, goal_length=60, action_length=24, template=template)
    states["action_mask"] = mask = (states["actions"] != 0).any(-1)
    out = trunk(tokenize(states))
    for state, action in mask.nonzero().tolist():
        texts = GOALS[state], OBSERVATIONS[state], ACTIONS[state][action]
        before, answer = chat_tokens(tokenizer, *texts)
        assert before.count(tokenizer.bos_token_id) == (chat_template == INST)
        prompt, read = trunk.prompt(out["goal_tokens"], out["observation_tokens"])
        assert prompt[state, read[state]].tolist() == before
        logits = model(input_ids=torch.tensor([before + answer])).logits[0].log_softmax(-1)
        expected = sum(logits[len(before) - 1 + i, token] for i, token in enumerate(answer))
        score = out["log_likelihood"][state, action]
        torch.testing.assert_close(score, expected, atol=1e-4, rtol=0)


def test_an_answer_that_melts_into_the_chat_is_refused():
    tokenizer = make_tokenizer(GLUED)
    template = PromptTemplate().as_chat(tokenizer)
    examples = list(zip(GOALS, OBSERVATIONS, strict=True))
    with pytest.raises(ValueError, match="does not compose.*actions, start at white space"):
        check_composition(tokenizer, template, examples, ["Grasp"])


@pytest.mark.parametrize(
    ("chat_template", "message"),
    [
        (None, "has no chat template"),
        ("{% for m in messages %}{{ m.content | upper }}{% endfor %}", "as they stand"),
        ("{{ messages[0].content }}", "as they stand"),
        (
            "{% for m in messages %}{{ m.content | length }} {{ m.content }}{% endfor %}",
            "changes the text",
        ),
    ],
)
def test_templates_that_are_no_frame_are_refused(chat_template, message):
    with pytest.raises(ValueError, match=message):
        PromptTemplate().as_chat(make_tokenizer(chat_template))
