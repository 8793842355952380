// Fields of Axolotl, LLaMA-Factory, ms-swift and torchtitan, one a row: what each changes of the
// options, what it is noted for, or why it is refused.
#include <doctest/doctest.h>

#include "models/trainer_config_reader.h"
#include "tests/models/file_settings.h"

using namespace plimsoll;
using namespace plimsoll::tests;

namespace {
models::FileSettings axolotl(const std::string& text) {
  return models::read_axolotl_config(text, "a");
}
models::FileSettings factory(const std::string& text) {
  return models::read_llamafactory_config(text, "l");
}
models::FileSettings swift(const std::string& text) {
  return models::read_swift_arguments(text, "s", 1);
}
models::FileSettings titan(const std::string& text) {
  return models::read_torchtitan_config(text, "t");
}
// The key that a setting is said to come from.
std::string key_of(const models::FileSettings& file, std::string_view option) {
  for (const models::FileSetting& one : file.settings)
    if (one.option == option) return one.key;
  return "";
}
}  // namespace

TEST_CASE("Axolotl: batch, precision and checkpoints, field by field") {
  const std::string base = "base_model: m\nattn_implementation: flash_attention_2\n";
  check_rows(
      axolotl, base,
      {{"batch_size: 12\nmicro_batch_size: 4\n", "grad-accum=3; micro-batch=4"},
       {"batch_size: 3\nmicro_batch_size: 4\n", "grad-accum=1; micro-batch=4"},
       {"batch_size: 12\nmicro_batch_size: 4\ngradient_accumulation_steps: 2\n",
        "grad-accum=2; micro-batch=4"},
       {"sequence_len: 600\n", "seq-len=600"},
       {"fp16: true\n", "param-dtype=fp16; precision=fp16-mixed"},
       {"bf16: true\n", "param-dtype=bf16; precision=bf16-mixed"},
       {"bf16: false\n", "param-dtype=fp32; precision=fp32"},
       {"bf16: false\nbfloat16: true\n", "param-dtype=bf16; precision=bf16-mixed"},
       {"bf16: false\nfp16: true\n", "param-dtype=fp16; precision=fp16-mixed"},
       {"bf16: false\nfloat16: true\n", "param-dtype=fp16; precision=fp16"},
       {"bf16: full\n", "unsupported: a: bf16 is \"full\": only true, false and auto are modelled"},
       {"gradient_checkpointing: false\n", "recompute=none"},
       {"gradient_checkpointing: true\n", "recompute=full; use-reentrant=yes"},
       {"gradient_checkpointing: true\ngradient_checkpointing_kwargs: {}\n",
        "recompute=full; use-reentrant=no"},
       {"gradient_checkpointing: true\ngradient_checkpointing_kwargs: {use_reentrant: true}\n",
        "recompute=full; use-reentrant=yes"},
       {"gradient_checkpointing: false\ngradient_checkpointing_kwargs: {use_reentrant: true}\n",
        "recompute=none"},
       {"unfrozen_parameters: [lm_head.weight, embed_tokens]\n",
        "freeze=*; train=lm_head.weight* embed_tokens*"},
       {"unfrozen_parameters: ['^norm$']\n", "freeze=*; train=norm"},
       {"unfrozen_parameters: [lm_head]\n",
        "unsupported: a: unfrozen_parameters is a list of 1: with lm_head in it Axolotl sends "
        "gradients down to the frozen embedding, which without gradient_checkpointing is not "
        "modelled"},
       {"unfrozen_parameters: ['a|b']\n",
        "unsupported: a: unfrozen_parameters is a list of 1: 'a|b': only names and their starts "
        "are modelled from this file; --freeze and --train take patterns"},
       {"resize_token_embeddings_to_32x: true\n",
        "note: a: resize_token_embeddings_to_32x: planned is the vocabulary of the model's "
        "config"}});
  for (const auto& [text, key] :
       {std::pair{"", "bf16"}, std::pair{"fp16: true\n", "fp16"},
        std::pair{"bf16: false\nbfloat16: true\n", "bfloat16"},
        std::pair{"bf16: false\nfloat16: true\n", "float16"},
        std::pair{"bf16: false\nbfloat16: true\nfp16: true\n", "bfloat16"}}) {
    CHECK(key_of(axolotl(base + text), "precision") == key);
    if (*text != '\0') CHECK(key_of(axolotl(base + text), "param-dtype") == key);
  }
  const auto attention = [](const std::string& text) {
    return said(axolotl("base_model: m\nbf16: false\n" + text)).at("attention");
  };
  CHECK(attention("flash_attention: true\n") == "flash-2");
  CHECK(attention("sdp_attention: true\n") == "flash");
  CHECK(attention("eager_attention: true\n") == "eager");
  CHECK(attention("sdp_attention: false\nflash_attention: true\n") == "flash-2");
  CHECK(attention("attn_implementation: sdpa\nflash_attention: true\n") == "flash");
}

TEST_CASE("Axolotl: kernels, ranks and adapters, field by field") {
  const std::string base = "base_model: m\nattn_implementation: flash_attention_2\n";
  const std::string plugin = "plugins: [axolotl.integrations.liger.LigerPlugin]\n";
  check_rows(
      axolotl, base,
      {{"liger_rope: true\n", "note: a: liger_…: not looked at without Liger's plugin"},
       {"liger_fused_linear_cross_entropy: true\n",
        "note: a: liger_…: not looked at without Liger's plugin"},
       {"plugins: [my.Plugin]\n", "unsupported: a: plugins: my.Plugin is not modelled yet"},
       {"tensor_parallel_size: 2\n", "tp=2"},
       {"tensor_parallel_size: 1\n", ""},
       {"context_parallel_size: 2\n", "cp=2"},
       {"sequence_parallel_degree: 4\n", "cp=4"},
       {"dp_replicate_size: 2\n",
        "bad: a: dp_replicate_size is 2, but dp_shard_size beside it is needed"},
       {"dp_replicate_size: 2\ndp_shard_size: 4\n", "shard-group=4"},
       {"dp_replicate_size: 1\ndp_shard_size: 4\n", ""},
       {"fsdp_version: 2\nfsdp_config: {fsdp_version: 2}\n",
        "bad: a: fsdp_version is 2, but one of it and of fsdp_config's is needed"},
       {"fsdp_version: 2\nfsdp_config: {version: 2}\n",
        "bad: a: fsdp_version is 2, but one of it and of fsdp_config's is needed"},
       {"fsdp_config: {fsdp_version: 2}\n", "fsdp-version=2; stack=pytorch; zero=(3)"},
       {"optimizer: adamw_torch\n", "optimizer=adamw; optimizer-impl=foreach"},
       {"load_in_8bit: true\n", "bad: a: load_in_8bit is true, but an adapter beside it is needed"},
       {"adapter: lora\nlora_r: 4\n",
        "bad: a: lora_alpha is missing, but a number, as adapter needs it, is needed"},
       {"adapter: ia3\n", "unsupported: a: adapter is \"ia3\": only lora and qlora are modelled"}});
  check_rows(
      axolotl, base + plugin,
      {{"liger_rope: true\nliger_rms_norm: true\nliger_swiglu: true\n", "kernels=liger; loss=full"},
       {"liger_cross_entropy: true\n",
        "unsupported: a: liger_cross_entropy is true: only "
        "liger_fused_linear_cross_entropy is modelled"},
       {"liger_rms_norm: true\nliger_glu_activation: true\n",
        "unsupported: a: plugins is a list of 1: of Liger's liger_rope, liger_rms_norm and "
        "liger_glu_activation all or none are modelled"},
       {"liger_rope: true\nliger_rms_norm: true\n",
        "unsupported: a: plugins is a list of 1: of Liger's liger_rope, liger_rms_norm and "
        "liger_glu_activation all or none are modelled"}});
  const std::string lora =
      base + "adapter: lora\nlora_r: 4\nlora_alpha: 9\nlora_target_modules: [q_proj, v_proj]\n";
  CHECK(said(axolotl(lora)).at("lora-targets") == "q_proj,v_proj");
  CHECK(said(axolotl(lora)).at("lora-dropout") == "(0)");
  check_rows(
      axolotl, lora,
      {{"load_in_8bit: true\n", "kbit-prep=no; quantize=int8"},
       {"load_in_4bit: true\n",
        "note: a: load_in_4bit: with adapter lora, not qlora, Axolotl leaves the base in 16 bits"},
       {"lora_target_linear: true\n", "lora-targets=all-linear"},
       {"lora_dropout: 0.25\n", "lora-dropout=0.25"},
       {"peft_autocast_adapter_dtype: true\n", ""},
       {"peft_autocast_adapter_dtype: false\n", "adapter-dtype=bf16"},
       {"lora_o_kernel: true\n",
        "unsupported: a: lora_o_kernel is true: Axolotl's kernels for adapters are not modelled "
        "yet"}});
}

TEST_CASE("LLaMA-Factory, field by field") {
  check_rows(
      factory, "model_name_or_path: m\nbf16: true\n",
      {{"lora_rank: 5\n", "lora-alpha=(10); lora-rank=5"},
       {"lora_alpha: 7\n", "lora-alpha=7"},
       {"lora_target: 'q_proj, v_proj'\n", "lora-targets=q_proj,v_proj"},
       {"use_unsloth: true\n", "kernels=unsloth"},
       {"use_liger_kernel: true\n", "kernels=liger"},
       {"flash_attn: sdpa\n", "attention=flash"},
       {"flash_attn: auto\n", ""},
       {"disable_gradient_checkpointing: true\n", "recompute=none"},
       {"disable_gradient_checkpointing: true\ngradient_checkpointing: true\n", "recompute=full"},
       {"disable_gradient_checkpointing: false\n", "recompute=full"},
       {"use_reentrant_gc: false\n", "use-reentrant=no"},
       {"stage: pt\n",
        "note: l: packing: planned are rows as long as cutoff_len, whether they hold one sample "
        "or many"},
       {"packing: true\n",
        "note: l: packing: planned are rows as long as cutoff_len, whether they hold one sample "
        "or many"},
       {"do_train: false\n", "unsupported: l: do_train is false: only training is modelled"},
       {"val_size: 0.1\n", "note: l: val_size: evaluation is not planned"},
       {"predict_with_generate: true\n",
        "note: l: predict_with_generate: evaluation is not planned"},
       {"quantization_bit: 8\n", "kbit-prep=no; quantize=int8"},
       {"quantization_bit: 3\n", "bad: l: quantization_bit is 3, but 4 or 8 is needed"},
       {"quantization_bit: 4\ndouble_quantization: false\n",
        "kbit-prep=no; quant-storage=bf16; quantize=nf4"},
       {"quantization_bit: 4\ndouble_quantization: false\nquantization_type: fp4\n",
        "kbit-prep=no; quant-storage=bf16; quantize=fp4"},
       {"quantization_bit: 4\nquantization_type: nf3\n",
        "bad: l: quantization_type is \"nf3\", but nf4 or fp4 is needed"},
       {"quantization_bit: 4\nquantization_type: fp4\n",
        "unsupported: l: quantization_type is \"fp4\": with double_quantization, its default, "
        "only nf4 is modelled"},
       {"quantization_bit: 4\nquantization_method: bitsandbytes\n",
        "kbit-prep=no; quant-storage=bf16; quantize=nf4-dq"},
       {"quantization_bit: 4\nquantization_method: bnb\n",
        "kbit-prep=no; quant-storage=bf16; quantize=nf4-dq"}});
  // fp16: the dtype of the weights and of what a packed base is stored in.
  check_rows(factory, "model_name_or_path: m\nfp16: true\nlora_rank: 8\n",
             {{"quantization_bit: 4\n", "kbit-prep=no; quant-storage=fp16; quantize=nf4-dq"},
              {"pure_bf16: true\n", "precision=bf16; -param-dtype"}});
  const auto half = factory("model_name_or_path: m\nfp16: true\nlora_rank: 8\n");
  CHECK(said(half).at("precision") == "fp16-mixed");
  CHECK(said(half).at("param-dtype") == "fp16");
  CHECK(notes(half) == "l: weights are loaded in the checkpoint's dtype: planned is fp16\n");
  CHECK(says(notes(factory("model_name_or_path: m\nbf16: true\n")),
             "l: finetuning_type is lora, of rank 8\n"));
}

TEST_CASE("ms-swift, field by field") {
  const std::string base = "model: m\ntorch_dtype: bfloat16\nmax_length: 2048\n";
  check_rows(
      swift, base,
      {{"per_device_train_batch_size: 16\n", "grad-accum=(1); micro-batch=16"},
       {"per_device_train_batch_size: 5\n", "grad-accum=(4); micro-batch=5"},
       {"per_device_train_batch_size: 17\n", "grad-accum=(1); micro-batch=17"},
       {"gradient_accumulation_steps: 3\n", "grad-accum=3"},
       {"packing_length: 4000\n", "seq-len=4000"},
       {"packing: true\n", "note: s: packing, padding_free: planned are rows that are full"},
       {"padding_free: true\n", "note: s: packing, padding_free: planned are rows that are full"},
       {"val_dataset: x\n", "note: s: val_dataset: evaluation is not planned"},
       {"split_dataset_ratio: 0.5\n", "note: s: split_dataset_ratio: evaluation is not planned"},
       {"tuner_backend: unsloth\n", "kernels=unsloth"},
       {"loss_type: default\n", ""},
       {"loss_scale: all\n", ""},
       {"fp16: true\n", "bad: s: fp16 is true, but only one of bf16 and fp16 is needed"},
       {"bf16: false\n", "precision=bf16"},
       {"gradient_checkpointing: false\n", "recompute=none; -use-reentrant"},
       {"gradient_checkpointing_kwargs: {use_reentrant: false}\n", "use-reentrant=no"},
       {"attn_impl: sdpa\n", "attention=flash"},
       {"lora_rank: 16\n", "lora-rank=16"},
       {"lora_alpha: 16\n", "lora-alpha=16"},
       {"lora_dropout: 0\n", "lora-dropout=0"},
       {"target_modules: [q_proj, v_proj]\n", "lora-targets=q_proj,v_proj"},
       {"lora_bias: none\n", ""},
       {"lora_dtype: float32\n", "adapter-dtype=fp32"},
       {"lora_dtype: float16\n",
        "unsupported: s: lora_dtype is \"float16\": only bfloat16 and float32 are modelled"},
       {"quant_bits: 4\n", "unsupported: s: quant_method is missing: only bnb is modelled"},
       {"quant_method: bnb\n", "bad: s: quant_bits is missing, but 4 or 8 is needed"},
       {"quant_method: bnb\nquant_bits: 8\n", "kbit-prep=no; quantize=int8"},
       {"quant_method: bnb\nquant_bits: 3\n", "bad: s: quant_bits is 3, but 4 or 8 is needed"},
       {"quant_method: bnb\nquant_bits: 4\nbnb_4bit_quant_storage: bfloat16\n",
        "kbit-prep=no; quant-storage=bf16; quantize=nf4-dq"},
       {"quant_method: bnb\nquant_bits: 4\nbnb_4bit_use_double_quant: false\n",
        "kbit-prep=no; quant-storage=(uint8); quantize=nf4"},
       {"quant_method: bnb\nquant_bits: 4\nbnb_4bit_use_double_quant: false\n"
        "bnb_4bit_quant_type: fp4\n",
        "kbit-prep=no; quant-storage=(uint8); quantize=fp4"},
       {"quant_method: bnb\nquant_bits: 4\nbnb_4bit_quant_type: fp4\n",
        "unsupported: s: bnb_4bit_quant_type is \"fp4\": with bnb_4bit_use_double_quant, its "
        "default, only nf4 is modelled"},
       {"quant_method: bnb\nquant_bits: 4\nbnb_4bit_quant_type: nf3\n",
        "bad: s: bnb_4bit_quant_type is \"nf3\", but nf4 or fp4 is needed"},
       {"quant_method: bnb\nquant_bits: 4\nbnb_4bit_quant_storage: int8\n",
        "bad: s: bnb_4bit_quant_storage is \"int8\", but uint8, bfloat16, float16 or float32 is "
        "needed"},
       {"ENV: {NPROC_PER_NODE: 2}\n", "gpus=2; grad-accum=(8); use-reentrant=(no)"},
       {"ENV: {NPROC_PER_NODE: '00016'}\n", "gpus=00016; grad-accum=(1); use-reentrant=(no)"},
       {"ENV: {NPROC_PER_NODE: '000016'}\n",
        "bad: s: ENV: NPROC_PER_NODE is \"000016\", but a number from 1 up is needed"},
       {"ENV: {NPROC_PER_NODE: 0}\n",
        "bad: s: ENV: NPROC_PER_NODE is 0, but a number from 1 up is needed"},
       {"ddp_bucket_cap_mb: 30\n", "bucket-cap-mb=30"},
       {"fsdp: fsdp2\n", "fsdp-version=2; recompute=full; stack=pytorch; zero=3; -use-reentrant"}});
}

TEST_CASE("ms-swift's DeepSpeed files by name, and which dtype it trains in") {
  const std::string base = "model: m\ntorch_dtype: bfloat16\nmax_length: 2048\n";
  // swift/config/zero2.json and its like.
  const auto preset = [&](const std::string& name) {
    return said(swift(base + "deepspeed: " + name + "\n")).at("deepspeed");
  };
  const std::string types = R"({"bf16": {"enabled": "auto"}, "fp16": {"enabled": "auto"}, )";
  const std::string buckets = R"(, "allgather_bucket_size": 2e8, "reduce_bucket_size": 2e8)";
  const std::string host = R"({"device": "cpu", "pin_memory": true})";
  CHECK(preset("zero0") ==
        types + R"("zero_optimization": {"stage": 0, "overlap_comm": false)" + buckets + "}}");
  CHECK(preset("zero2") ==
        types + R"("zero_optimization": {"stage": 2, "overlap_comm": false)" + buckets + "}}");
  CHECK(preset("zero2_offload") ==
        types + R"("zero_optimization": {"stage": 2, "overlap_comm": false)" + buckets +
            R"(, "offload_optimizer": )" + host + "}}");
  for (const char* path : {"zero1_offload", "zero2_offloaded", "zero", "zero4", "Zero2"})
    CHECK(preset(path) == path);
  CHECK(says(preset("zero3"), R"("stage": 3)"));
  CHECK_FALSE(says(preset("zero3"), "offload"));
  CHECK(says(preset("zero3_offload"), R"("offload_param": )" + host + "}}"));
  // base_args/model_args.py: fp32 weights are trained under fp16 unless it is denied.
  const auto in = [&](const std::string& text) {
    const Said all = said(swift("model: m\ntuner_type: full\n" + text));
    return all.at("precision") + " " + all.at("param-dtype");
  };
  CHECK(in("") == "(bf16-mixed) (bf16)");
  CHECK(in("torch_dtype: float16\n") == "fp16-mixed fp16");
  CHECK(in("torch_dtype: float32\nfp16: false\n") == "fp32 fp32");
  CHECK(in("torch_dtype: float32\nfp16: false\nbf16: true\n") == "bf16-mixed fp32");
  CHECK(key_of(swift(base), "precision") == "torch_dtype");
  CHECK(key_of(swift(base + "bf16: true\n"), "precision") == "bf16");
  CHECK(key_of(swift(base + "fp16: false\n"), "precision") == "fp16");
}

TEST_CASE("torchtitan, field by field") {
  check_rows(
      titan, "[activation_checkpoint]\nmode = 'none'\n",
      {{"[model]\nflavor = '8B'\n",
        "note: t: model.flavor 8B: llama-3.1-8b unless MODEL says another"},
       {"[model]\nflavor = '1B'\n",
        "note: t: model.flavor 1B: its dimensions are not known here; MODEL says them"},
       {"[training]\nglobal_batch_size = -1\n", ""},
       {"[training]\nmixed_precision_param = 'float32'\n", "precision=fp32"},
       {"[training]\nmixed_precision_param = 'float16'\n",
        "bad: t: [training]: mixed_precision_param is \"float16\", but float32 or bfloat16 is "
        "needed"},
       {"[training]\nmixed_precision_reduce = 'bfloat16'\n",
        "bad: t: [training]: mixed_precision_reduce is \"bfloat16\", but float32 is needed"},
       {"[training]\nenable_cpu_offload = true\n", "offload=params"},
       {"[optimizer]\nimplementation = 'for-loop'\n", "optimizer-impl=for-loop"},
       {"[optimizer]\nimplementation = 'foreach'\n", "optimizer-impl=foreach"},
       {"[optimizer]\nimplementation = 'slow'\n",
        "bad: t: [optimizer]: implementation is \"slow\", but fused, foreach or for-loop is "
        "needed"},
       {"[optimizer]\nearly_step_in_backward = true\n", "optimizer-in-backward="},
       {"[parallelism]\nfsdp_reshard_after_forward = 'never'\n", "zero=2"},
       {"[parallelism]\nfsdp_reshard_after_forward = 'always'\n", ""},
       {"[parallelism]\nfsdp_reshard_after_forward = 'often'\n",
        "bad: t: [parallelism]: fsdp_reshard_after_forward is \"often\", but default, always or "
        "never is needed"},
       {"[parallelism]\ndata_parallel_shard_degree = 4\n", "gpus=4; zero=3"},
       {"[parallelism]\ndata_parallel_shard_degree = 1\n", "gpus=1; zero=3"},
       {"[parallelism]\ndata_parallel_replicate_degree = 2\n",
        "unsupported: t: [parallelism]: data_parallel_shard_degree is missing: with "
        "data_parallel_replicate_degree a number is needed"},
       {"[parallelism]\ncontext_parallel_degree = 2\npipeline_parallel_degree = 3\n"
        "expert_parallel_degree = 4\ntensor_parallel_degree = 1\n",
        "cp=2; ep=4; pp=3"},
       {"[compile]\nenable = true\n", "compile=block"},
       {"[validation]\nenable = true\n",
        "note: t: of no bearing on memory: [validation]; note: t: validation.enable: evaluation "
        "is not planned"},
       {"[zzzzzzzz]\nx = 1\n", "bad: t: unknown section [zzzzzzzz]"}});
  CHECK(changed(titan, "[activation_checkpoint]\nmode = 'selective'\nselective_ac_option = 'op'\n",
                "[activation_checkpoints]\n") ==
        "bad: t: unknown section [activation_checkpoints]; did you mean [activation_checkpoint]?");
  CHECK(refusal(titan, "[activation_checkpoint]\nselective_ac_option = -2\n", kBad) ==
        "t: [activation_checkpoint]: selective_ac_option is -2: op, or a whole number of layers");
  CHECK(key_of(titan("[activation_checkpoint]\nmode = 'full'\n"), "zero") ==
        "parallelism.data_parallel_shard_degree");
}
