// SPDX-License-Identifier: MIT
#include <cstdio>
#include <cstring>
#include <exception>

#include "check.h"

int main(int argc, char** argv) {
  int passed = 0, failed = 0;
  for (const esker::test::Case& c : esker::test::cases()) {
    if (argc > 1 && std::strstr(c.name, argv[1]) == nullptr) continue;
    try {
      c.run();
      ++passed;
    } catch (const std::exception& e) {
      ++failed;
      std::printf("FAILED %s: %s\n", c.name, e.what());
    }
  }
  std::printf("%d passed, %d failed\n", passed, failed);
  return failed == 0 && passed > 0 ? 0 : 1;
}
