// SPDX-License-Identifier: MIT
#include "runtime.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <mutex>
#include <set>
#include <unordered_map>

#include "objc/runtime.h"

namespace fake {
namespace {

// What is static here outlives every thread: nothing of it is ever destroyed.
template <class T>
T& forever() {
  static T& value = *new T;
  return value;
}

constexpr long kDead = -1'000'000'000;

}  // namespace

struct Class {
  struct Entry {
    Method method;
    int macos;
  };
  std::string name;
  std::unordered_map<Selector, Entry> methods;
  Object* object = nullptr;  // what class messages go to
};

namespace {

struct Names : std::set<std::string> {
  std::mutex mutex;
};
struct Classes : std::map<std::string, Class> {
  std::mutex mutex;
};
struct Live : std::map<std::string, long> {
  std::mutex mutex;
};
struct Faults : std::vector<std::string> {
  std::mutex mutex;
};

Selector selector_of(const char* name) {
  Names& names = forever<Names>();
  const std::lock_guard lock(names.mutex);
  return names.insert(name).first->c_str();
}

Class& class_of(const std::string& name) {
  Classes& classes = forever<Classes>();
  const std::lock_guard lock(classes.mutex);
  Class& c = classes[name];
  c.name = name;
  return c;
}

// Not those that stay: class objects (+NAME), and the one NSProcessInfo.
bool is_counted(const std::string& class_name) {
  return class_name[0] != '+' && class_name != "NSProcessInfo";
}

void count_live(const std::string& class_name, long by) {
  if (!is_counted(class_name)) return;
  Live& live = forever<Live>();
  const std::lock_guard lock(live.mutex);
  live[class_name] += by;
}

// Where an object was.
class Shell final : public Object {
 public:
  Shell(const Class* of, std::string of_label) : Object(of->name.c_str()) {
    count_live(of->name, -1);
    label = std::move(of_label);
    references = kDead;
  }
};

void define_once() {
  static const bool done = [] {
    method("NSObject", "retain", +[](Object* self, Selector) { return retain(self); });
    method("NSObject", "release", +[](Object* self, Selector) { release(self); });
    method("NSObject", "autorelease", +[](Object* self, Selector) { return autorelease(self); });
    method("NSObject", "retainCount", +[](Object* self, Selector) { return self->references.load(); });
    method("NSObject", "init", +[](Object* self, Selector) { return self; });
    method("NSObject", "hash", +[](Object* self, Selector) { return self; });
    method("NSObject", "isEqual:", +[](Object* self, Selector, Object* other) { return self == other; });
    method("NSObject", "respondsToSelector:",
           +[](Object* self, Selector, Selector selector) { return responds(self, selector); });
    method("NSObject", "methodSignatureForSelector:", +[](Object*, Selector, Selector) -> Object* { return nullptr; });
    define_foundation();
    define_metal();
    return true;
  }();
  (void)done;
}

Method find_method(const Class* of, Selector selector) {
  static const Class& everything = class_of("NSObject");
  for (const Class* c : {of, &everything}) {
    if (c == &everything && of->name[0] == '+') break;  // those are of instances
    const auto found = c->methods.find(selector);
    if (found != c->methods.end() && found->second.macos <= setting("macos")) return found->second.method;
  }
  return nullptr;
}

}  // namespace

Object::Object(const char* class_name) : of_class(&class_of(class_name)) { count_live(class_name, 1); }

Object::~Object() { count_live(of_class->name, -1); }

bool is_alive(const Object* object) { return object != nullptr && object->references.load() > 0; }

std::string described(const Object* object) {
  if (object == nullptr) return "nil";
  return object->of_class->name + (object->label.empty() ? "" : " '" + object->label + "'");
}

void release(Object* object) {
  long before = object->references.load();
  do {
    if (before <= 0) {
      fault("released once too often: " + described(object));
      return;
    }
  } while (!object->references.compare_exchange_weak(before, before - 1));
  if (before != 1) return;
  const Class* of = object->of_class;
  std::string label = object->label;
  object->~Object();
  new (static_cast<void*>(object)) Shell(of, std::move(label));
}

// --- pools

namespace {

struct Pool {
  const void* who;
  std::vector<Object*> objects;
};
thread_local std::vector<Pool> pools;

}  // namespace

void push_pool(const void* pool) { pools.push_back({pool, {}}); }

void pop_pool(const void* pool) {
  if (std::ranges::find(pools, pool, &Pool::who) == pools.end()) {
    return fault("an autorelease pool is drained on a thread that did not make it, or twice");
  }
  for (bool found = false; !found;) {
    found = pools.back().who == pool;
    // What is released may put others into the pool.
    while (!pools.back().objects.empty()) {
      Object* object = pools.back().objects.back();
      pools.back().objects.pop_back();
      release(object);
    }
    pools.pop_back();
  }
}

void autorelease_object(Object* object) {
  if (!pools.empty()) return pools.back().objects.push_back(object);
  fault("autoreleased with no pool in place, just leaking: " + described(object));
}

// --- classes

void add_method(const char* class_name, const char* selector, Method method, int macos) {
  class_of(class_name).methods[selector_of(selector)] = {method, macos};
}

void add_class_method(const char* class_name, const char* selector, Method method) {
  Class& meta = class_of(std::string("+") + class_name);
  meta.methods[selector_of(selector)] = {method, 0};
  if (class_of(class_name).object == nullptr) class_of(class_name).object = new Object(meta.name.c_str());
}

bool responds(const Object* object, Selector selector) { return find_method(object->of_class, selector) != nullptr; }

// --- faults

void fault(const std::string& text) {
  constexpr size_t kMost = 200;
  Faults& all = forever<Faults>();
  const std::lock_guard lock(all.mutex);
  if (all.size() < kMost) all.push_back(text);
}

void die(const std::string& text) {
  fault(text);
  std::fprintf(stderr, "fake Metal: %s\n", text.c_str());
  std::abort();
}

std::vector<std::string> faults() {
  Faults& all = forever<Faults>();
  const std::lock_guard lock(all.mutex);
  return all;
}

void forget_faults() {
  Faults& all = forever<Faults>();
  const std::lock_guard lock(all.mutex);
  all.clear();
}

std::map<std::string, long> live_objects() {
  Live& live = forever<Live>();
  const std::lock_guard lock(live.mutex);
  return live;
}

}  // namespace fake

// --- what metal-cpp calls

extern "C" {

SEL sel_registerName(const char* name) {
  return reinterpret_cast<SEL>(const_cast<char*>(fake::selector_of(name)));
}

// Null for a class the fake lacks; metal-cpp asks for all it knows, and sends to the few it uses.
void* objc_lookUpClass(const char* name) {
  fake::define_once();
  return fake::class_of(name).object;
}

void* objc_getProtocol(const char*) { return nullptr; }

void fake_nil_method();

__attribute__((visibility("hidden"))) fake::Method fake_find_method(const fake::Object* self, fake::Selector selector) {
  if (self == nullptr) return fake_nil_method;
  if (!fake::is_alive(self)) {
    if (std::string(selector) == "release") {
      fake::fault("released once too often: " + fake::described(self));
      return fake_nil_method;
    }
    fake::die("message " + std::string(selector) + " to a dead " + fake::described(self));
  }
  if (fake::Method found = fake::find_method(self->of_class, selector)) return found;
  const std::string& name = self->of_class->name;
  fake::die(name[0] == '+' ? "+[" + name.substr(1) + " " + selector + "] is not known here"
                           : "-[" + name + " " + selector + "] is not known here");
}

}  // extern "C"
