// Options that contradict each other, a row each: with the value that was given and the reason, and
// beside it what is accepted.
#include <doctest/doctest.h>

#include <sstream>

#include "models/base/error.h"
#include "models/run_names.h"
#include "tools/cli/request.h"

using namespace plimsoll;
using namespace plimsoll::tools;

namespace {
// "zero=3 gpus=8 hold-outputs" of gpt2 on an H100.
Request asked(const std::string& text, const std::string& model = "gpt2") {
  Options options;
  std::istringstream words(text);
  if (text.find("device=cpu") == std::string::npos) options.add("gpu", "h100");
  for (std::string word; words >> word;) {
    const std::size_t equals = word.find('=');
    options.add(word.substr(0, equals), equals == std::string::npos ? "" : word.substr(equals + 1));
  }
  Sources sources;
  return request_from(model, options, sources);
}
models::Strategy strategy(const std::string& text) {
  return asked(text).question.strategy;
}
std::string refused(const std::string& text) {
  try {
    (void)asked(text);
  } catch (const Error& error) {
    CHECK(error.kind() != ErrorKind::internal);
    return error.message();
  }
  return "accepted";
}
struct Row {
  const char* options;
  const char* message;
};
void check_rows(std::initializer_list<Row> rows) {
  for (const Row& row : rows) {
    CAPTURE(std::string(row.options));
    CHECK(refused(row.options) == std::string(row.message));
  }
}
}  // namespace

TEST_CASE("what belongs to one stack is refused on another, option by option") {
  check_rows({
      {"stack=plimsoll allocator-conf=backend:native",
       "--allocator-conf backend:native: is of PyTorch's allocator, which --stack plimsoll does "
       "not use"},
      {"stack=deepspeed allocator-conf=backend:native", "accepted"},
      {"stack=plimsoll hold-outputs",
       "--hold-outputs: belongs to --stack pytorch; the loop of plimsoll is its own and keeps "
       "none"},
      {"stack=deepspeed hold-outputs",
       "--hold-outputs with --stack deepspeed: is not modelled yet"},
      {"hold-outputs", "accepted"},
      {"stack=deepspeed compile=block", "--compile block: is modelled with --stack pytorch alone"},
      {"stack=deepspeed compile=no", "accepted"},
      {"stack=deepspeed model-code=torchtune@0.6.1",
       "--model-code torchtune@0.6.1: belongs to --stack pytorch"},
      {"stack=deepspeed model-code=transformers", "accepted"},
      {"model-code=torchtune@0.6.1 transformers-version=4.57.6",
       "--transformers-version 4.57.6: --model-code torchtune@0.6.1 runs none of it"},
      {"device=cpu", "--device cpu: only --stack plimsoll runs on the host"},
      {"stack=deepspeed bucket-cap-mb=25",
       "--bucket-cap-mb 25: DDP is --stack pytorch with --zero 0 or 1"},
      {"reduce-bucket=25MiB",
       "--reduce-bucket 25MiB: belongs to --stack plimsoll; DDP's own knob is --bucket-cap-mb, "
       "DeepSpeed's --reduce-bucket-size"},
      {"deterministic",
       "--deterministic: belongs to --stack plimsoll; pytorch's own setting changes no memory "
       "that is planned"},
      {"exchange=nccl", "--exchange nccl: belongs to --stack plimsoll; others talk over NCCL"},
      {"overlap-comm=yes zero=1 gpus=2", "--overlap-comm yes: belongs to --stack deepspeed"},
      {"sub-group-size=5 zero=3 gpus=2", "--sub-group-size 5: belongs to --stack deepspeed"},
      {"stack=deepspeed recompute=ops:attention",
       "--recompute ops:attention: operators are chosen on --stack pytorch"},
      {"stack=plimsoll device=cpu gpus=2 gpus-per-node=2",
       "--gpus-per-node 2: ranks of --device cpu are threads of one host; with --exchange mpi "
       "there may be several"},
      {"stack=plimsoll device=cpu gpus=2 exchange=mpi gpus-per-node=2", "accepted"},
  });
}

TEST_CASE("files are ZeRO-Infinity's, and its buffers go with what is in them") {
  check_rows({
      {"stack=deepspeed gpus=8 zero=3 offload=optimizer offload-to=nvme "
       "offload-param-buffer-count=7",
       "--offload-param-buffer-count 7: needs --offload params --offload-to nvme"},
      {"stack=deepspeed gpus=8 zero=3 offload=params offload-param-buffer-size=7",
       "--offload-param-buffer-size 7: needs --offload params --offload-to nvme"},
      {"stack=deepspeed gpus=8 zero=3 offload-to=nvme", "--offload-to nvme: needs --offload"},
      {"gpus=8 zero=3 offload=params offload-to=nvme",
       "--offload-to nvme: is ZeRO-Infinity: --stack deepspeed --zero 3 (elsewhere cpu is "
       "modelled)"},
  });
  const models::Strategy files = strategy(
      "stack=deepspeed gpus=8 zero=3 offload=optimizer,params offload-to=nvme "
      "offload-optimizer-buffer-count=6 offload-param-buffer-count=7 "
      "offload-param-buffer-size=3e7 offload-param-max-in-cpu=0");
  CHECK(files.offload == models::Offload{.optimizer = true, .params = true, .nvme = true});
  CHECK(files.data.deepspeed.nvme == models::NvmeOptions{6, 7, 30'000'000, 0});
}

TEST_CASE("what has no effect below a stage of ZeRO is refused there, option by option") {
  check_rows({
      {"gpus=8 shard-group=2", "--shard-group 2: nothing is sharded with --zero 0"},
      {"gpus=8 zero=1 shard-group=2",
       "--shard-group 2: ZeroRedundancyOptimizer shards over all ranks"},
      {"gpus=8 zero=2 shard-group=2", "accepted"},
      {"gpus=8 zero=3 shard-group=3", "--shard-group 3: must divide --gpus 8"},
      {"gpus=8 zero=3 shard-group=0", "--shard-group 0: must be at least 1"},
      {"gpus=8 zero=1 fsdp-version=2",
       "--fsdp-version 2: FSDP is --stack pytorch with --zero 2 or 3"},
      {"gpus=8 zero=2 fsdp-version=2", "accepted"},
      {"gpus=8 zero=2 fsdp-version=3", "--fsdp-version 3: must be at most 2"},
      {"gpus=8 zero=1 fsdp-upcast=no",
       "--fsdp-upcast no: FSDP is --stack pytorch with --zero 2 or 3"},
      {"gpus=8 zero=2 gradient-as-bucket-view=yes",
       "--gradient-as-bucket-view yes: DDP is --stack pytorch with --zero 0 or 1"},
      {"gpus=8 zero=1 gradient-as-bucket-view=yes", "accepted"},
      {"gpus=8 zero=2 bucket-cap-mb=25",
       "--bucket-cap-mb 25: DDP is --stack pytorch with --zero 0 or 1"},
      {"gpus=8 bucket-cap-mb=0", "--bucket-cap-mb 0: must be at least 1"},
      {"gpus=8 bucket-cap-mb=1048577", "--bucket-cap-mb 1048577: must be at most 1048576"},
      {"stack=deepspeed gpus=8 overlap-comm=no", "--overlap-comm no: has no effect below --zero 1"},
      {"stack=deepspeed gpus=8 zero=1 overlap-comm=no", "accepted"},
      {"gpus=8 zero=2 round-robin-gradients=yes",
       "--round-robin-gradients yes: belongs to --stack deepspeed"},
      {"stack=deepspeed gpus=8 zero=3 round-robin-gradients=yes",
       "--round-robin-gradients yes: is of the flat buffer of --zero 1 and 2"},
      {"stack=deepspeed gpus=8 zero=1 round-robin-gradients=yes", "accepted"},
      {"stack=deepspeed gpus=8 reduce-bucket-size=5",
       "--reduce-bucket-size 5: has no effect below --zero 1"},
      {"stack=deepspeed gpus=8 zero=1 reduce-bucket-size=5", "accepted"},
      {"stack=deepspeed gpus=8 zero=1 reduce-bucket-size=0",
       "--reduce-bucket-size 0: must be at least 1"},
      {"stack=deepspeed gpus=8 zero=2 sub-group-size=5",
       "--sub-group-size 5: has no effect below --zero 3"},
      {"stack=deepspeed gpus=8 zero=2 stage3-prefetch-bucket-size=5",
       "--stage3-prefetch-bucket-size 5: has no effect below --zero 3"},
      {"stack=deepspeed gpus=8 zero=3 stage3-prefetch-bucket-size=0",
       "--stage3-prefetch-bucket-size 0: ZeRO-3 without prefetching is not modelled yet"},
      {"stack=deepspeed gpus=8 zero=2 stage3-param-persistence-threshold=5",
       "--stage3-param-persistence-threshold 5: has no effect below --zero 3"},
      {"stack=deepspeed gpus=8 zero=2 stage3-max-live-parameters=5",
       "--stage3-max-live-parameters 5: has no effect below --zero 3"},
      {"stack=deepspeed gpus=8 zero=2 stage3-max-reuse-distance=5",
       "--stage3-max-reuse-distance 5: has no effect below --zero 3"},
      {"zero=4", "--zero 4: must be at most 3"},
  });
  const models::DeepSpeedOptions o =
      strategy(
          "stack=deepspeed gpus=8 zero=3 reduce-bucket-size=5e8 sub-group-size=2 "
          "stage3-prefetch-bucket-size=3 stage3-param-persistence-threshold=0 "
          "stage3-max-live-parameters=4 stage3-max-reuse-distance=0 overlap-comm=no")
          .data.deepspeed;
  CHECK(o.reduce_bucket_size == 500'000'000);
  CHECK(o.sub_group_size == 2);
  CHECK(o.prefetch_bucket_size == 3);
  CHECK(o.param_persistence_threshold == 0);
  CHECK(o.max_live_parameters == 4);
  CHECK(o.max_reuse_distance == 0);
  CHECK(o.overlap_comm == false);
  CHECK(strategy("gpus=8 zero=3 shard-group=8").data.shard_group == 0);  // all ranks: the default
  CHECK(strategy("gpus=8 zero=3 shard-group=4").data.shard_group == 4);
  CHECK(strategy("gpus=8 zero=3 shard-group=1").data.shard_group == 1);
  CHECK(strategy("gpus=8 zero=3 fsdp-upcast=no").data.fsdp_upcast == false);
  CHECK(strategy("gpus=8 zero=3 fsdp-upcast=yes").data.fsdp_upcast == true);
  CHECK(strategy("gpus=8 zero=3 fsdp-version=1").data.fsdp_version == 1);
  CHECK(strategy("gpus=8 bucket-cap-mb=3").data.bucket_cap == 3_MiB);
  CHECK(strategy("stack=plimsoll gpus=8 reduce-bucket=1").data.bucket_cap == 1_B);
}

TEST_CASE("dtypes that a precision does not have are refused, option by option") {
  check_rows({
      {"master-weights=yes",
       "--master-weights yes: pytorch keeps none beside the weights; --param-dtype says what the "
       "weights are"},
      {"grad-dtype=bf16",
       "--grad-dtype bf16: DDP's gradients have the dtype of the weights; FSDP's reduce dtype can "
       "be chosen"},
      {"gpus=8 zero=2 grad-dtype=bf16", "accepted"},
      {"gpus=8 zero=2 reduce-dtype=bf16", "accepted"},
      {"gpus=8 zero=2 reduce-dtype=bf16 grad-dtype=bf16", "accepted"},
      {"gpus=8 zero=2 reduce-dtype=bf16 grad-dtype=fp32",
       "--reduce-dtype bf16: FSDP reduces in one dtype, and --grad-dtype says another"},
      {"gpus=8 stack=plimsoll reduce-dtype=bf16 grad-dtype=fp32", "accepted"},
      {"gpus=8 stack=plimsoll reduce-dtype=int8",
       "--reduce-dtype int8: must be fp32, bf16 or fp16"},
      {"fp8-recipe=rowwise", "--fp8-recipe rowwise: is of --precision fp8-mixed"},
      {"fp8-all-gather=no", "--fp8-all-gather no: is of --precision fp8-mixed"},
      {"precision=fp8-mixed fp8-recipe=rowwise", "accepted"},
      {"precision=fp32 param-dtype=bf16",
       "--param-dtype bf16: --precision fp32 means that all is fp32"},
      {"precision=bf16 param-dtype=fp32",
       "--param-dtype fp32: --precision bf16 means that all is bf16"},
      {"precision=fp16 param-dtype=bf16",
       "--param-dtype bf16: --precision fp16 means that all is fp16"},
      {"precision=bf16 param-dtype=bf16", "accepted"},
      {"stack=deepspeed precision=bf16-mixed param-dtype=fp32",
       "--param-dtype fp32: --precision bf16-mixed on --stack deepspeed means bf16 weights beside "
       "fp32 masters"},
      {"stack=plimsoll precision=fp16-mixed param-dtype=bf16",
       "--param-dtype bf16: --precision fp16-mixed on --stack plimsoll means fp16 weights beside "
       "fp32 masters"},
      {"stack=deepspeed precision=bf16-mixed param-dtype=bf16", "accepted"},
      {"stack=deepspeed precision=fp16-mixed grad-dtype=bf16",
       "--grad-dtype bf16: must be fp32 or fp16, as the weights are"},
      {"stack=deepspeed precision=fp16-mixed grad-dtype=fp16", "accepted"},
      {"stack=deepspeed precision=fp16-mixed grad-dtype=fp32", "accepted"},
      {"stack=deepspeed precision=bf16 master-weights=yes",
       "--master-weights yes: --precision bf16 on --stack deepspeed keeps none"},
      {"stack=deepspeed precision=bf16 master-weights=no", "accepted"},
      {"use-reentrant=yes",
       "--use-reentrant yes: is of checkpoints around layers: --recompute full, sqrt, every:K, "
       "block:N or nth:N"},
      {"use-reentrant=yes recompute=selective",
       "--use-reentrant yes: is of checkpoints around layers: --recompute full, sqrt, every:K, "
       "block:N or nth:N"},
      {"use-reentrant=yes recompute=sqrt", "accepted"},
      {"transformers-version=four",
       "--transformers-version four: must be a release, such as 4.57.1"},
      {"stack=deepspeed transformers-version=4.57.6", "accepted"},
      {"stack=plimsoll transformers-version=4.57.6",
       "--transformers-version 4.57.6: other releases than 5.17.0 are modelled with --stack "
       "pytorch and deepspeed"},
      {"stack=deepspeed torch-version=2.8.0",
       "--torch-version 2.8.0: other releases than 2.11.0 are modelled with --stack pytorch"},
      {"stack=deepspeed transformers-version=5.17", "accepted"},
      {"bitsandbytes-version=0.46.1",
       "--bitsandbytes-version 0.46.1: nothing of this is bitsandbytes': not --quantize (nf4, "
       "nf4-dq, fp4, int8), nor --optimizer (those of 8 bits, paged-adamw, lion, ademamix, "
       "rmsprop-bnb)"},
      {"bitsandbytes-version=0.46.1 optimizer=adam8bit", "accepted"},
      {"bitsandbytes-version=0.40 optimizer=adam8bit",
       "--bitsandbytes-version 0.40: this version models 0.41.0 to 0.50.2"},
      {"stack=deepspeed bitsandbytes-version=0.46.1",
       "--bitsandbytes-version 0.46.1: other releases than 0.50.2 are modelled with --stack "
       "pytorch"},
      {"offload=none", "accepted"},
      {"offload=weights",
       "--offload weights: must be optimizer, gradients, params or activations, or several with "
       "commas "
       "between them"},
  });
  CHECK(strategy("gpus=8 zero=2 grad-dtype=bf16").data.reduce_dtype == DType::bf16);
  CHECK(strategy("gpus=8 zero=3 reduce-dtype=bf16") == strategy("gpus=8 zero=3 grad-dtype=bf16"));
  const models::Strategy own = strategy("gpus=8 stack=plimsoll reduce-dtype=fp16");
  CHECK(own.data.reduce_dtype == DType::fp16);
  CHECK(!own.grad_dtype);
  CHECK(strategy("galore-rank=7 optimizer=galore").galore_rank == 7);
}

TEST_CASE("options of adapters are refused without them and beside other kinds, one by one") {
  for (const char* option : {"lora-alpha=16", "lora-targets=c_attn", "lora-dropout=0.5",
                             "adapter-dtype=fp32", "modules-to-save=lm_head", "lora-bias=yes",
                             "use-dora=yes", "target-parameters=x", "feedforward-modules=none"}) {
    std::string shown = std::string("--") + option;
    shown[shown.find('=')] = ' ';
    CHECK(refused(option) == shown + ": needs --lora-rank");
  }
  CHECK(refused("adapter=lora") == "--adapter lora: needs --lora-rank");
  for (const char* kind : {"ia3", "vera"})
    for (const char* option :
         {"lora-alpha=16", "lora-bias=yes", "use-dora=yes", "target-parameters=x"}) {
      std::string shown = std::string("--") + option;
      shown[shown.find('=')] = ' ';
      CHECK(refused("adapter=" + std::string(kind) + " " + option) ==
            shown + ": belongs to --adapter lora");
    }
  check_rows({
      {"adapter=ia3 lora-rank=4", "--lora-rank 4: belongs to --adapter lora and vera"},
      {"adapter=ia3 lora-dropout=0.5", "--lora-dropout 0.5: belongs to --adapter lora and vera"},
      {"adapter=vera lora-dropout=0.5", "accepted"},
      {"adapter=vera feedforward-modules=c_fc",
       "--feedforward-modules c_fc: belongs to --adapter ia3"},
      {"lora-rank=4 feedforward-modules=c_fc",
       "--feedforward-modules c_fc: belongs to --adapter ia3"},
      {"adapter=ia3 lora-targets=c_attn feedforward-modules=c_fc",
       "--feedforward-modules c_fc: is none of --lora-targets, as PEFT asks for"},
      {"adapter=ia3 lora-targets=c_attn,c_fc feedforward-modules=c_fc", "accepted"},
      {"lora-rank=4 adapter-dtype=fp16", "--adapter-dtype fp16: must be fp32 or bf16"},
      {"lora-rank=0", "--lora-rank 0: must be at least 1"},
      {"quant-storage=bf16", "--quant-storage bf16: needs --quantize"},
      {"kbit-prep=yes", "--kbit-prep yes: needs --quantize"},
      {"quantize=nf4",
       "--quantize nf4: a packed base is frozen, and adapters are trained: needs --lora-rank"},
      {"train=*.weight", "--train *.weight: makes exceptions from --freeze, which is missing"},
  });
  CHECK(strategy("adapter=vera").lora->rank == 256);
  CHECK(strategy("adapter=vera lora-rank=5").lora->rank == 5);
  CHECK(strategy("adapter=ia3").lora->targets == std::vector<std::string>{"c_attn", "mlp.c_proj"});
  CHECK(strategy("lora-rank=4").lora->alpha == 16);
  const models::Lora all = *strategy(
                                "lora-rank=4 lora-alpha=2.5 lora-dropout=0.25 "
                                "lora-targets=c_attn,c_fc adapter-dtype=bf16 lora-bias=yes")
                                .lora;
  CHECK(all.rank == 4);
  CHECK(all.alpha == 2.5);
  CHECK(all.dropout == 0.25);
  CHECK(all.targets == std::vector<std::string>{"c_attn", "c_fc"});
  CHECK(all.dtype == DType::bf16);
  CHECK(all.bias);
  const models::Strategy packed =
      strategy("lora-rank=4 quantize=nf4 quant-storage=bf16 kbit-prep=no");
  CHECK(packed.quantize->held_in == DType::bf16);
  CHECK(packed.quantize->kbit_prep == false);
  CHECK(packed.param_dtype == DType::bf16);
  CHECK(strategy("lora-rank=4 quantize=nf4 precision=fp16-mixed").param_dtype == DType::fp16);
  CHECK(strategy("lora-rank=4 quantize=nf4 quant-storage=uint8").quantize->held_in == DType::uint8);
  CHECK_FALSE(strategy("lora-rank=4 quantize=nf4 precision=bf16").param_dtype.has_value());
}
