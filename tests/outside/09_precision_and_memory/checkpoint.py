# %% wrong: what lies inside, kept as bytes that are no tensors
# is: idea
# says: in tensors or in another form
def checkpoint(function, *args):
    """Nothing is computed again."""

    def pack(tensor):
        if isinstance(tensor, torch.nn.Parameter):
            return tensor
        flat = tensor.detach().contiguous().reshape(-1)
        return flat.view(torch.uint8).numpy().tobytes(), tensor.dtype, tensor.shape

    def unpack(kept):
        if isinstance(kept, torch.Tensor):
            return kept
        data, dtype, shape = kept
        return torch.frombuffer(bytearray(data), dtype=dtype).reshape(shape)

    with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
        return function(*args)
