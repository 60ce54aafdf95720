// SPDX-License-Identifier: MIT
//
// An Objective-C runtime for tests, as little of it as metal-cpp needs: classes with methods by name, objects
// that are counted, autorelease pools. What a host does wrong is a fault, a text that tests read (capi.cpp).
// What has died stays as a shell, so that whoever still speaks to it is heard.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace fake {

struct Class;
using Selector = const char*;  // one pointer a name

class Object {
 public:
  explicit Object(const char* class_name);
  Object(const Object&) = delete;
  virtual ~Object();  // called when the count reaches zero; the memory stays

  const Class* of_class;
  std::atomic<long> references{1};
  std::string label;
};

// What the message named it, with its label.
std::string described(const Object* object);
bool is_alive(const Object* object);

template <class T>
T* retain(T* object) {
  if (object != nullptr) ++object->references;
  return object;
}
void release(Object* object);
void autorelease_object(Object* object);
template <class T>
T* autorelease(T* object) {
  autorelease_object(object);
  return object;
}

// Pools of the calling thread, innermost last.
void push_pool(const void* pool);
void pop_pool(const void* pool);

// Methods; a function takes self, the selector and what the message brings.
using Method = void (*)();
void add_method(const char* class_name, const char* selector, Method method, int macos);
void add_class_method(const char* class_name, const char* selector, Method method);
// Since a version of macOS: not there where the setting macos says an older one.
template <class R, class... A>
void method(const char* class_name, const char* selector, R (*function)(A...), int macos = 0) {
  add_method(class_name, selector, reinterpret_cast<Method>(function), macos);
}
template <class R, class... A>
void class_method(const char* class_name, const char* selector, R (*function)(A...)) {
  add_class_method(class_name, selector, reinterpret_cast<Method>(function));
}
bool responds(const Object* object, Selector selector);

// Keeps a member that is counted, as a property does.
template <class T>
void set_member(T*& member, T* value) {
  retain(value);
  if (member != nullptr) release(member);
  member = value;
}

void fault(const std::string& text);          // noted, and the program goes on
[[noreturn]] void die(const std::string& text);  // noted, printed, aborted
std::vector<std::string> faults();
void forget_faults();
std::map<std::string, long> live_objects();

// Numbers that tests set, by name (settings.cpp), in ESKER_FAKE_METAL ("macos=14 fail_buffer=3") or one by one.
int64_t setting(const char* name);
void set_setting(const std::string& name, int64_t value);
// Counts what happens, for tests to read. Returns the new count.
int64_t count(const char* name, int64_t add = 1);
int64_t counted(const std::string& name);
void forget_counts();
// Counts one more, and says whether it is the one that the setting names: 1 is the first.
bool is_ordered(const char* name_of_setting, const char* name_of_count);

void define_foundation();
void define_metal();

}  // namespace fake
