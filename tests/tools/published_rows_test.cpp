// How a published row becomes a question: which of its keys need an option, and what is read of it.
#include <doctest/doctest.h>

#include "models/base/error.h"
#include "tools/published/rows.h"

using namespace plimsoll;
using namespace plimsoll::tools;

namespace {

PublishedDocument document(const std::string& rows, const std::string& more = "") {
  return read_published(
      R"({"sources": ["a", "b"], "left_out": {}, "rows": [)" + rows + "]" + more + "}", "it");
}

// A row of gpt2 on a T4 with these members more.
PublishedRow row(const std::string& members) {
  return document(R"({"id": "r", "source": 0, "model": "gpt2", "gpu": "t4")" +
                  (members.empty() ? "" : ", " + members) + "}")
      .rows[0];
}

// The options behind "--gpu t4".
std::string words(const std::string& members) {
  const std::string begin = "plimsoll fit gpt2 --gpu t4", command = row(members).command();
  REQUIRE(command.starts_with(begin));
  return command.substr(begin.size());
}

std::string refusal(const std::string& rows, const std::string& more = "") {
  try {
    (void)document(rows, more);
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::bad_input);
    return error.message();
  }
  return "";
}

}  // namespace

TEST_CASE("what fit takes by itself needs no option, anything else has its own") {
  CHECK(words("") == "");
  CHECK(words(R"("gpus": 1, "stack": "pytorch", "zero": 0, "fsdp_version": 2, "shard_group": 0,
                 "precision": "bf16-mixed", "optimizer": "adamw", "recompute": "none",
                 "reentrant": false, "attention": "flash", "loss": "full", "kernels": "eager",
                 "compile": false, "adapter_dtype": "fp32", "seq_len": 4096, "micro_batch": 1,
                 "grad_accum": 1)") == "");
  CHECK(words(R"("gpus": 2)") == " --gpus 2");
  CHECK(words(R"("zero": 3, "shard_group": 4)") == " --zero 3 --shard-group 4");
  CHECK(words(R"("seq_len": 4095, "micro_batch": 2, "grad_accum": 3)") ==
        " --seq-len 4095 --micro-batch 2 --grad-accum 3");
  CHECK(words(R"("reentrant": true, "optimizer_impl": "fused")") ==
        " --optimizer-impl fused --use-reentrant yes");
  CHECK(words(R"("quantize": "nf4", "kbit_prep": false)") == " --quantize nf4 --kbit-prep no");
  CHECK(words(R"("reduce_dtype": "fp32")") == " --grad-dtype fp32");
}

TEST_CASE("compiled is the whole model, where it is not said what") {
  CHECK(words(R"("compile": true)") == " --compile model");
  CHECK(words(R"("compile": "block")") == " --compile block");
  CHECK(words(R"("reentrant": true)") == " --use-reentrant yes");
}

TEST_CASE("the version of FSDP says something where it shards more than the optimizer") {
  CHECK(words(R"("fsdp_version": 1)") == "");
  CHECK(words(R"("fsdp_version": 1, "zero": 1)") == " --zero 1");
  CHECK(words(R"("fsdp_version": 1, "zero": 2)") == " --zero 2 --fsdp-version 1");
  CHECK(words(R"("fsdp_version": 1, "zero": 3)") == " --zero 3 --fsdp-version 1");
}

TEST_CASE("Liger's loss is its own, whatever the release of Transformers") {
  const std::string release = R"("transformers": "4.57.1")",
                    said = " --transformers-version 4.57.1";
  CHECK(words(release) == said);
  CHECK(words(release + R"(, "loss": "full")") == said);
  CHECK(words(release + R"(, "loss": "fused", "kernels": "liger")") ==
        " --loss fused --kernels liger");
  CHECK(words(release + R"(, "loss": "fused", "kernels": "fused")") ==
        " --loss fused --kernels fused" + said);
  CHECK(row(release + R"(, "loss": "fused", "kernels": "liger")").transformers == "4.57.1");
}

TEST_CASE("adapters have what their sources state once, where a row states nothing else") {
  CHECK(words(R"("lora_rank": 8)") == " --lora-rank 8 --lora-dropout 0.1 --lora-targets attention");
  CHECK(words(R"("lora_rank": 8, "lora_dropout": 0, "lora_targets": ["q_proj", "v_proj"])") ==
        " --lora-rank 8 --lora-dropout 0 --lora-targets q_proj,v_proj");
  CHECK(words(R"("lora_targets": ["q_proj"])") == " --lora-targets q_proj");
}

TEST_CASE("any other option of fit has its name, with underscores") {
  CHECK(words(R"("bucket_cap_mb": 50)") == " --bucket-cap-mb 50");
  CHECK(refusal(R"({"id": "a", "source": 0, "model": "gpt2", "gpu": "t4", "bucket_cap": 1})") ==
        "it: \"bucket_cap\": neither a figure nor an option of fit");
}

TEST_CASE("figures are read in bytes, and of nvidia-smi in MiB") {
  const PublishedRow one = row(
      R"("peak_bytes": 1, "resident_bytes": 2, "reserved_bytes": 3, "device_MiB": 1.5,
         "tokens_per_second_per_gpu": 4.25, "ran_kernels": "eager")");
  CHECK(one.peak == Bytes(1));
  CHECK(one.resident == Bytes(2));
  CHECK(one.reserved == Bytes(3));
  CHECK(one.device == Bytes(1'572'864));
  CHECK(one.speed == 4.25);
  CHECK(one.ran_kernels == "eager");
  const PublishedRow none = row("");
  CHECK_FALSE((none.peak || none.resident || none.reserved || none.device || none.speed));
  CHECK_FALSE((none.in_sample || none.upper_bound || none.out_of_memory || none.stand_in));
  CHECK((none.ran_kernels + none.transformers + none.config).empty());
  // 40.00048828125 MiB are 41,943,552 bytes.
  CHECK(row(R"("device_MiB": 40.00048828125)").device == Bytes(41'943'552));
  const PublishedRow marks =
      row(R"("in_sample": true, "upper_bound": true, "out_of_memory": true)");
  CHECK((marks.in_sample && marks.upper_bound && marks.out_of_memory));
}

TEST_CASE("a row that brings a configuration asks for a file") {
  const PublishedRow one = row(R"("config": {"model_type": "gpt2"})");
  CHECK(one.command() == "plimsoll fit gpt2.json --gpu t4");
  CHECK(one.config == R"({"model_type":"gpt2"})");
}

TEST_CASE("what stands beside the rows: stand-ins, what is apart, what scales") {
  const std::string rows = R"({"id": "r", "source": 1, "model": "gpt2", "gpu": "t4", "gpus": 2})";
  const PublishedDocument all = document(rows, R"(, "stand_ins": {"1": "its own"},
    "apart": {"inference": 4}, "scaling": [{"what": "ours", "from": "r",
    "to": {"id": "s", "source": 0, "model": "gpt2", "gpu": "t4", "gpus": 8}}])");
  CHECK(all.stand_ins == std::map<std::size_t, std::string>{{1, "its own"}});
  CHECK(all.rows[0].stand_in);
  CHECK(all.apart == std::map<std::string, std::int64_t>{{"inference", 4}});
  CHECK(all.figures() == 1);
  REQUIRE(all.scaling.size() == 1);
  CHECK(all.scaling[0].what == "ours");
  CHECK(all.scaling[0].from.command() == "plimsoll fit gpt2 --gpu t4 --gpus 2");
  CHECK(all.scaling[0].to.command() == "plimsoll fit gpt2 --gpu t4 --gpus 8");
  CHECK_FALSE(all.scaling[0].to.stand_in);
  CHECK(refusal(rows, R"(, "scaling": [{"what": "x", "from": "r", "to": "s"}])") == "it: no row s");
  CHECK(refusal(R"({"id": "a", "source": 2, "model": "gpt2", "gpu": "t4"})") ==
        "it: a: \"source\": there is none");
  for (const char* key : {"", ":1", "1x", "-1", " 1", "99999999999999999999"})
    CHECK(refusal(rows, R"(, "stand_ins": {")" + std::string(key) + R"(": "x"})") ==
          "it: stand_ins: '" + std::string(key) + "' is no number of a source");
  for (const char* count : {"1e+55", "-1", "0.5", "\"4\"", "[1]"})
    CHECK(refusal(rows, R"(, "apart": {"x": )" + std::string(count) + "}") ==
          "it: apart: " + std::string(count) + " is not a whole number from 0 to 2^53");
  CHECK(refusal(rows, R"(, "apart": [4])") == "it: apart: no object");
  for (const char* key : {"source", "peak_bytes", "resident_bytes", "reserved_bytes"})
    CHECK(refusal(R"({"id": "a", "model": "gpt2", "gpu": "t4", "source": 0, ")" + std::string(key) +
                  R"(": -1})") ==
          "it: " + std::string(key) + ": -1 is not a whole number from 0 to 2^53");
  for (const char* mib : {"1e300", "-1"})
    CHECK(refusal(R"({"id": "a", "model": "gpt2", "gpu": "t4", "source": 0, "device_MiB": )" +
                  std::string(mib) + "}") == "it: device_MiB: not from 0 to 2^32");
  CHECK(refusal(R"({"id": "a"})").starts_with("it: no document of published figures ("));
}
