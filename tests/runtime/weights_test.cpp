#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <thread>

#include "models/model_reader.h"
#include "runtime/io/float_storage.h"
#include "runtime/io/weight_file.h"
#include "runtime/io/weight_source.h"
#include "tests/runtime/goldens.h"
#include "tests/runtime/scratch_folder.h"

using namespace plimsoll;
using models::ModelSpec;
using runtime::io::WeightSource;
using runtime::test::GoldenModel;
using runtime::test::ScratchFolder;

namespace {

constexpr const char* kModels[] = {"gpt2", "llama", "mistral", "qwen2", "qwen3"};

std::vector<double> read(const WeightSource& weights, const std::string& name, std::int64_t first,
                         std::int64_t count, DType dtype = DType::fp32) {
  std::vector<std::byte> bytes(static_cast<std::size_t>(storage(Count(count), dtype).value()));
  weights.read(name, first, {bytes.data(), dtype, {count}});
  std::vector<float> wide(static_cast<std::size_t>(count));
  runtime::io::convert({bytes.data(), dtype, {count}}, {wide.data(), DType::fp32, {count}});
  return {wide.begin(), wide.end()};
}

ModelSpec golden_spec(const GoldenModel& golden) {
  return models::model_from_path(golden.config());
}

// The adapter that write_adapter of tools/oracle/numerics_goldens.py makes.
std::vector<models::LoraModule> golden_adapter(const std::string& name, std::int64_t rank) {
  models::Lora lora;
  lora.rank = rank;
  lora.targets = {"all-linear"};
  if (name == "gpt2-lora") lora.targets = {"c_attn", "c_fc", "mlp.c_proj"};
  return models::lora_modules(golden_spec(GoldenModel(name.substr(0, name.find('-')))), lora);
}

Error error_of(const std::function<void()>& act) {
  try {
    act();
  } catch (const Error& error) {
    return error;
  }
  return Error(ErrorKind::internal, "no error");
}

void check_refused(const std::function<void()>& act, ErrorKind kind, const std::string& part) {
  const Error error = error_of(act);
  CHECK_MESSAGE(error.kind() == kind, error.message());
  CHECK_MESSAGE(error.message().find(part) != std::string::npos, error.message());
}

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
    std::string bytes = runtime::test::bytes_of(folder / file);
    const std::size_t at = bytes.find(from);
    REQUIRE(at != std::string::npos);
    REQUIRE(from.size() == to.size());
    folder.write(file, bytes.replace(at, from.size(), to));
  }
};

double mean_of(const std::vector<double>& values) {
  double sum = 0;
  for (const double x : values) sum += x;
  return sum / static_cast<double>(values.size());
}
double deviation_of(const std::vector<double>& values) {
  double squares = 0;
  for (const double x : values) squares += x * x;
  return std::sqrt(squares / static_cast<double>(values.size()) -
                   mean_of(values) * mean_of(values));
}
}  // namespace

TEST_CASE("weights are read as stored, from one file or several, in every dtype and piece") {
  for (const char* name : kModels) {
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

TEST_CASE("a checkpoint that does not hold the model is refused with what differs") {
  const Copy copy{GoldenModel("llama")};
  const auto refused = [&](const std::string& part, ErrorKind kind = ErrorKind::bad_input) {
    check_refused([&] { copy.open(); }, kind, part);
  };
  const std::string good = runtime::test::bytes_of(copy.folder / "model.safetensors");
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

TEST_CASE("asking for what is not there is our own error") {
  const GoldenModel golden("llama");
  const auto stored = runtime::io::stored_weights(golden_spec(golden), golden.folder());
  const auto drawn = runtime::io::random_weights(golden_spec(golden), 1);
  for (const WeightSource* weights : {stored.get(), drawn.get()}) {
    check_refused([&] { (void)read(*weights, "model.norm.bias", 0, 1); }, ErrorKind::internal, "");
    check_refused([&] { (void)read(*weights, "model.norm.weight", 1, 32); }, ErrorKind::internal,
                  "beyond its end");
    check_refused([&] { (void)read(*weights, "model.norm.weight", -1, 1); }, ErrorKind::internal,
                  "beyond its end");
  }
}

TEST_CASE("random weights are what Philox, FNV-1a and Box-Muller make of seed, name and index") {
  const ModelSpec model = golden_spec(GoldenModel("gpt2"));
  const auto weights = runtime::io::random_weights(model, 42);
  // The same formulas in Python: normals of blocks 0 and 1000 of ("transformer.wte.weight", 42).
  const std::vector<double> first{1.1458792526743775, 1.8920994058618075, -0.012664414718622058,
                                  0.5697532197073535};
  const std::vector<double> later{-1.0793976396357463, -0.8805094618751079, -0.18658320186693875,
                                  -0.8065645076804318};
  const auto of = [&](std::int64_t at) { return read(*weights, "transformer.wte.weight", at, 4); };
  for (std::size_t i = 0; i < 4; ++i) {
    CHECK(of(0)[i] == doctest::Approx(0.02 * first[i]).epsilon(1e-6));
    CHECK(of(4000)[i] == doctest::Approx(0.02 * later[i]).epsilon(1e-6));
  }
  CHECK(weights->origin() == "random (seed 42)");
}

TEST_CASE("random weights are the same under any sharding, and in a model of fewer layers") {
  const std::string config = R"({"model_type": "gpt2", "n_embd": 64, "n_head": 2, "vocab_size": 997,
                                 "n_layer": )";
  const ModelSpec deep = models::read_model(config + "7}", "deep", "config.json");
  const ModelSpec flat = models::read_model(config + "2}", "flat", "config.json");
  const auto weights = runtime::io::random_weights(deep, 3);
  const std::string name = "transformer.wte.weight";
  const std::int64_t n = 997 * 64;
  const std::vector<double> whole = read(*weights, name, 0, n);
  std::vector<double> pieces;
  for (std::int64_t at = 0, length = 1; at < n; at += length, length = 2 * length + 1) {
    length = std::min(length, n - at);
    for (const double x : read(*weights, name, at, length)) pieces.push_back(x);
  }
  CHECK(pieces == whole);
  CHECK(read(*runtime::io::random_weights(flat, 3), name, 0, n) == whole);
  CHECK(read(*runtime::io::random_weights(flat, 4), name, 0, n) != whole);
  CHECK(read(*weights, "lm_head.weight", 0, n) == whole);
  CHECK(read(*weights, "transformer.h.0.mlp.c_fc.weight", 0, 64) !=
        read(*weights, "transformer.h.1.mlp.c_fc.weight", 0, 64));
}

TEST_CASE("random weights have the spread of the family's rule") {
  const ModelSpec model = models::read_model(
      R"({"model_type": "llama", "hidden_size": 256, "num_attention_heads": 4, "vocab_size": 1000,
          "intermediate_size": 512, "num_hidden_layers": 2, "pad_token_id": 7, "mlp_bias": true,
          "initializer_range": 0.05})",
      "model", "config.json");
  const auto weights = runtime::io::random_weights(model, 5);
  std::vector<double> table = read(*weights, "model.embed_tokens.weight", 0, 256000);
  // The mean of n normal numbers has deviation s / sqrt(n), their deviation s / sqrt(2 n): 5 times
  // that is 5e-4 and 3.5e-4.
  CHECK(std::abs(mean_of(table)) < 5e-4);
  CHECK(std::abs(deviation_of(table) - 0.05) < 3.5e-4);
  // Of 256000 normal numbers, 4.55 % are beyond two deviations: 11648 give or take 5 · 105.
  const auto far = std::ranges::count_if(table, [](double x) { return std::abs(x) > 0.1; });
  CHECK(std::abs(far - 11648) < 525);
  for (std::size_t i = 0; i < 256; ++i) CHECK(table[7 * 256 + i] == 0);
  CHECK(read(*weights, "model.embed_tokens.weight", 7 * 256 - 1, 2)[0] != 0);
  CHECK(read(*weights, "model.embed_tokens.weight", 8 * 256 - 1, 2)[1] != 0);
  CHECK(read(*weights, "lm_head.weight", 7 * 256, 1)[0] != 0);
  CHECK(read(*weights, "model.norm.weight", 0, 256) == std::vector<double>(256, 1));
  CHECK(read(*weights, "model.layers.1.mlp.up_proj.bias", 0, 512) == std::vector<double>(512, 0));
}

TEST_CASE("new adapters are uniform in A and 0 in B") {
  const auto modules = golden_adapter("gpt2-lora", 100);
  const auto adapter = runtime::io::random_adapter(modules, 7);
  const std::string a = "base_model.model.transformer.h.1.attn.c_attn.lora_A.weight";
  const std::vector<double> values = read(*adapter, a, 0, 3600);
  // in = 36, so |A| <= 1/6; uniform numbers deviate by bound / sqrt(3) = 0.0962.
  for (const double x : values) CHECK(std::abs(x) <= 1.0 / 6);
  CHECK(std::abs(deviation_of(values) - 0.0962) < 0.005);
  CHECK(std::abs(mean_of(values)) < 0.008);
  // The same formulas in Python: block 3 of (a, 7).
  const std::vector<double> expected{-0.46735445875674486, 0.7569173383526504, -0.30460108583793044,
                                     0.7643568241037428};
  for (std::size_t i = 0; i < 4; ++i)
    CHECK(values[12 + i] == doctest::Approx(expected[i] / 6).epsilon(1e-6));
  const std::string b = "base_model.model.transformer.h.1.attn.c_attn.lora_B.weight";
  CHECK(read(*adapter, b, 0, 300) == std::vector<double>(300, 0));
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
