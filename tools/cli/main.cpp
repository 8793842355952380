#include <cstdio>

int main() {
  std::puts("plimsoll");
  return 2;
}
