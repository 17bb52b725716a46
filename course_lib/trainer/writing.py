"""Writing with a trained GPT: one byte after the other, each drawn from the model's probabilities.

A token is a byte, so any text can be a prompt. Every new byte takes a forward of the bytes before it, at most
`context` of them, because no keys and values are kept from one forward to the next.

We tried the 0.8M GPT (tied=False) after 600 steps of 8 x 128 bytes of `library_text`, with AdamW at 1e-3. The
loss of the last batch is 1.94 nats per byte, and was 2.6 after 100 steps. After b"def " the model writes text
that looks like Python but is not. At temperature 0 it writes "the the the". At 0.8 and 1 it writes indented
lines, `self`, `if`, brackets, `#`, and words as long as English words, few of which exist. AdamW at 3e-3
without warm-up ends at 2.4. With 16 rows per step the loss is 1.83, but the text looks the same. SGD with
momentum stays at 2.7 with 0.05, and writes spaces. With 0.3 it is NaN within 100 steps.
"""

from __future__ import annotations

import torch

from course_lib.models import GPT


@torch.no_grad()
def generate(
    model: GPT, prompt: bytes, count: int, seed: int = 0, temperature: float = 1.0
) -> bytes:
    """The `count` bytes the model writes after `prompt`.

    model: has a vocabulary of 256 and is whole, on one device; call `model.eval()` first if it has dropout.
    temperature: divides the logits. Near 0 the likeliest byte is always drawn, and 0 stands for that.
    seed: for the draws; equal arguments give the same bytes on one machine.

    Cost: `count` forwards of up to `context` tokens each, about 2 N FLOPs per token. Raises ValueError for an
    empty prompt, and for a temperature below 0.
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
