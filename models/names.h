// Names of tensors and ops, as static text: "self_attn.q_proj" + ".weight.grad".
//
// They are fixed here because a prediction and a measurement are joined by them. Inside a layer a
// name is relative to "layers.<i>."; the modules are called as the checkpoint calls them.
#pragma once

#include <algorithm>
#include <cstddef>

namespace plimsoll::models {

// Text as a template argument.
template <std::size_t N>
struct Text {
  char chars[N]{};
  constexpr Text(const char (&text)[N]) { std::copy_n(text, N, chars); }
};

template <Text A, Text B>
struct Joined {
  static constexpr std::size_t a = sizeof(A.chars) - 1, b = sizeof(B.chars);
  static constexpr Text<a + b> text = [] {
    char joined[a + b]{};
    std::copy_n(A.chars, a, joined);
    std::copy_n(B.chars, b, joined + a);
    return Text<a + b>(joined);
  }();
  static constexpr const char* chars = text.chars;
};

}  // namespace plimsoll::models
