"""Writing with a trained GPT: one byte after the other, each drawn from the model's probabilities.

A token is a byte, so any text is a prompt. Every byte is a forward of all bytes before it, at most `context`:
no keys and values are kept from one to the next.

Seen with the 0.8M GPT (tied=False) after 600 steps of 8 x 128 bytes of `library_text`, by AdamW at 1e-3: the
loss of the last batch is 1.94 nats a byte, after 100 steps it was 2.6. After b"def " the model writes the
look of Python and no Python. At temperature 0 it writes "the the the". At 0.8 and 1 it writes indented
lines, `self`, `if`, brackets, `#`, and words as long as English ones, few of which exist. AdamW at 3e-3
without warm-up ends at 2.4. With 16 rows a step the loss is 1.83, and the text looks the same. SGD with
momentum stays at 2.7 with 0.05, and writes spaces; with 0.3 it is NaN within 100 steps.
"""

from __future__ import annotations

import torch

from course_lib.models import GPT


@torch.no_grad()
def generate(
    model: GPT, prompt: bytes, count: int, seed: int = 0, temperature: float = 1.0
) -> bytes:
    """The `count` bytes that the model writes after `prompt`.

    model: with a vocabulary of 256, whole, on one device; call `model.eval()` first if it has dropout.
    temperature: logits are divided by it. Near 0 the likeliest byte always comes, and 0 stands for that.
    seed: of the draws; the same numbers give the same bytes on one machine.

    Cost: `count` forwards of up to `context` tokens, about 2 N FLOPs a token of each. Raises ValueError for
    an empty prompt, and a temperature below 0.
    """
    if not prompt or temperature < 0:
        raise ValueError(
            f"prompt={prompt!r}, temperature={temperature}: a byte or more, and 0 or more"
        )
    device, context = next(model.parameters()).device, model.config.context
    generator, text = torch.Generator().manual_seed(seed), list(prompt)
    for _ in range(count):
        logits = model(torch.tensor([text[-context:]], device=device))[0, -1].cpu().double()
        if temperature == 0:
            text.append(int(logits.argmax()))
        else:
            chances = (logits / temperature).softmax(0)
            text.append(int(torch.multinomial(chances, 1, generator=generator)))
    return bytes(text[len(prompt) :])
