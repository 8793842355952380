// Recursive recomputation (--recompute recursive:C): a backward that holds the inputs of at most C
// layers at a time, beside the stream that it computes, and runs layers again from the nearest one.
//
// What is reversed are n = L + 1 steps: the L layers that a gradient comes to and that save
// anything, and the head, whose backward follows its forward. Of n steps whose first input is held,
// and with c places (that input has one): m = steps_ahead(n, c) steps run and keep nothing, the
// input of the next one is held, the n - m steps behind it are reversed with c - 1 places, then the
// m steps before it with c. One step is reversed by its forward, which saves as ever, and its
// backward. The first of these runs, down to the head, is the forward itself.
//
// No other order runs fewer layers again: Griewank and Walther, "Algorithm 799: revolve", ACM TOMS
// 26 (2000) 19. C = 1 runs L (L - 1) / 2 + L layers again; C >= L runs each once, as full does.
#pragma once

#include <algorithm>
#include <cstdint>

namespace plimsoll::models::decisions {

// The steps that reversing runs without saving: r n - (c + r over c + 1), r the least number with
// n <= (c + r over c). n from 1 on, c >= 1 where n > 1.
constexpr std::int64_t steps_again(std::int64_t n, std::int64_t c) {
  if (n <= 1) return 0;
  c = std::min(c, n);  // more places are never used
  std::int64_t r = 0, reached = 1, before = 0;  // (c + r over c), (c + r over c + 1)
  while (reached < n) {
    ++r;
    before += reached;
    reached = reached * (c + r) / r;
  }
  return r * n - before;
}

// The least m of the best.
constexpr std::int64_t steps_ahead(std::int64_t n, std::int64_t c) {
  if (c <= 1) return n - 1;
  const std::int64_t best = steps_again(n, c);
  std::int64_t m = 1;
  while (m + steps_again(n - m, c - 1) + steps_again(m, c) != best) ++m;
  return m;
}

}  // namespace plimsoll::models::decisions
