// A training run's own command line, as options.
#include "tools/cli/launch_line.h"

#include <doctest/doctest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "models/run_names.h"
#include "tests/scratch_folder.h"
#include "tools/cli/command_line.h"
#include "tools/cli/request.h"

using namespace plimsoll;
using namespace plimsoll::tools;
using plimsoll::test::ScratchFolder;

namespace {
using Given = std::vector<std::pair<std::string, std::string>>;

Options options(const std::string& line, const Given& given = {}) {
  Options out;
  out.add("gpu", "h100");
  for (const auto& [name, value] : given) out.add(name, value);
  std::istringstream in(line);
  std::vector<std::string> words;
  for (std::string word; in >> word;) words.push_back(word);
  add_launch_line(words, out);
  return out;
}
Request request(const std::string& line, const Given& given = {}) {
  Sources sources;
  return request_from("gpt2", options(line, given), sources);
}
std::string refusal(const std::string& line, const Given& given = {}) {
  try {
    (void)request(line, given);
  } catch (const Error& error) {
    return error.message();
  }
  return "accepted";
}
std::string notes(const std::string& line) {
  std::string out;
  for (const std::string& note : request(line).notes) out += note + "\n";
  return out;
}
bool says(const std::string& message, std::string_view part) {
  return message.find(part) != std::string::npos;
}
}  // namespace

TEST_CASE("torchrun's ranks and the script's TrainingArguments are options") {
  const models::Strategy s =
      request(
          "OMP_NUM_THREADS=8 torchrun --nnodes=2 --nproc-per-node 4 --rdzv_backend c10d "
          "train.py --per_device_train_batch_size 2 --bf16 --gradient-checkpointing True "
          "--block_size=512 --fsdp full_shard")
          .question.strategy;
  CHECK(s.gpus == 8);
  CHECK(s.gpus_per_node == 4);
  CHECK(s.precision == models::Precision::bf16_mixed);
  CHECK(s.recompute.kind == models::RecomputeKind::full);
  CHECK(s.data.zero == 3);
  CHECK(request("torchrun --nproc_per_node 8 train.py --block_size 512").question.batch.seq_len ==
        512);
}

TEST_CASE("accelerate launch: its arguments go before its file") {
  const ScratchFolder folder;
  const std::string file = folder.write(
      "c.yaml", "distributed_type: MULTI_GPU\nnum_processes: 2\nmixed_precision: fp16\n");
  const models::Strategy s =
      request("accelerate launch --config_file " + file + " --num_processes 4 -m my.train --seed 1")
          .question.strategy;
  CHECK(s.gpus == 4);
  CHECK(s.precision == models::Precision::fp16_mixed);
  const models::Strategy deepspeed =
      request("accelerate launch --use_deepspeed --zero_stage 3 --num_processes 4 t.py --bf16")
          .question.strategy;
  CHECK(deepspeed.stack == models::Stack::deepspeed);
  CHECK(deepspeed.data.zero == 3);
}

TEST_CASE("deepspeed's and python's own ways to say how many ranks there are") {
  CHECK(request("deepspeed --num_gpus 4 t.py --seed 1").question.strategy.gpus == 4);
  CHECK(request("deepspeed --include localhost:0,1,3 t.py").question.strategy.gpus == 3);
  CHECK(request("python3.11 -u t.py --seed 1").question.strategy.gpus == 1);
  CHECK(request("python -m torch.distributed.run --nproc_per_node=2 t.py").question.strategy.gpus ==
        2);
  CHECK(request("python -m pkg.train --fp16").question.strategy.precision ==
        models::Precision::fp16_mixed);
}

TEST_CASE("what the line says that nobody understands is listed, and a foreign script's all") {
  const std::string said =
      notes("CUDA_HOME=/x torchrun --nproc_per_node 2 t.py data --bf16 --dataset_name wiki");
  CHECK(says(said, "variables that are not looked at: CUDA_HOME"));
  CHECK(says(said, "words for t.py that are not looked at: data"));
  CHECK(says(said, "not looked at: dataset_name"));
  // nanoGPT: no HF defaults hold where no HF argument stands.
  const Request foreign = request("torchrun --nproc_per_node=8 train.py --batch_size=12");
  CHECK(foreign.question.batch.micro_batch == 1);
  CHECK(says(notes("torchrun --nproc_per_node=8 train.py --batch_size=12"),
             "for none is of TrainingArguments: batch_size"));
}

TEST_CASE("a number on a line is argparse's, not YAML's") {
  CHECK(request("python t.py --per_device_train_batch_size 010").question.batch.micro_batch == 10);
}

TEST_CASE("the allocator's variable before the command is --allocator-conf") {
  CHECK(request("PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True python t.py")
            .question.strategy.allocator.expandable_segments);
}

TEST_CASE("a line that contradicts an option, is cut short or unknown is refused") {
  CHECK(says(refusal("torchrun --nproc_per_node 8 t.py", {{"gpus", "4"}}),
             "the launch line: --nproc_per_node says --gpus 8, but --gpus 4 is given"));
  CHECK(says(refusal("torchrun --nproc_per_node 8 t.py --fp16", {{"precision", "bf16-mixed"}}),
             "--precision bf16-mixed, but the launch line says fp16-mixed (fp16)"));
  CHECK(says(refusal("torchrun --nproc_per_nod 8 t.py"), "did you mean --nproc_per_node?"));
  CHECK(says(refusal("torchrun --nproc_per_node gpu t.py"), "a positive whole number"));
  CHECK(says(refusal("torchrun --nproc_per_node 8"), "names no script"));
  CHECK(says(refusal("torchrun --nproc_per_node"), "needs a value"));
  CHECK(says(refusal("bash train.sh"), "is no launcher that is known"));
  CHECK(says(refusal("deepspeed t.py"), "--num_gpus or --gpus says how many"));
  CHECK(says(refusal("accelerate launch t.py"), "--num_processes or --gpus says how many"));
  CHECK(says(refusal("torchrun --nnodes 1:4 t.py"), "a fixed number is needed"));
  CHECK(says(refusal("python t.py --bf16 --fp16"), "only one of bf16 and fp16"));
  CHECK(says(refusal(""), "a command is missing behind --"));
  CHECK(says(refusal("python t.py --torch_compile"),
             "the launch line: torch_compile: --compile model: a model compiled as one graph is "
             "not modelled "
             "yet (block is)"));
}

TEST_CASE("training programs by their own commands, and as scripts of a launcher") {
  const ScratchFolder folder;
  const auto file = [&](const char* name, const char* text) {
    return folder.write(name, text).string();
  };
  const std::string axolotl = file(
      "a.yml", "base_model: gpt2\nattn_implementation: flash_attention_2\nsequence_len: 256\n");
  const std::string factory = file(
      "l.yaml", "model_name_or_path: gpt2\nfinetuning_type: full\nbf16: true\ncutoff_len: 512\n");
  const std::string titan =
      file("t.toml", "[activation_checkpoint]\nmode = 'full'\n[training]\nseq_len = 512\n");

  for (const std::string& line :
       {"axolotl train " + axolotl +
            " --micro-batch-size 2 --launcher torchrun -- "
            "--nproc-per-node 4",
        "axolotl train " + axolotl + " --micro-batch-size=2 -- --num_processes 4",
        "accelerate launch --num_processes 4 -m axolotl.cli.train " + axolotl +
            " --micro_batch_size 2"}) {
    CAPTURE(line);
    const planner::Question q = request(line).question;
    CHECK(q.strategy.gpus == 4);
    CHECK(q.batch.micro_batch == 2);
    CHECK(q.batch.seq_len == 256);
    CHECK(q.strategy.param_dtype == DType::bf16);
  }
  const planner::Question f =
      request("NNODES=2 NPROC_PER_NODE=4 FORCE_TORCHRUN=1 llamafactory-cli train " + factory +
              " cutoff_len=128")
          .question;
  CHECK(f.strategy.gpus == 8);
  CHECK(f.strategy.gpus_per_node == 4);
  CHECK(f.batch.seq_len == 128);
  CHECK(f.strategy.allocator.expandable_segments);  // launcher.py, OPTIM_TORCH
  CHECK_FALSE(request("CUDA_VISIBLE_DEVICES=0 llamafactory-cli train " + factory)
                  .question.strategy.allocator.expandable_segments);
  CHECK(request("torchrun --nproc_per_node 2 src/train.py " + factory).question.batch.seq_len ==
        512);
  const planner::Question s =
      request(
          "NPROC_PER_NODE=2 swift sft --model gpt2 --tuner_type full --torch_dtype bfloat16 "
          "--max_length 64 --deepspeed zero2 --dataset a b --system 'You'")
          .question;
  CHECK(s.strategy.gpus == 2);
  CHECK(s.strategy.data.zero == 2);
  CHECK(s.batch.grad_accum == 8);
  // One name by itself is a list, too.
  CHECK(request("swift sft --model gpt2 --modules_to_save wpe")
            .question.strategy.lora->modules_to_save == std::vector<std::string>{"wpe"});
  const models::Strategy frozen =
      request(
          "swift sft --model gpt2 --tuner_type full --torch_dtype bfloat16 --freeze_parameters "
          "transformer.h.1. transformer.wte --trainable_parameters transformer.h.11.")
          .question.strategy;
  CHECK(frozen.freeze == std::vector<std::string>{"transformer.h.1.*", "transformer.wte*"});
  CHECK(frozen.train == std::vector<std::string>{"transformer.h.11.*"});
  CHECK(says(notes("swift sft --model gpt2 --max_length 64"), "ms-swift 4.6's defaults hold"));
  const Options t = options("torchrun --nproc_per_node=8 -m torchtitan.train --job.config_file " +
                            titan + " --training.seq_len 256 --training.local_batch_size=2");
  CHECK(t.find("gpus") != nullptr);
  CHECK(says(*t.find("torchtitan"), R"("seq_len":256)"));
  CHECK(says(*t.find("torchtitan"), R"("local_batch_size":2)"));
  CHECK(says(*t.find("torchtitan"), R"("mode":"full")"));

  CHECK(says(refusal("axolotl preprocess " + axolotl), "only axolotl train is planned"));
  CHECK(says(refusal("axolotl train " + axolotl), "--num_processes or --gpus says how many"));
  CHECK(says(refusal("axolotl train " + axolotl + " --launcher ray"), "--launcher ray"));
  CHECK(says(refusal("swift rlhf --model gpt2"), "only swift sft pt is planned"));
  CHECK(says(refusal("CUDA_VISIBLE_DEVICES=0,1 swift sft --model gpt2"), "splits the model"));
  CHECK(says(refusal("NPROC_PER_NODE=x swift sft --model gpt2"), "NPROC_PER_NODE=x"));
  CHECK(says(refusal("llamafactory-cli train " + factory), "--gpus says how many"));
  CHECK(says(refusal("torchrun -m torchtitan.train --training.seq_len 5"), "--job.config_file"));
}

TEST_CASE("a trainer is known by its file, its command under a launcher, or its own arguments") {
  const ScratchFolder folder;
  const std::string path =
      folder.write("a.yml",
                   "base_model: gpt2\ndatasets: [{path: x}]\nmicro_batch_size: 3\n"
                   "sequence_len: 512\nattn_implementation: flash_attention_2\n");
  // The files that Axolotl 0.4 came with were started as finetune.py or train.py.
  CHECK(request("accelerate launch --num_processes 1 finetune.py " + path)
            .question.batch.micro_batch == 3);
  const Options swift = options("torchrun --nproc_per_node 4 /opt/bin/swift sft --model gpt2");
  CHECK(*swift.find("gpus") == "4");
  CHECK(says(*swift.find("swift"), "\"model\":\"gpt2\""));
  CHECK(options("torchrun --nproc_per_node 4 src/train.py --cutoff_len 9").has("llamafactory"));
  // A script that is merely called so takes what its command does not.
  CHECK(says(notes("torchrun --nproc_per_node 4 swift --batch 3"), "none is of TrainingArguments"));
}

TEST_CASE("Megatron-LM's arguments are refused, not left out") {
  CHECK(says(refusal("torchrun --nproc_per_node 8 pretrain_gpt.py --bf16 --micro-batch-size 4 "
                     "--tensor-model-parallel-size 2"),
             "tensor_model_parallel_size of pretrain_gpt.py: Megatron-LM's arguments are not"));
  CHECK(says(refusal("USE_MCA=1 NPROC_PER_NODE=2 llamafactory-cli train --model_name_or_path gpt2"),
             "the launch line: USE_MCA=1: is not modelled yet"));
  CHECK(says(refusal("deepspeed --num_gpus 8 pretrain_gpt.py --pipeline-model-parallel-size 1"),
             "pipeline_model_parallel_size of pretrain_gpt.py"));
}

TEST_CASE("DeepSpeed's own --deepspeed --deepspeed_config is its file") {
  const ScratchFolder folder;
  const std::string path =
      folder.write("ds.json", R"({"train_micro_batch_size_per_gpu": 3, "bf16": {"enabled": true},
                                "zero_optimization": {"stage": 2}})");
  for (const char* others : {"", " --learning_rate 1e-4 --epochs 3"}) {
    const auto question =
        request("deepspeed --num_gpus 8 train.py --deepspeed --deepspeed_config " + path + others)
            .question;
    CHECK(question.strategy.stack == models::Stack::deepspeed);
    CHECK(question.strategy.data.zero == 2);
    CHECK(question.batch.micro_batch == 3);
  }
  CHECK(says(notes("deepspeed --num_gpus 8 t.py --deepspeed_config " + path + " --fp16"),
             "not looked at, for DeepSpeed's engine is no Trainer's: fp16"));
}

TEST_CASE("what stands behind -- is the launch line, whatever it looks like") {
  const CommandLine line = parse_arguments(
      commands()[0], {"gpt2", "--gpus", "2", "--", "torchrun", "--nproc_per_node", "2", "--help"});
  CHECK(line.argument == "gpt2");
  CHECK(line.text.empty());
  CHECK(line.launch == std::vector<std::string>{"torchrun", "--nproc_per_node", "2", "--help"});
}
