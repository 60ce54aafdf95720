// SPDX-License-Identifier: MIT
//
// Foundation, the few classes of it that a Metal host uses.
#pragma once

#include <string>
#include <vector>

#include "runtime.h"

namespace fake {

struct String final : Object {
  explicit String(std::string of = {}) : Object("NSString"), text(std::move(of)) {}
  std::string text;
};

struct Array final : Object {
  Array() : Object("NSArray") {}
  explicit Array(std::vector<Object*> of) : Object("NSArray"), objects(std::move(of)) {
    for (Object* o : objects) retain(o);
  }
  ~Array() override {
    for (Object* o : objects) release(o);
  }
  std::vector<Object*> objects;
};

struct Url final : Object {
  Url() : Object("NSURL") {}
  std::string path;
};

struct Error final : Object {
  Error(std::string of_domain, long of_code, std::string says)
      : Object("NSError"), domain(std::move(of_domain)), code(of_code), text(std::move(says)) {}
  std::string domain;
  long code;
  std::string text;
};

// Hands out an error that the caller does not own; nil is returned in place of the result.
void give_error(Error** error, const char* domain, long code, const std::string& text);

inline std::string text_of(const String* s) { return s == nullptr ? std::string() : s->text; }

}  // namespace fake
