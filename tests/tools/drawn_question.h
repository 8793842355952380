// Questions as a user would ask them, drawn by seed: the options' names and values.
#pragma once

#include <initializer_list>
#include <random>
#include <string>
#include <utility>
#include <vector>

namespace plimsoll::tests {

using Given = std::vector<std::pair<std::string, std::string>>;

// Engines are the same everywhere; the library's distributions are not.
class QuestionDraw {
 public:
  explicit QuestionDraw(unsigned seed) : random_(seed) {}

  std::size_t below(std::size_t end) { return random_() % end; }
  const char* of(std::initializer_list<const char*> values) {
    return values.begin()[below(values.size())];
  }

  // Some combinations are refused, by every door alike.
  Given question() {
    Given out{{"gpu", of({"h100", "a100-40gb", "rtx-4090", "v100-16gb"})}};
    const std::string stack = of({"pytorch", "pytorch", "deepspeed", "plimsoll"});
    out.emplace_back("stack", stack);
    const std::string gpus = of({"1", "2", "4", "8", "64"});
    out.emplace_back("gpus", gpus);
    if (gpus != "1") out.emplace_back("zero", of({"0", "1", "2", "3"}));
    out.emplace_back("precision", of({"bf16-mixed", "bf16", "fp16-mixed", "fp32"}));
    out.emplace_back("optimizer", of({"adamw", "adamw", "sgd", "momentum"}));
    if (stack == "pytorch")
      out.emplace_back("optimizer-impl", of({"foreach", "fused", "for-loop"}));
    out.emplace_back("recompute", of({"none", "full", "selective", "sqrt", "every:3"}));
    out.emplace_back("loss", of({"full", "chunked", "fused"}));
    out.emplace_back("seq-len", of({"128", "512", "777", "1024"}));
    out.emplace_back("micro-batch", of({"1", "2", "5", "16"}));
    out.emplace_back("grad-accum", of({"1", "2", "4"}));
    if (random_() % 4 == 0) out.emplace_back("lora-rank", of({"8", "64"}));
    return out;
  }

 private:
  std::mt19937 random_;
};

inline std::string text_of(const Given& given) {
  std::string text;
  for (const auto& [name, value] : given) text += " --" + name + " " + value;
  return text;
}

// The value that stands under a name, "" where none does.
inline std::string value_of(const Given& given, const std::string& name) {
  for (const auto& [other, value] : given)
    if (other == name) return value;
  return "";
}

// The same question with another value, or without one where it is "".
inline Given with(const Given& given, const std::string& name, const std::string& value) {
  Given out;
  for (const auto& entry : given)
    if (entry.first != name) out.push_back(entry);
  if (!value.empty()) out.emplace_back(name, value);
  return out;
}

}  // namespace plimsoll::tests
