#include "models/offload.h"

#include <array>

namespace plimsoll::models {

namespace {
struct Part {
  std::string_view name;
  bool Offload::*member;
};
constexpr std::array kParts{
    Part{"optimizer", &Offload::optimizer}, Part{"gradients", &Offload::gradients},
    Part{"params", &Offload::params}, Part{"activations", &Offload::activations}};
}  // namespace

std::string text_of(const Offload& offload) {
  std::string text;
  for (const Part& part : kParts)
    if (offload.*part.member) text += (text.empty() ? "" : ", ") + std::string(part.name);
  return text;
}

bool set_offload(Offload& offload, std::string_view name) {
  for (const Part& part : kParts)
    if (part.name == name) return offload.*part.member = true;
  return false;
}

}  // namespace plimsoll::models
