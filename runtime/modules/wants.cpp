#include "runtime/modules/wants.h"

namespace plimsoll::runtime {

namespace {

LinearWants own(const LinearParameters& p) {
  return {p.weight.trains(), p.bias.trains(), p.lora_a.trains(), p.lora_b.trains(), false};
}
NormWants own(const NormParameters& p) {
  return {p.weight.trains(), p.bias.trains(), false};
}

}  // namespace

Wants wants_of(const LayerParameters& p, bool below) {
  Wants w{own(p.q),    own(p.k),          own(p.v),         own(p.o),      own(p.gate),  own(p.up),
          own(p.down), own(p.input_norm), own(p.post_norm), own(p.q_norm), own(p.k_norm)};
  w.below = w.input_norm.input = below;
  for (auto [linear, parameters] : {std::pair{&w.q, &p.q}, {&w.k, &p.k}, {&w.v, &p.v}})
    linear->input = parameters->in > 0 && w.input_norm.any();
  if (p.q_norm.width > 0) w.q_norm.input = w.q.any();
  if (p.k_norm.width > 0) w.k_norm.input = w.k.any();
  w.attention = w.q.any() || w.k.any() || w.v.any() || w.q_norm.any() || w.k_norm.any();
  w.o.input = w.attention;
  w.between = w.post_norm.input = below || w.o.any();
  w.up.input = w.post_norm.any();
  w.gate.input = p.gate.in > 0 && w.post_norm.any();
  w.activation = w.down.input = w.gate.any() || w.up.any();
  return w;
}

}  // namespace plimsoll::runtime
