"""The tiny models and adapters of numerics_goldens.py: configs as the hub has them, what the weights are
stored as, and what else is said of them."""
import torch

LLAMA_LIKE = {"hidden_size": 32, "intermediate_size": 56, "num_hidden_layers": 2,
              "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64,
              "hidden_act": "silu"}
# Without a padding token: torch gives its row of the embedding no gradient.
# Older files of the hub say rope_theta and rope_scaling, those that Transformers 5 writes say
# rope_parameters; both forms are here. The fields are those of a config.json, no more.
MODELS = {
    "gpt2": {
        "config": {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "vocab_size": 257,
                   "n_embd": 36, "n_layer": 2, "n_head": 3, "n_positions": 40,
                   "activation_function": "gelu_new", "layer_norm_epsilon": 1e-5,
                   "initializer_range": 0.02, "attn_pdrop": 0.0, "embd_pdrop": 0.0,
                   "resid_pdrop": 0.0, "bos_token_id": 256, "eos_token_id": 256},
        "stored": torch.float32},
    "llama": {
        "config": {"model_type": "llama", "architectures": ["LlamaForCausalLM"], **LLAMA_LIKE,
                   "vocab_size": 259, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
                   "rope_scaling": {"rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0,
                                    "high_freq_factor": 4.0,
                                    "original_max_position_embeddings": 16},
                   "tie_word_embeddings": False, "initializer_range": 0.02,
                   "torch_dtype": "bfloat16"},
        "stored": torch.bfloat16},
    "mistral": {
        "config": {"model_type": "mistral", "architectures": ["MistralForCausalLM"], **LLAMA_LIKE,
                   "vocab_size": 256, "sliding_window": 5, "rms_norm_eps": 1e-6,
                   "rope_theta": 1000.0, "tie_word_embeddings": False,
                   "initializer_range": 0.02, "torch_dtype": "float16"},
        "stored": torch.float16},
    "qwen2": {
        "config": {"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"], **LLAMA_LIKE,
                   "vocab_size": 261, "rms_norm_eps": 1e-6, "rope_theta": 1000000.0,
                   "use_sliding_window": False, "tie_word_embeddings": True,
                   "initializer_range": 0.02},
        "stored": torch.float32, "shards": 3},
    "qwen3": {
        "config": {"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], **LLAMA_LIKE,
                   "vocab_size": 263, "head_dim": 12, "rms_norm_eps": 1e-6,
                   "attention_bias": False,
                   "rope_parameters": {"rope_type": "default", "rope_theta": 1000000.0},
                   "tie_word_embeddings": True, "initializer_range": 0.02, "dtype": "bfloat16"},
        "stored": torch.bfloat16},
    "olmo2": {
        "config": {"model_type": "olmo2", "architectures": ["Olmo2ForCausalLM"], **LLAMA_LIKE,
                   "vocab_size": 258, "rms_norm_eps": 1e-6, "rope_theta": 500000.0,
                   "attention_bias": False, "tie_word_embeddings": False,
                   "initializer_range": 0.02, "pad_token_id": None},
        "stored": torch.float32},
    "granite": {
        "config": {"model_type": "granite", "architectures": ["GraniteForCausalLM"], **LLAMA_LIKE,
                   "vocab_size": 260, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
                   "attention_multiplier": 0.25, "embedding_multiplier": 6.0,
                   "residual_multiplier": 0.375, "logits_scaling": 4.0, "attention_bias": False,
                   "mlp_bias": False, "tie_word_embeddings": True, "initializer_range": 0.02},
        "stored": torch.bfloat16},
    "gpt_bigcode": {
        "config": {"model_type": "gpt_bigcode", "architectures": ["GPTBigCodeForCausalLM"],
                   "vocab_size": 257, "n_embd": 36, "n_layer": 2, "n_head": 3, "n_positions": 40,
                   "multi_query": True, "activation_function": "gelu_pytorch_tanh",
                   "layer_norm_epsilon": 1e-5, "initializer_range": 0.02, "attn_pdrop": 0.0,
                   "embd_pdrop": 0.0, "resid_pdrop": 0.0, "bos_token_id": 256,
                   "eos_token_id": 256},
        "stored": torch.float32},
    "gemma": {
        "config": {"model_type": "gemma", "architectures": ["GemmaForCausalLM"], **LLAMA_LIKE,
                   "hidden_act": "gelu_pytorch_tanh", "hidden_activation": "gelu_pytorch_tanh",
                   "head_dim": 12, "vocab_size": 264, "rms_norm_eps": 1e-6,
                   "rope_theta": 10000.0, "attention_bias": False, "tie_word_embeddings": True,
                   "initializer_range": 0.02, "pad_token_id": None},
        "stored": torch.bfloat16},
}
# A layer with a window and a rotation of its own, and one without, in the hub's fields.
MODELS["gemma3"] = {
    "config": {**MODELS["gemma"]["config"], "model_type": "gemma3_text",
               "architectures": ["Gemma3ForCausalLM"],
               "rope_theta": 1000000.0, "rope_local_base_freq": 100.0,
               "rope_scaling": {"rope_type": "linear", "factor": 8.0},
               "sliding_window": 5, "sliding_window_pattern": 2, "query_pre_attn_scalar": 20},
    "stored": torch.bfloat16}
# Caps that bite at these sizes; a layer with a window and one without.
MODELS["gemma2"] = {
    "config": {**MODELS["gemma"]["config"], "model_type": "gemma2",
               "architectures": ["Gemma2ForCausalLM"], "sliding_window": 5,
               "query_pre_attn_scalar": 20, "attn_logit_softcapping": 0.5,
               "final_logit_softcapping": 1.0},
    "stored": torch.bfloat16}
# Galactica's activation: ReLU's gradient jumps, and roundings to bf16 go across.
MODELS["opt"] = {
    "config": {"model_type": "opt", "architectures": ["OPTForCausalLM"], "vocab_size": 257,
               "hidden_size": 36, "ffn_dim": 52, "num_hidden_layers": 2, "num_attention_heads": 3,
               "max_position_embeddings": 40, "word_embed_proj_dim": 36,
               "activation_function": "gelu", "dropout": 0.0, "attention_dropout": 0.0,
               "do_layer_norm_before": True, "init_std": 0.02, "pad_token_id": None,
               "bos_token_id": 256, "eos_token_id": 256},
    "stored": torch.float16}
# Half of each head is rotated; q, k and v in one product, gate and up in another.
MODELS["phi3"] = {
    "config": {"model_type": "phi3", "architectures": ["Phi3ForCausalLM"], **LLAMA_LIKE,
               "vocab_size": 262, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
               "partial_rotary_factor": 0.5, "sliding_window": None, "resid_pdrop": 0.0,
               "embd_pdrop": 0.0, "original_max_position_embeddings": 64,
               "tie_word_embeddings": False, "initializer_range": 0.02, "pad_token_id": None,
               "bos_token_id": 1, "eos_token_id": 2},
    "stored": torch.bfloat16}
# The branches side by side, each behind a norm of its own; q, k and v by head; GELU by erf.
MODELS["gpt_neox"] = {
    "config": {"model_type": "gpt_neox", "architectures": ["GPTNeoXForCausalLM"],
               "vocab_size": 257, "hidden_size": 36, "num_hidden_layers": 2,
               "num_attention_heads": 3, "intermediate_size": 52, "max_position_embeddings": 40,
               "hidden_act": "gelu", "rotary_pct": 0.5, "rotary_emb_base": 1000,
               "layer_norm_eps": 1e-5, "use_parallel_residual": True, "attention_bias": True,
               "hidden_dropout": 0.0, "attention_dropout": 0.0, "initializer_range": 0.02,
               "tie_word_embeddings": False, "bos_token_id": 0, "eos_token_id": 0},
    "stored": torch.float16}
# The same behind one norm, grouped keys; a head with a bias.
MODELS["phi"] = {
    "config": {"model_type": "phi", "architectures": ["PhiForCausalLM"], **LLAMA_LIKE,
               "hidden_act": "gelu_new", "vocab_size": 258, "partial_rotary_factor": 0.5,
               "rope_theta": 10000.0, "layer_norm_eps": 1e-5, "resid_pdrop": 0.0,
               "embd_pdrop": 0.0, "attention_dropout": 0.0, "qk_layernorm": False,
               "initializer_range": 0.02, "tie_word_embeddings": False, "pad_token_id": None,
               "bos_token_id": 1, "eos_token_id": 2},
    "stored": torch.float32}
# Two of four experts a token; scores that add up to 1. Seeds under which no token is near to another
# choice: roundings to bf16 must not change it.
MODELS["mixtral"] = {
    "config": {"model_type": "mixtral", "architectures": ["MixtralForCausalLM"], **LLAMA_LIKE,
               "vocab_size": 259, "num_local_experts": 4, "num_experts_per_tok": 2,
               "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "sliding_window": None,
               "output_router_logits": False, "router_jitter_noise": 0.0,
               "tie_word_embeddings": False, "initializer_range": 0.02, "pad_token_id": None,
               "bos_token_id": 1, "eos_token_id": 2},
    "stored": torch.bfloat16, "seed": 71}
# The same with norms of q and k; scores are probabilities among all of six experts.
MODELS["qwen3_moe"] = {
    "config": {"model_type": "qwen3_moe", "architectures": ["Qwen3MoeForCausalLM"], **LLAMA_LIKE,
               "vocab_size": 261, "head_dim": 12, "num_experts": 6, "num_experts_per_tok": 2,
               "moe_intermediate_size": 20, "norm_topk_prob": False, "decoder_sparse_step": 1,
               "mlp_only_layers": [], "rms_norm_eps": 1e-6, "rope_theta": 10000.0,
               "attention_bias": False, "use_sliding_window": False,
               "output_router_logits": False, "tie_word_embeddings": False,
               "initializer_range": 0.02, "pad_token_id": None},
    "stored": torch.bfloat16, "seed": 90}
ADAPTERS = {
    "llama-lora": {"base": "llama", "r": 4, "lora_alpha": 6, "target_modules": "all-linear"},
    "gpt2-lora": {"base": "gpt2", "r": 3, "lora_alpha": 8, "fan_in_fan_out": True,
                  "target_modules": ["c_attn", "c_fc", "mlp.c_proj"]},
}
