#include <doctest/doctest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "models/checkpoint_check.h"
#include "models/model_catalog.h"
#include "models/model_reader.h"
#include "models/safetensors_reader.h"
#include "tests/scratch_folder.h"

using namespace plimsoll;
using models::Checkpoint;
using models::CheckpointCheck;
using models::Difference;
using models::DifferenceKind;
using models::ModelSpec;
using plimsoll::test::ScratchFolder;
namespace fs = std::filesystem;

namespace {
std::string with_length(const std::string& header, std::uint64_t length) {
  std::string bytes;
  for (int i = 0; i < 8; ++i) bytes += static_cast<char>(length >> (8 * i) & 0xff);
  return bytes + header;
}

std::string file_of(const std::string& header, std::size_t data) {
  return with_length(header, header.size()) + std::string(data, '\0');
}

std::string refusal(const std::string& bytes) {
  const ScratchFolder folder;
  try {
    (void)models::read_safetensors_header(folder.write("x.safetensors", bytes));
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::bad_input);
    CHECK(error.message().size() < 400);
    return error.message();
  }
  return "accepted";
}

void check_refused(const std::string& bytes, const std::string& part) {
  const std::string message = refusal(bytes);
  CHECK_MESSAGE(message.find(part) != std::string::npos, message);
}

// A checkpoint with exactly the model's tensors.
Checkpoint checkpoint_of(const ModelSpec& model, const std::string& dtype) {
  Checkpoint checkpoint;
  checkpoint.source = "made up";
  for (const models::ParameterRow& row : model.parameters) {
    if (row.tied) continue;
    REQUIRE(row.ranges.size() <= 1);
    for (std::int64_t i = 0; i < row.instances(); ++i)
      checkpoint.tensors.push_back(
          {models::expand(row.name, {i}),
           dtype,
           {row.shape.axes.begin(), row.shape.axes.begin() + row.shape.rank}});
  }
  return checkpoint;
}

const Difference* of_kind(const CheckpointCheck& check, DifferenceKind kind) {
  const auto it = std::ranges::find(check.differences, kind, &Difference::kind);
  return it == check.differences.end() ? nullptr : &*it;
}
}  // namespace

TEST_CASE("a safetensors header is read, its data is not") {
  const ScratchFolder folder;
  // 2 * 3 * 2 bytes, 1 * 4 bytes.
  const std::string header =
      R"({"__metadata__": {"format": "pt"}, "b": {"dtype": "BF16", "shape": [2, 3],
          "data_offsets": [4, 16]}, "a": {"dtype": "F32", "shape": [], "data_offsets": [0, 4]}})";
  const Checkpoint checkpoint =
      models::read_safetensors_header(folder.write("x.safetensors", file_of(header, 16)));
  REQUIRE(checkpoint.tensors.size() == 2);
  CHECK(checkpoint.tensors[0].name == "a");
  CHECK(checkpoint.tensors[0].elements() == Count(1));
  CHECK(checkpoint.tensors[1].shape == std::vector<std::int64_t>{2, 3});
  CHECK(checkpoint.elements() == Count(7));
  // Data begins after 8 bytes of length and the header, and b's 4 bytes later.
  const auto data = static_cast<std::int64_t>(8 + header.size());
  CHECK(checkpoint.tensors[0].begin == data);
  CHECK(checkpoint.tensors[1].begin == data + 4);
  CHECK(checkpoint.tensors[1].file == (folder.path() / "x.safetensors").string());
}

TEST_CASE("a truncated or hostile safetensors file gives one clear error") {
  check_refused("", "8 bytes of length");
  check_refused("abc", "8 bytes of length");
  check_refused(with_length("", 0), "not JSON");
  check_refused(with_length("{", 2), "a header of 2 bytes in a file of 9");
  check_refused(with_length("{}", ~0ULL), "not safetensors: a header of 18446744073709551615");
  check_refused(with_length("{}", 99'000'000), "truncated");
  check_refused(file_of("{", 0), "not JSON");
  check_refused(file_of("[]", 0), "not a JSON object");
  check_refused(file_of(std::string(100'000, '['), 0), "nested deeper than 256");
  check_refused(file_of(R"({"a": 1})", 0), "tensor 'a'");
  check_refused(file_of(R"({"a": {"dtype": "F32", "shape": [-1], "data_offsets": [0, 4]}})", 4),
                "whole numbers");
  check_refused(file_of(R"({"a": {"dtype": "F32", "shape": [2], "data_offsets": [8, 0]}})", 8),
                "no range");
  check_refused(file_of(R"({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}})", 7),
                "truncated: tensor 'a' ends at byte 8 of the data, the file has 7");
  check_refused(file_of(R"({"a": {"dtype": "F32", "shape": [3], "data_offsets": [0, 8]}})", 8),
                "do not fit dtype and shape");
  check_refused(file_of(R"({"a": {"dtype": "F32", "shape": [4294967296, 4294967296],
                            "data_offsets": [0, 8]}})",
                        8),
                "overflow");
  check_refused(file_of(R"({"a": {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]},
                            "b": {"dtype": "U8", "shape": [4], "data_offsets": [3, 7]}})",
                        7),
                "overlap");
}

TEST_CASE("an index is read with its files, and by names alone without them") {
  const ScratchFolder folder;
  folder.write("model.safetensors.index.json",
               R"({"metadata": {"total_size": 8}, "weight_map": {"a": "one.safetensors"}})");
  const auto names = models::find_checkpoint(folder.path());
  REQUIRE(names.has_value());
  CHECK(!names->has_shapes);
  CHECK(names->total_bytes == Bytes(8));
  CHECK(names->tensors[0].name == "a");
  folder.write("one.safetensors",
               file_of(R"({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}})", 8));
  CHECK(models::find_checkpoint(folder.path())->elements() == Count(2));
  for (const char* name : {"../one.safetensors", "/etc/passwd", "..", ""}) {
    folder.write("model.safetensors.index.json",
                 std::string(R"({"weight_map": {"a": ")") + name + "\"}}");
    CHECK_THROWS_AS(models::find_checkpoint(folder.path()), Error);
  }
}

TEST_CASE("shards without an index are put together; adapters are no model") {
  const ScratchFolder folder;
  CHECK(!models::find_checkpoint(folder.path()).has_value());
  folder.write("adapter_model.safetensors", "nonsense");
  CHECK(!models::find_checkpoint(folder.path()).has_value());
  const auto tensor = [](const std::string& name) {
    return file_of(R"({")" + name + R"(": {"dtype": "U8", "shape": [3], "data_offsets": [0, 3]}})",
                   3);
  };
  folder.write("model-00001-of-00002.safetensors", tensor("b"));
  folder.write("model-00002-of-00002.safetensors", tensor("a"));
  const auto both = models::find_checkpoint(folder.path());
  REQUIRE(both.has_value());
  CHECK(both->tensors.size() == 2);
  CHECK(both->elements() == Count(6));
}

TEST_CASE("the model's own tensors agree with it") {
  const ModelSpec llama = models::catalog_model("llama-3.2-1b");
  const CheckpointCheck check = models::check_checkpoint(llama, checkpoint_of(llama, "BF16"));
  CHECK(check.agrees());
  CHECK(check.differences.empty());
  CHECK(check.stored_elements == llama.parameter_count());
}

TEST_CASE("GPT-2's file: no prefix, and 12 causal masks of 1024 x 1024") {
  const ModelSpec gpt2 = models::catalog_model("gpt2");
  Checkpoint checkpoint = checkpoint_of(gpt2, "F32");
  for (auto& tensor : checkpoint.tensors) tensor.name = tensor.name.substr(12);  // transformer.
  for (int i = 0; i < 12; ++i)
    checkpoint.tensors.push_back(
        {"h." + std::to_string(i) + ".attn.bias", "F32", {1, 1, 1024, 1024}});
  const CheckpointCheck check = models::check_checkpoint(gpt2, checkpoint);
  CHECK(check.agrees());
  // The hub's figure for gpt2: 124 439 808 + 12 * 1024 * 1024.
  CHECK(check.stored_elements == Count(137'022'720));
  REQUIRE(of_kind(check, DifferenceKind::mask_buffer) != nullptr);
  CHECK(of_kind(check, DifferenceKind::mask_buffer)->elements == Count(12'582'912));
  CHECK(of_kind(check, DifferenceKind::mask_buffer)->pattern == "h.{}.attn.bias");
  CHECK(of_kind(check, DifferenceKind::naming)->tensors == 148);
  CHECK(check.unexplained == Count(0));
}

TEST_CASE("a tied head stored twice and rotary frequencies are named, not counted") {
  const ModelSpec qwen = models::catalog_model("qwen3-0.6b");
  Checkpoint checkpoint = checkpoint_of(qwen, "BF16");
  checkpoint.tensors.push_back({"lm_head.weight", "BF16", {151936, 1024}});
  checkpoint.tensors.push_back({"model.layers.0.self_attn.rotary_emb.inv_freq", "F32", {64}});
  const CheckpointCheck check = models::check_checkpoint(qwen, checkpoint);
  CHECK(check.agrees());
  // The hub's figure, 751 632 384 = 596 049 920 + 151936 * 1024, and 64 frequencies.
  CHECK(check.stored_elements == Count(751'632'384 + 64));
  CHECK(of_kind(check, DifferenceKind::tied_copy)->elements == Count(155'582'464));
  CHECK(of_kind(check, DifferenceKind::rotary_buffer)->elements == Count(64));
}

TEST_CASE("packed weights are explained: GPTQ, bitsandbytes, MXFP4") {
  const ModelSpec model = models::read_model(
      R"({"model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "vocab_size": 100,
          "num_hidden_layers": 1, "num_attention_heads": 4, "torch_dtype": "float16"})",
      "small", "config.json");
  Checkpoint gptq = checkpoint_of(model, "F16");
  std::erase_if(gptq.tensors, [](const auto& t) { return t.name.ends_with("q_proj.weight"); });
  const std::string module = "model.layers.0.self_attn.q_proj";
  gptq.tensors.push_back({module + ".qweight", "I32", {8, 64}});
  gptq.tensors.push_back({module + ".scales", "F16", {1, 64}});
  CheckpointCheck check = models::check_checkpoint(model, gptq);
  CHECK(check.agrees());
  CHECK(of_kind(check, DifferenceKind::missing) == nullptr);
  CHECK(check.unexplained == Count(0));

  Checkpoint nf4 = checkpoint_of(model, "F16");
  for (auto& tensor : nf4.tensors)
    if (tensor.name == module + ".weight") tensor = {tensor.name, "U8", {2048, 1}};
  nf4.tensors.push_back({module + ".weight.absmax", "F32", {64}});
  nf4.tensors.push_back({module + ".weight.quant_state.bitsandbytes__nf4", "U8", {90}});
  check = models::check_checkpoint(model, nf4);
  CHECK(check.agrees());
  CHECK(of_kind(check, DifferenceKind::shape) == nullptr);
  CHECK(of_kind(check, DifferenceKind::quantized) != nullptr);
}

TEST_CASE("a folder's checkpoint is compared with its config, and a broken one is refused") {
  const ScratchFolder folder;
  folder.write("config.json", R"({"model_type": "llama", "hidden_size": 2, "vocab_size": 3,
      "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 1,
      "architectures": ["LlamaModel"]})");
  CHECK(models::model_from_path(folder.path()).notes.empty());
  folder.write(
      "model.safetensors",
      file_of(R"({"norm.weight": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}})", 8));
  const ModelSpec model = models::model_from_path(folder.path() / "config.json");
  // 3 * 2 + 4 * 2 * 2 + 3 * 2 + 3 * 2 = 34; ten tensors are missing beside the norm.
  REQUIRE(model.notes.size() == 1 + 10);
  CHECK(model.notes[0].ends_with("does not hold this model: 2 elements stored, 34 parameters"));
  const std::string pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:4d\nsize 9\n";
  folder.write("model.safetensors", pointer);
  const ModelSpec unread = models::model_from_path(folder.path());
  REQUIRE(unread.notes.size() == 1);
  CHECK(unread.notes[0].starts_with("model.safetensors is a Git LFS pointer"));
  CHECK_THROWS_WITH_AS(models::read_safetensors_header(folder.path() / "model.safetensors"),
                       doctest::Contains("run git lfs pull"), Error);
  folder.write("model.safetensors", "12345678{");
  CHECK_THROWS_AS(models::model_from_path(folder.path()), Error);
}

TEST_CASE("missing, extra and differently shaped tensors are named and do not agree") {
  const ModelSpec llama = models::catalog_model("llama-3.2-1b");
  Checkpoint checkpoint = checkpoint_of(llama, "BF16");
  for (auto& tensor : checkpoint.tensors) {
    if (tensor.name == "model.layers.3.mlp.up_proj.weight") tensor.shape = {8000, 2048};
    if (tensor.name == "model.layers.5.mlp.up_proj.weight") tensor.name = "model.layers.5.novel";
  }
  const CheckpointCheck check = models::check_checkpoint(llama, checkpoint);
  CHECK(!check.agrees());
  CHECK(of_kind(check, DifferenceKind::shape)->elements == Count(-192 * 2048));
  CHECK(of_kind(check, DifferenceKind::missing)->pattern == "model.layers.{}.mlp.up_proj.weight");
  CHECK(of_kind(check, DifferenceKind::extra)->pattern == "model.layers.{}.novel");
  CHECK(check.unexplained == Count(0));
}

TEST_CASE("layers beyond the config's, parts of other heads and other dtypes are explained") {
  const ModelSpec llama = models::catalog_model("llama-3.2-1b");
  Checkpoint checkpoint = checkpoint_of(llama, "F32");
  checkpoint.tensors.push_back({"model.layers.16.eh_proj.weight", "F32", {4}});
  checkpoint.tensors.push_back({"vision_tower.patch.weight", "F32", {5}});
  const CheckpointCheck check = models::check_checkpoint(llama, checkpoint);
  CHECK(check.agrees());
  CHECK(of_kind(check, DifferenceKind::more_layers)->elements == Count(4));
  CHECK(of_kind(check, DifferenceKind::other_part)->elements == Count(5));
  REQUIRE(of_kind(check, DifferenceKind::dtype) != nullptr);
  CHECK(of_kind(check, DifferenceKind::dtype)->text ==
        "146 tensors are stored as F32, the config says bf16");
}

TEST_CASE("an index without files is compared by name") {
  const ModelSpec llama = models::catalog_model("llama-3.2-1b");
  Checkpoint checkpoint = checkpoint_of(llama, "BF16");
  checkpoint.has_shapes = false;
  for (auto& tensor : checkpoint.tensors) tensor.shape.clear();
  CHECK(models::check_checkpoint(llama, checkpoint).agrees());
  checkpoint.tensors.pop_back();
  checkpoint.tensors.push_back({"lm_head.weight", "", {}});
  const CheckpointCheck check = models::check_checkpoint(llama, checkpoint);
  CHECK(!check.agrees());
  CHECK(of_kind(check, DifferenceKind::missing)->tensors == 1);
  CHECK(of_kind(check, DifferenceKind::tied_copy)->elements == Count(0));  // not known
}

// safetensors/src/tensor.rs: MAX_HEADER_SIZE is 100,000,000, and a header of exactly that is read.
TEST_CASE("a header of 100,000,000 bytes is no more than may be, one byte more is") {
  check_refused(with_length("{}", 100'000'000),
                "truncated: a header of 100000000 bytes in a file of 10");
  check_refused(with_length("{}", 100'000'001), "not safetensors: a header of 100000001 bytes");
  check_refused(with_length("{} ", 4), "truncated: a header of 4 bytes in a file of 11");
}

// git-lfs, docs/spec.md: pointer files are smaller than 1024 bytes.
TEST_CASE("a file of 1,023 bytes may be a pointer of Git LFS, one of 1,024 is none") {
  const ScratchFolder folder;
  std::string pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:4d\nsize 9\n";
  pointer.resize(1023, ' ');
  folder.write("model.safetensors", pointer);
  CHECK(models::lfs_pointer_in(folder.path()) == "model.safetensors");
  folder.write("model.safetensors", pointer + " ");
  CHECK(models::lfs_pointer_in(folder.path()) == std::nullopt);
}
