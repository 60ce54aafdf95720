// SPDX-License-Identifier: MIT
//
// The smallest test harness that serves: TEST(name) { CHECK(...); } registers itself; main() in
// main.cpp runs all tests, or those whose name contains its argument, and closes with
// "N passed, N failed".
#pragma once

#include <functional>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

namespace esker::test {

struct Case {
  const char* name;
  void (*run)();
};

inline std::vector<Case>& cases() {
  static std::vector<Case> all;
  return all;
}

struct Register {
  Register(const char* name, void (*run)()) { cases().push_back({name, run}); }
};

struct Failure : std::runtime_error {
  using std::runtime_error::runtime_error;
};

inline void check(bool ok, const char* text, const char* file, int line) {
  if (ok) return;
  std::ostringstream message;
  message << file << ":" << line << ": " << text;
  throw Failure(message.str());
}

template <class A, class B>
void check_equal(const A& a, const B& b, const char* text, const char* file, int line) {
  if (a == b) return;
  std::ostringstream message;
  message << file << ":" << line << ": " << text << " (" << a << " against " << b << ")";
  throw Failure(message.str());
}

// Fails, showing the whole text, when `part` is not in it.
inline void check_contains(const std::string& text, const std::string& part) {
  if (text.find(part) != std::string::npos) return;
  throw Failure("\"" + text + "\" lacks \"" + part + "\"");
}

// Runs `body` and returns the message of the exception it threw; fails if it threw none.
template <class E>
std::string message_of(const std::function<void()>& body, const char* file, int line) {
  try {
    body();
  } catch (const E& e) {
    return e.what();
  }
  throw Failure(std::string(file) + ":" + std::to_string(line) + ": nothing was thrown");
}

}  // namespace esker::test

#define TEST(name)                                                          \
  static void test_##name();                                                \
  static const ::esker::test::Register register_##name(#name, test_##name); \
  static void test_##name()
#define CHECK(...) ::esker::test::check((__VA_ARGS__), #__VA_ARGS__, __FILE__, __LINE__)
#define CHECK_EQUAL(a, b) ::esker::test::check_equal((a), (b), #a " == " #b, __FILE__, __LINE__)
#define MESSAGE_OF(Type, ...) \
  ::esker::test::message_of<Type>([&] { __VA_ARGS__; }, __FILE__, __LINE__)
