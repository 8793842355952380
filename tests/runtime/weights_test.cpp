#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>
#include <map>
#include <thread>

#include "runtime/io/weight_file.h"
#include "tests/runtime/weights.h"
#include "tests/scratch_folder.h"

using namespace plimsoll;
using models::ModelSpec;
using plimsoll::test::ScratchFolder;
using runtime::test::check_refused;
using runtime::test::golden_adapter;
using runtime::test::golden_spec;
using runtime::test::GoldenModel;
using runtime::test::read;

namespace {

// A copy of a golden model's folder that a test may spoil.
struct Copy {
  ScratchFolder folder;
  ModelSpec model;

  explicit Copy(const GoldenModel& golden) : model(golden_spec(golden)) {
    for (const auto& entry : std::filesystem::directory_iterator(golden.folder()))
      if (entry.path().filename() != "goldens.safetensors")
        std::filesystem::copy(entry.path(), folder / entry.path().filename().string());
  }
  void open() const { (void)runtime::io::stored_weights(model, folder.path()); }
  void replace(const std::string& file, const std::string& from, const std::string& to) const {
    std::string bytes = plimsoll::test::bytes_of(folder / file);
    const std::size_t at = bytes.find(from);
    REQUIRE(at != std::string::npos);
    REQUIRE(from.size() == to.size());
    folder.write(file, bytes.replace(at, from.size(), to));
  }
};
}  // namespace

TEST_CASE("weights are read as stored, from one file or several, in every dtype and piece") {
  for (const char* name : runtime::test::kGoldenModels) {
    CAPTURE(name);
    const GoldenModel golden(name);
    const auto weights = runtime::io::stored_weights(golden_spec(golden), golden.folder());
    for (const std::string& parameter : golden.weights().names()) {
      CAPTURE(parameter);
      const std::vector<double> expected = golden.weights().values(parameter);
      const auto n = std::ssize(expected);
      // All golden weights are exact in all three.
      for (const DType dtype : {DType::fp32, DType::bf16, DType::fp16})
        CHECK(read(*weights, parameter, 0, n, dtype) == expected);
      const std::vector<double> part(expected.begin() + 5, expected.end() - 3);
      CHECK(read(*weights, parameter, 5, n - 8) == part);
      CHECK(read(*weights, parameter, n, 0).empty());
    }
  }
}

TEST_CASE("a piece larger than the buffer is the sum of its parts") {
  const ScratchFolder folder;
  const std::int64_t elements = 3 * runtime::io::kReadBytes / 4 + 17;  // of fp32
  std::vector<float> values(static_cast<std::size_t>(elements));
  for (std::int64_t i = 0; i < elements; ++i)
    values[static_cast<std::size_t>(i)] = static_cast<float>(i);
  models::ModelSpec model;
  model.name = "large";
  model.parameters = {{.name = "w", .shape = {elements}, .module = models::ModuleKind::linear}};
  runtime::io::WeightFile file(folder / "model.safetensors",
                               {{.name = "w", .dtype = DType::fp32, .shape = {elements}}});
  file.write("w", 0, {values.data(), DType::fp32, {elements}});
  file.finish();
  const auto weights = runtime::io::stored_weights(model, folder.path());
  CHECK(read(*weights, "w", 0, elements) == std::vector<double>(values.begin(), values.end()));
}

TEST_CASE("threads read at once what one reads alone") {
  const GoldenModel golden("qwen2");
  const auto weights = runtime::io::stored_weights(golden_spec(golden), golden.folder());
  const std::vector<std::string> names = golden.weights().names();
  std::vector<int> wrong(4);
  std::vector<std::thread> threads;
  for (std::size_t t = 0; t < wrong.size(); ++t)
    threads.emplace_back([&, t] {
      for (const std::string& name : names) {
        const auto expected = golden.weights().values(name);
        wrong[t] += read(*weights, name, 0, std::ssize(expected)) != expected;
      }
    });
  for (std::thread& thread : threads) thread.join();
  CHECK(wrong == std::vector<int>(4));
}

TEST_CASE("a tied head is its table, whether a checkpoint stores it or not") {
  const GoldenModel golden("qwen3");
  const ModelSpec model = golden_spec(golden);
  const auto table = golden.weights().values("model.embed_tokens.weight");
  const auto weights = runtime::io::stored_weights(model, golden.folder());
  CHECK(read(*weights, "lm_head.weight", 0, std::ssize(table)) == table);

  // Stored twice: all of llama's tensors, under a config that ties its head.
  const Copy llama{GoldenModel("llama")};
  ModelSpec tied = llama.model;
  for (models::ParameterRow& row : tied.parameters) row.tied = row.name == "lm_head.weight";
  check_refused([&] { (void)runtime::io::stored_weights(tied, llama.folder.path()); },
                ErrorKind::bad_input, "'lm_head.weight' is not 'model.embed_tokens.weight'");
  // Under an untied config qwen3's files lack one.
  ModelSpec untied = model;
  for (models::ParameterRow& row : untied.parameters) row.tied = false;
  check_refused([&] { (void)runtime::io::stored_weights(untied, golden.folder()); },
                ErrorKind::bad_input, "lm_head.weight: in the model, not in the checkpoint");
  check_refused([&] { (void)runtime::io::stored_weights(untied, golden.folder()); },
                ErrorKind::bad_input, "tie_word_embeddings");
}

TEST_CASE("a copy of the table that a tied model stores as its head is accepted") {
  const ScratchFolder folder;
  const GoldenModel golden("qwen3");
  const ModelSpec model = golden_spec(golden);
  const auto weights = runtime::io::stored_weights(model, golden.folder());
  std::vector<runtime::io::SavedTensor> tensors;
  for (const models::ParameterRow& row : model.parameters)
    for (const std::string& name : models::tensor_names(row)) {
      kernels::Extents shape;
      shape.rank = row.shape.rank;
      shape.axes = row.shape.axes;
      tensors.push_back({.name = name, .dtype = DType::bf16, .shape = shape});
    }
  runtime::io::WeightFile file(folder / "model.safetensors", tensors);
  for (const runtime::io::SavedTensor& tensor : tensors) {
    std::vector<float> values(static_cast<std::size_t>(tensor.shape.elements()));
    const kernels::TensorView view{values.data(), DType::fp32, tensor.shape};
    weights->read(tensor.name, 0, view);
    file.write(tensor.name, 0, view);
  }
  file.finish();
  const auto again = runtime::io::stored_weights(model, folder.path());
  const auto table = golden.weights().values("model.embed_tokens.weight");
  CHECK(read(*again, "lm_head.weight", 0, std::ssize(table)) == table);
}

TEST_CASE("GPT-2's first checkpoints, without a prefix and with masks, are read") {
  // huggingface.co/openai-community/gpt2: "h.0.attn.c_attn.weight", and "h.0.attn.bias" for masks.
  const ScratchFolder folder;
  const GoldenModel golden("gpt2");
  const ModelSpec model = golden_spec(golden);
  const std::string prefix = "transformer.";
  std::vector<runtime::io::SavedTensor> tensors{{.name = "h.0.attn.bias", .shape = {1, 1, 2, 2}}};
  for (const std::string& name : golden.weights().names()) {
    const auto shape = golden.weights().shape(name);
    kernels::Extents extents;
    extents.rank = static_cast<int>(shape.size());
    std::ranges::copy(shape, extents.axes.begin());
    tensors.push_back({.name = name.substr(prefix.size()), .shape = extents});
  }
  runtime::io::WeightFile file(folder / "model.safetensors", tensors);
  for (const runtime::io::SavedTensor& tensor : tensors) {
    const bool mask = tensor.name == "h.0.attn.bias";
    const auto values =
        mask ? std::vector<double>(4, 1) : golden.weights().values(prefix + tensor.name);
    const std::vector<float> single(values.begin(), values.end());
    file.write(tensor.name, 0, {single.data(), DType::fp32, tensor.shape});
  }
  file.finish();
  const auto weights = runtime::io::stored_weights(model, folder.path());
  for (const std::string& name : golden.weights().names()) {
    const auto expected = golden.weights().values(name);
    CHECK(read(*weights, name, 0, std::ssize(expected)) == expected);
  }
}

TEST_CASE("a model of fewer layers takes the first ones of a deeper checkpoint") {
  const GoldenModel golden("llama");
  std::string config = plimsoll::test::bytes_of(golden.config());
  const std::string layers = "\"num_hidden_layers\": ";
  config[config.find(layers) + layers.size()] = '1';
  const ModelSpec model = models::read_model(config, "cut", "config.json");
  const auto weights = runtime::io::stored_weights(model, golden.folder());
  const std::string name = "model.layers.0.mlp.up_proj.weight";
  CHECK(read(*weights, name, 0, 56 * 32) == golden.weights().values(name));
  check_refused([&] { (void)read(*weights, "model.layers.1.mlp.up_proj.weight", 0, 1); },
                ErrorKind::internal, "");
}

TEST_CASE("a checkpoint that does not hold the model is refused with what differs") {
  const Copy copy{GoldenModel("llama")};
  const auto refused = [&](const std::string& part, ErrorKind kind = ErrorKind::bad_input) {
    check_refused([&] { copy.open(); }, kind, part);
  };
  const std::string good = plimsoll::test::bytes_of(copy.folder / "model.safetensors");
  CHECK_NOTHROW(copy.open());
  copy.replace("model.safetensors", "mlp.up_proj", "mlp.op_proj");
  refused("mlp.op_proj.weight: in the checkpoint, not in the model");
  refused("mlp.up_proj.weight: in the model, not in the checkpoint");
  copy.folder.write("model.safetensors", good);
  copy.replace("model.safetensors", "[259,32]", "[32,259]");
  refused("another shape than the config gives");
  copy.folder.write("model.safetensors", good.substr(0, good.size() - 1));
  refused("truncated");
  copy.folder.write("model.safetensors", good.substr(0, 100));
  refused("truncated");
  copy.folder.write("model.safetensors", "");
  refused("8 bytes of length");
  copy.folder.write("model.safetensors", good);
  copy.folder.write("model-2.safetensors", good);
  CHECK_NOTHROW(copy.open());  // model.safetensors is what is loaded
  std::filesystem::rename(copy.folder / "model.safetensors", copy.folder / "model-1.safetensors");
  refused("is both in");
  std::filesystem::remove(copy.folder / "model-1.safetensors");
  std::filesystem::remove(copy.folder / "model-2.safetensors");
  refused("no safetensors files");
}

// Whatever one damaged byte makes of the header: an error that names the file, or what was there
// before (a blank, a letter of what nobody reads). Never other values.
TEST_CASE("a header with one damaged byte is refused, or gives the same weights") {
  const GoldenModel golden("llama");
  const Copy copy{golden};
  const std::filesystem::path path = copy.folder / "model.safetensors";
  const std::string good = plimsoll::test::bytes_of(path);
  std::uint64_t length = 0;
  std::memcpy(&length, good.data(), sizeof length);
  std::map<std::string, std::vector<double>> expected;
  for (const std::string& name : golden.weights().names())
    expected[name] = golden.weights().values(name);
  std::size_t refused = 0, same = 0;
  std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
  const auto put = [&](std::size_t at, char byte) {
    file.seekp(static_cast<std::streamoff>(at));
    file.put(byte).flush();
  };
  for (std::size_t at = 0; at < sizeof length + length; ++at)
    for (const char byte : {static_cast<char>(good[at] ^ 1), static_cast<char>(good[at] ^ 0x80),
                            '0', '"', ' ', '\0'}) {
      if (byte == good[at]) continue;
      put(at, byte);
      CAPTURE(at);
      CAPTURE(byte);
      try {
        const auto weights = runtime::io::stored_weights(copy.model, copy.folder.path());
        for (const auto& [name, values] : expected)
          CHECK(read(*weights, name, 0, std::ssize(values)) == values);
        ++same;
      } catch (const Error& error) {
        CHECK((error.kind() == ErrorKind::bad_input || error.kind() == ErrorKind::unsupported));
        CHECK(error.message().find("model.safetensors") != std::string::npos);
        ++refused;
      }
      put(at, good[at]);
    }
  CHECK(refused > 5 * length);
  MESSAGE(refused, " damaged headers refused, ", same, " gave the same weights");
}

TEST_CASE("types that hold no plain weights are refused by name") {
  const Copy copy{GoldenModel("mistral")};
  copy.replace("model.safetensors", "\"F16\"", "\"I16\"");
  check_refused([&] { copy.open(); }, ErrorKind::unsupported, "stored as I16");
}

TEST_CASE("an index whose files are not all there is refused") {
  const Copy copy{GoldenModel("qwen2")};
  std::filesystem::remove(copy.folder / "model-00002-of-00003.safetensors");
  check_refused([&] { copy.open(); }, ErrorKind::bad_input, "are not there");
}

TEST_CASE("a file that shrinks after it was opened gives an error, not zeros") {
  const Copy copy{GoldenModel("llama")};
  const auto weights = runtime::io::stored_weights(copy.model, copy.folder.path());
  std::filesystem::resize_file(copy.folder / "model.safetensors", 4096);
  check_refused([&] { (void)read(*weights, "model.norm.weight", 0, 32); }, ErrorKind::bad_input,
                "truncated");
}

TEST_CASE("PEFT's adapter file is read under its names") {
  for (const auto& [name, rank] : {std::pair("llama-lora", 4), std::pair("gpt2-lora", 3)}) {
    CAPTURE(name);
    const GoldenModel golden(name);
    const auto adapter = runtime::io::stored_adapter(golden_adapter(name, rank), golden.folder());
    for (const std::string& parameter : golden.weights().names()) {
      const std::vector<double> expected = golden.weights().values(parameter);
      CHECK(read(*adapter, parameter, 0, std::ssize(expected)) == expected);
    }
    const auto refused = [&](const std::vector<models::LoraModule>& modules,
                             const std::string& part) {
      check_refused([&] { (void)runtime::io::stored_adapter(modules, golden.folder()); },
                    ErrorKind::bad_input, part);
    };
    refused(golden_adapter(name, rank + 1), "the adapter's rank give");
    auto fewer = golden_adapter(name, rank);
    fewer.pop_back();
    refused(fewer, "what no adapter of this run is");
    auto more = golden_adapter(name, rank);
    more.push_back(more[0]);
    more.back().a.name = "base_model.model.more.lora_A.weight";
    more.back().a.ranges.clear();
    refused(more, "lacks base_model.model.more.lora_A.weight");
  }
}

TEST_CASE("saved weights are read back, whatever the order and size of the pieces") {
  const ScratchFolder folder;
  const auto path = folder / "out.safetensors";
  runtime::io::WeightFile file(path, {{.name = "b", .dtype = DType::bf16, .shape = {2, 3}},
                                      {.name = "a", .dtype = DType::fp32, .shape = {3}},
                                      {.name = "\"c\"", .dtype = DType::fp16, .shape = {}}});
  const float b[] = {0, 1, -2, 3.00390625f, 0.1f, 5};  // 3 + 2^-8: half way, to even 3
  const float a[] = {0.1f, 1e-30f, -7}, c[] = {65504};
  file.write("b", 4, {b + 4, DType::fp32, {2}});
  file.write("a", 0, {a, DType::fp32, {3}});
  file.write("\"c\"", 0, {c, DType::fp32, {1}});
  check_refused([&] { file.finish(); }, ErrorKind::internal, "of b 2 of 6 elements were saved");
  CHECK(!std::filesystem::exists(path));
  file.write("b", 0, {b, DType::fp32, {4}});
  file.finish();
  const runtime::test::StoredTensors saved(models::read_safetensors_header(path));
  CHECK(saved.shape("b") == std::vector<std::int64_t>{2, 3});
  CHECK(saved.values("b") == std::vector<double>{0, 1, -2, 3, 0.10009765625, 5});
  CHECK(saved.values("a") == std::vector<double>(a, a + 3));
  CHECK(saved.values("\"c\"") == std::vector<double>{65504});
  CHECK(std::distance(std::filesystem::directory_iterator(folder.path()), {}) == 1);
}

TEST_CASE("what was not finished leaves no file") {
  const ScratchFolder folder;
  { runtime::io::WeightFile file(folder / "x.safetensors", {{.name = "a", .shape = {3}}}); }
  CHECK(std::filesystem::is_empty(folder.path()));
  check_refused([&] { runtime::io::WeightFile file(folder / "no/x.safetensors", {}); },
                ErrorKind::bad_input, "cannot be written: No such file");
  check_refused(
      [&] {
        runtime::io::WeightFile file(folder / "x",
                                     {{.name = "a", .shape = {}}, {.name = "a", .shape = {}}});
      },
      ErrorKind::internal, "two tensors named a");
}
