#include "models/model_reader.h"

#include <doctest/doctest.h>

#include <string>

#include "models/model_catalog.h"

using namespace plimsoll;
using models::ModelSpec;

namespace {
ModelSpec read(const std::string& text, const std::string& assume = "") {
  return models::read_model(text, "model", "config.json", {.assume = assume});
}

Error error_of(const std::string& text, const std::string& assume = "") {
  try {
    (void)read(text, assume);
  } catch (const Error& error) {
    return error;
  }
  return Error(ErrorKind::internal, "accepted");
}

void check_refused(const std::string& text, const std::string& part) {
  const Error error = error_of(text);
  CAPTURE(text.substr(0, 200));
  CHECK(error.kind() == ErrorKind::bad_input);
  CHECK_MESSAGE(error.message().find(part) != std::string::npos, error.message());
  CHECK(error.message().size() < 300);
}

// A config of the family with Llama 7B's sizes.
std::string sized(const std::string& type, const std::string& more = "") {
  const char* sizes = type == "gpt2" ? R"("n_embd": 768, "n_layer": 12, "n_head": 12)"
                                     : R"("hidden_size": 4096, "num_hidden_layers": 32,
          "num_attention_heads": 32, "intermediate_size": 11008)";
  return "{\"model_type\": \"" + type + "\", \"vocab_size\": 32000, " + sizes +
         (more.empty() ? "" : ", ") + more + "}";
}

const models::ParameterRow* row(const ModelSpec& model, std::string_view name) {
  for (const models::ParameterRow& r : model.parameters)
    if (r.name == name) return &r;
  return nullptr;
}
}  // namespace

TEST_CASE("Llama 3.1 8B has 8 030 261 248 parameters") {
  // embedding and head 2 * 128256 * 4096; per layer 2 * 4096^2 + 2 * 4096 * 1024 (q, o, k, v)
  // + 3 * 4096 * 14336 + 2 * 4096; 32 layers; final norm 4096.
  const ModelSpec model = models::catalog_model("llama-3.1-8b");
  CHECK(model.parameter_count() == Count(8'030'261'248));
  CHECK(model.architecture == "LlamaForCausalLM");
  CHECK(model.max_positions == 131072);
  CHECK(model.checkpoint_dtype == DType::bf16);
  REQUIRE(model.decoder.has_value());
  CHECK(model.decoder->kv_width() == 1024);
  CHECK(models::catalog_model("Meta-Llama/llama-3.1-8B").name == "llama-3.1-8b");
}

TEST_CASE("a tied head has a name and no elements of its own") {
  const ModelSpec gpt2 = models::catalog_model("gpt2");
  REQUIRE(row(gpt2, "lm_head.weight") != nullptr);
  CHECK(row(gpt2, "lm_head.weight")->tied);
  CHECK(gpt2.parameter_count() == Count(124'439'808));
  CHECK(row(gpt2, "transformer.h.{}.attn.c_attn.weight")->shape == models::Shape{768, 2304});
  CHECK(row(gpt2, "transformer.h.{}.attn.c_attn.weight")->transposed);
  CHECK(gpt2.decoder->python_gelu);
  CHECK(gpt2.decoder->tied_head);
}

TEST_CASE("every catalog entry is read and has its published count") {
  for (const std::string_view name : models::catalog_names()) {
    CAPTURE(name);
    const ModelSpec model = models::catalog_model(name);
    CHECK(model.parameter_count() > Count(0));
    const auto published = models::find_catalog_entry(name)->parameters;
    if (published) CHECK(model.parameter_count() == Count(*published));
    if (model.decoder) CHECK(model.no_decoder.empty());
  }
}

TEST_CASE("an unknown catalog name suggests the nearest") {
  try {
    (void)models::catalog_model("lama-3.1-8b");
    FAIL("accepted");
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::bad_input);
    CHECK(error.message().find("did you mean 'llama-3.1-8b'?") != std::string::npos);
  }
}

TEST_CASE("an unknown model_type is refused by name with the nearest, unless assumed") {
  const std::string text = sized("lama", R"("architectures": ["LamaForCausalLM"])");
  const Error error = error_of(text);
  CHECK(error.kind() == ErrorKind::unsupported);
  CHECK(error.message().find("'lama'") != std::string::npos);
  CHECK(error.message().find("did you mean 'llama'?") != std::string::npos);
  CHECK(read(text, "llama").parameter_count() == Count(6'738'415'616));
}

TEST_CASE("an architecture that the family does not have is refused by name") {
  const Error error = error_of(R"({"model_type": "llama", "architectures": ["LlamaForSpeech"]})");
  CHECK(error.kind() == ErrorKind::unsupported);
  CHECK(error.message().find("LlamaForSpeech") != std::string::npos);
  CHECK(error.message().find("LlamaForCausalLM") != std::string::npos);
}

TEST_CASE("a field that is not a number of its kind is named with its value") {
  const auto with = [](const std::string& field) {
    return R"({"model_type": "llama", )" + field + "}";
  };
  check_refused(with(R"("hidden_size": -4096)"), "hidden_size is -4096");
  check_refused(with(R"("hidden_size": 0)"), "hidden_size is 0");
  check_refused(with(R"("hidden_size": 4096.5)"), "hidden_size is 4096.5");
  check_refused(with(R"("hidden_size": 1e30)"), "hidden_size is 1e+30");
  check_refused(with(R"("hidden_size": null)"), "hidden_size is null");
  check_refused(with(R"("hidden_size": "4096")"), "hidden_size is \"4096\"");
  check_refused(with(R"("hidden_size": [4096])"), "hidden_size is a list");
  check_refused(with(R"("hidden_size": true)"), "hidden_size is true");
  check_refused(with(R"("num_hidden_layers": 1000000000000000000)"), "num_hidden_layers");
  check_refused(with(R"("vocab_size": 18446744073709551615)"), "overflow");
  check_refused(with(R"("tie_word_embeddings": "no")"), "tie_word_embeddings");
  check_refused(with(R"("attention_dropout": 1.5)"), "attention_dropout is 1.5");
  check_refused(with(R"("architectures": "LlamaForCausalLM")"), "architectures");
  check_refused(with(R"("torch_dtype": 16)"), "torch_dtype is 16");
}

TEST_CASE("heads that do not divide are refused with both fields") {
  check_refused(R"({"model_type": "llama", "num_attention_heads": 33})",
                "hidden_size 4096 is not a multiple of num_attention_heads 33");
  check_refused(R"({"model_type": "llama", "num_key_value_heads": 5})",
                "num_attention_heads 32 is not a multiple of num_key_value_heads 5");
  check_refused(R"({"model_type": "gpt2", "n_head": 7})",
                "n_embd 768 is not a multiple of n_head 7");
}

TEST_CASE("counts beyond 2^63 are reported as overflow and never wrap") {
  // 2^40 * 2^40 elements in the embedding alone.
  check_refused(R"({"model_type": "llama", "vocab_size": 1099511627776,
                    "hidden_size": 1099511627776})",
                "overflow");
  // Each tensor fits, their sum does not: 2 * 2^30 * 2^32 = 2^63.
  check_refused(R"({"model_type": "llama", "vocab_size": 4294967296, "hidden_size": 1073741824,
                    "num_attention_heads": 1, "num_hidden_layers": 1, "intermediate_size": 1})",
                "overflow");
}

TEST_CASE("text that is not a config is refused with one short message") {
  check_refused("", "not JSON");
  check_refused("{\"model_type\": \"llama\"", "not JSON");
  check_refused("[1, 2]", "a list of 2 where a JSON object");
  check_refused("null", "null where a JSON object");
  check_refused("{}", "model_type is missing");
  check_refused(R"({"model_type": 7})", "model_type is 7");
  check_refused("\xff\xfe", "not JSON");
}

TEST_CASE("nesting 100 000 deep neither overflows the stack nor hangs") {
  check_refused(std::string(100'000, '['), "nested deeper than 256");
  std::string objects;
  for (int i = 0; i < 100'000; ++i) objects += R"({"a":)";
  check_refused(objects, "nested deeper than 256");
  check_refused(R"({"model_type": "llama", "x": )" + std::string(100'000, '[') +
                    std::string(100'000, ']') + "}",
                "nested deeper than 256");
  // Brackets inside strings are not nesting.
  CHECK_NOTHROW(read(sized("llama", R"("x": ")" + std::string(1000, '[') + "\"")));
}

TEST_CASE("a path that is no config is refused: no file, no config in it, not a file") {
  const auto message = [](const std::string& path) -> std::string {
    try {
      (void)models::model_from_path(path);
    } catch (const Error& error) {
      CHECK(error.kind() == ErrorKind::bad_input);
      return error.message();
    }
    return "accepted";
  };
  CHECK(message("/nonexistent/config.json") == "/nonexistent/config.json: no such file");
  CHECK(message("/proc/self") == "/proc/self: a folder without a config.json");
  CHECK(message("/dev/zero") == "/dev/zero: not a regular file");
}

TEST_CASE(
    "Qwen2: the first max_window_layers attend to everything, those behind them to the window") {
  const auto windows = [](const std::string& options) {
    const models::ModelSpec model = read(sized("qwen2", options));
    std::string out;
    for (const auto& block : model.blocks) out += block->nodes.front().sliding ? 's' : 'f';
    return out + " " + std::to_string(model.decoder->window) + " " +
           std::to_string(model.decoder->full_layers);
  };
  const std::string used = R"("use_sliding_window": true, "num_hidden_layers": 3, )";
  CHECK(windows(used + R"("max_window_layers": 2)") == "ffs 4096 2");
  CHECK(windows(used + R"("max_window_layers": 0)") == "s 4096 0");
  CHECK(windows(used + R"("max_window_layers": 3)") == "f 0 0");
  CHECK(windows(used + R"("max_window_layers": 1, "sliding_window": null)") == "f 0 0");
  CHECK(windows(used + R"("layer_types": ["sliding_attention", "full_attention",
                          "full_attention"])") == "sff 4096 2");
  CHECK(windows(R"("num_hidden_layers": 3, "max_window_layers": 1)") == "f 0 0");
  CHECK(read(sized("qwen2", used + R"("max_window_layers": 2)")).numerics.has_value());
}

TEST_CASE("what keeps a config from its family's step program is said") {
  const auto reason = [](const std::string& text) { return read(text).no_decoder; };
  CHECK(reason(sized("llama")) == "");
  CHECK(reason(sized("llama", R"("hidden_act": "gelu")")) == "hidden_act 'gelu' in a gated MLP");
  CHECK(reason(sized("gpt2", R"("activation_function": "gelu_fast")")) ==
        "activation_function 'gelu_fast'");
  CHECK(reason(sized("gpt2", R"("add_cross_attention": true)")) == "add_cross_attention of gpt2");
  CHECK(reason(sized("llama", R"("architectures": ["LlamaModel"])")) == "architecture LlamaModel");
  CHECK(reason(sized("qwen2", R"("use_sliding_window": true)")) == "");
  CHECK(reason(sized("gpt_neox")) == "");
  CHECK(reason(sized("gpt_neox", R"("hidden_act": "gelu_fast")")) == "hidden_act 'gelu_fast'");
  CHECK(reason(sized("gpt_neox", R"("rotary_pct": 1.0)")) ==
        "rotation of 128 of a head's 128 elements (rotary_pct)");
  CHECK(reason(sized("gpt_neox", R"("rotary_pct": 0.0)")) ==
        "rotation of 0 of a head's 128 elements (rotary_pct)");
  CHECK(reason(sized("phi3")) == "");
  CHECK(reason(sized("phi3", R"("partial_rotary_factor": 0.0)")) ==
        "rotation of 0 of a head's 128 elements (partial_rotary_factor)");
  CHECK(reason(sized("phi3", R"("rope_scaling": {"partial_rotary_factor": 0.26})")) ==
        "rotation of 33 of a head's 128 elements (partial_rotary_factor)");
  CHECK(reason(sized("granite", R"("hidden_act": "gelu")")) == "hidden_act 'gelu' in a gated MLP");
  CHECK(reason(sized("olmo2", R"("architectures": ["Olmo2Model"])")) == "architecture Olmo2Model");
  CHECK(!read(sized("olmo")).decoder.has_value());
  CHECK(reason(sized("opt", R"("word_embed_proj_dim": 4096)")) == "");
  // OPT-350m has both, the other models none.
  CHECK(reason(sized("opt", R"("word_embed_proj_dim": 512, "do_layer_norm_before": false)")) == "");
  CHECK(reason(sized("opt", R"("word_embed_proj_dim": 512)")) ==
        "word_embed_proj_dim that is not hidden_size");
  CHECK(reason(sized("opt", R"("word_embed_proj_dim": 4096, "do_layer_norm_before": false)")) ==
        "do_layer_norm_before false of opt");
  CHECK(reason(sized("opt", R"("word_embed_proj_dim": 4096, "layerdrop": 0.1)")) ==
        "layerdrop of opt");
  CHECK(reason(sized("phi")) == "");
  CHECK(reason(sized("phi", R"("qk_layernorm": true)")) == "qk_layernorm of phi");
  CHECK(reason(sized("phi", R"("partial_rotary_factor": 1.0)")) ==
        "rotation of 128 of a head's 128 elements (partial_rotary_factor)");
  CHECK(reason(sized("gpt_bigcode")) == "");
  CHECK(reason(sized("gpt_bigcode", R"("activation_function": "quick_gelu")")) ==
        "activation_function 'quick_gelu'");
}

TEST_CASE("sizes are stated, and no other model's are filled in") {
  for (const char* key : {"hidden_size", "num_hidden_layers", "num_attention_heads",
                          "intermediate_size", "vocab_size"}) {
    std::string text = sized("llama");
    text.replace(text.find(key), 1, "_");
    check_refused(text, std::string(key) + " is missing");
  }
  for (const char* key : {"n_embd", "n_layer", "n_head"}) {
    std::string text = sized("gpt2");
    text.replace(text.find(key), 1, "_");
    check_refused(text, std::string(" or ") + key + " is missing");
  }
  check_refused(sized("gpt2").replace(sized("gpt2").find("vocab"), 1, "_"),
                "vocab_size is missing");
  check_refused(R"({"model_type": "mistral"})",
                "num_hidden_layers, num_attention_heads, vocab_size, intermediate_size");
}

// transformers 5.17, asked: AutoConfig.for_model and the class on the meta device.
TEST_CASE("what Transformers refuses to build is refused") {
  check_refused(sized("llama", R"("head_dim": 128, "num_attention_heads": 12)"),
                "hidden_size 4096 is not a multiple of num_attention_heads 12");
  check_refused(sized("llama", R"("head_dim": 7)"), "need an even number");
  check_refused(sized("llama", R"("hidden_act": "nonsense")"), "hidden_act is \"nonsense\"");
  check_refused(sized("llama", R"("hidden_act": "sillu")"), "did you mean 'silu'?");
  check_refused(sized("gpt2", R"("activation_function": "gleu")"), "did you mean 'gelu'?");
  check_refused(sized("bert", R"("hidden_act": "nonsense")"), "hidden_act is \"nonsense\"");
  check_refused(sized("llama", R"("pad_token_id": 32000)"), "a token below vocab_size 32000");
  check_refused(sized("qwen2", R"("layer_types": ["full_attention"])"),
                "one for each of the 32 layers");
  // What it builds is read: hidden sizes that are no multiple, where the heads have their own size.
  CHECK(read(sized("mistral", R"("num_attention_heads": 24, "num_key_value_heads": 8,
                                 "head_dim": 128)"))
            .decoder.has_value());
  CHECK(read(sized("llama", R"("pad_token_id": -1)")).decoder.has_value());
  CHECK(read(sized("llama", R"("pad_token_id": null)")).decoder.has_value());
}

TEST_CASE("bytes behind a NUL are no config, and a Git LFS pointer is none either") {
  const std::string good = sized("llama");
  CHECK_NOTHROW(read(good));
  check_refused(good + std::string("\0{\"vocab_size\": 1}", 18), "a NUL byte at offset");
  check_refused(good + std::string("\0", 1), "a NUL byte at offset");
  check_refused("version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 660\n",
                "is a Git LFS pointer, not the file: run git lfs pull");
}

TEST_CASE("sliding windows: Mistral's on all layers, Qwen's only where used") {
  const auto window = [](const std::string& text) { return read(text).decoder->window; };
  CHECK(window(sized("mistral")) == 4096);
  CHECK(window(sized("mistral", R"("sliding_window": null)")) == 0);
  CHECK(window(sized("mistral", R"("sliding_window": 512)")) == 512);
  CHECK(window(sized("qwen2", R"("sliding_window": 512)")) == 0);
  CHECK(window(sized("qwen2", R"("sliding_window": 512, "use_sliding_window": true,
                                 "max_window_layers": 0)")) == 512);
  CHECK(window(sized("qwen3", R"("sliding_window": 512, "use_sliding_window": true,
                                 "max_window_layers": 32)")) == 0);
}

TEST_CASE("sizes under names that the family does not read are refused, not ignored") {
  // An early revision of granite-3b-code-base, written for its own code.
  const Error error = error_of(R"({"model_type": "granite", "n_embd": 2560, "n_layer": 32,
                                   "n_head": 32, "n_inner": 10240, "vocab_size": 49152})");
  CHECK(error.kind() == ErrorKind::unsupported);
  CHECK(error.message().find("'n_embd' is not a size of model_type 'granite'") !=
        std::string::npos);
  // The same size under two names is harmless.
  CHECK_NOTHROW(read(sized("llama", R"("dim": 4096)")));
}

TEST_CASE("a multimodal config gives its text model and says so") {
  const auto with_text = [](const std::string& text) {
    return read(R"({"model_type": "mistral3", "architectures":
      ["Mistral3ForConditionalGeneration"], "torch_dtype": "bfloat16",
      "vision_config": {"model_type": "pixtral"}, "text_config": )" +
                text + "}");
  };
  const ModelSpec model = with_text(sized("mistral"));
  CHECK(model.model_type == "mistral");
  CHECK(model.checkpoint_dtype == DType::bf16);
  REQUIRE(model.notes.size() == 1);
  CHECK(model.notes[0].find("mistral3") != std::string::npos);
  // Nested configs hold what differs from their class (google/gemma-3-4b-it has no vocab_size).
  const ModelSpec sparse = with_text(R"({"model_type": "mistral", "hidden_size": 4096})");
  REQUIRE(sparse.notes.size() == 2);
  CHECK(sparse.notes[0].starts_with(
      "num_hidden_layers, num_attention_heads, vocab_size, intermediate_size of text_config"));
}
