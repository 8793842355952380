#include "tools/cli/releases.h"

#include <fmt/format.h>

#include "models/base/utf8.h"
#include "models/bitsandbytes.h"
#include "tools/cli/values.h"

namespace plimsoll::tools {

namespace {
// `usual`: what stands there where nothing is said.
struct Releases {
  std::string_view option, example;
  models::Release oldest, usual, newest;
  bool of_deepspeed = false;  // others than the usual one on that stack, too
};

void set_release(const Options& options, const Releases& of, models::Stack stack,
                 models::Release& target) {
  const std::string* text = options.find(of.option);
  if (text == nullptr) return;
  const std::optional<models::Release> release = models::release_from(*text);
  if (!release)
    refuse_value(of.option, *text, fmt::format("must be a release, such as {}", of.example));
  target = *release;
  if (*release < of.oldest || of.newest < *release)
    fail(ErrorKind::unsupported,
         fmt::format("--{} {}: this version models {} to {}", of.option, shortened(*text),
                     text_of(of.oldest), text_of(of.newest)));
  const bool has =
      stack == models::Stack::pytorch || (of.of_deepspeed && stack == models::Stack::deepspeed);
  if (!has && target != of.usual)
    fail(ErrorKind::bad_input,
         fmt::format("--{} {}: other releases than {} are modelled with --stack pytorch{}",
                     of.option, shortened(*text), text_of(of.usual),
                     of.of_deepspeed ? " and deepspeed" : ""));
}
}  // namespace

void set_releases(const Options& options, models::Strategy& s) {
  set_release(options,
              {"transformers-version", "4.57.1", models::kOldestTransformers, models::kTransformers,
               models::kNewestTransformers, true},
              s.stack, s.transformers);
  set_release(options,
              {"torch-version", "2.8.0", models::kOldestTorch, models::kTorch, models::kTorch},
              s.stack, s.torch);
  set_release(options,
              {"bitsandbytes-version", "0.43.3", models::kOldestBitsandbytes, models::kBitsandbytes,
               models::kBitsandbytes},
              s.stack, s.bitsandbytes);
}

void refuse_unused_release(const Options& options, const models::Strategy& s) {
  const std::string* release = options.find("bitsandbytes-version");
  if (release == nullptr || models::runs_bitsandbytes(s)) return;
  refuse_value("bitsandbytes-version", *release,
               "nothing of this is bitsandbytes': not --quantize (nf4, nf4-dq, fp4, int8), nor "
               "--optimizer (those of 8 bits, paged-adamw, lion, ademamix, rmsprop-bnb)");
}

}  // namespace plimsoll::tools
