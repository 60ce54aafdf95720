// SPDX-License-Identifier: MIT
#include "foundation.h"

#include <unistd.h>

#include <cstdlib>

namespace fake {
namespace {

constexpr unsigned long kUtf8 = 4, kAscii = 1;

struct Version {
  long major, minor, patch;
};

struct ProcessInfo final : Object {
  ProcessInfo() : Object("NSProcessInfo") {}  // there is one, and it stays
};

struct AutoreleasePool final : Object {
  AutoreleasePool() : Object("NSAutoreleasePool") { push_pool(this); }
  ~AutoreleasePool() override { pop_pool(this); }
};

String* with_text(String* s, const char* text, unsigned long bytes, unsigned long encoding) {
  if (encoding != kUtf8 && encoding != kAscii) die("a string of encoding " + std::to_string(encoding));
  s->text.assign(text, bytes);
  return s;
}

Array* filled(Array* array, Object* const* objects, unsigned long n) {
  for (unsigned long i = 0; i < n; ++i) array->objects.push_back(retain(objects[i]));
  return array;
}

void define_strings() {
  class_method("NSString", "alloc", +[](Object*, Selector) { return new String; });
  class_method("NSString", "string", +[](Object*, Selector) { return autorelease(new String); });
  class_method("NSString", "stringWithString:",
               +[](Object*, Selector, String* s) { return autorelease(new String(s->text)); });
  class_method("NSString", "stringWithCString:encoding:",
               +[](Object*, Selector, const char* text, unsigned long encoding) {
                 return autorelease(with_text(new String, text, std::string(text).size(), encoding));
               });
  method("NSString", "initWithString:", +[](String* self, Selector, String* s) {
    self->text = s->text;
    return self;
  });
  method("NSString", "initWithCString:encoding:",
         +[](String* self, Selector, const char* text, unsigned long encoding) {
           return with_text(self, text, std::string(text).size(), encoding);
         });
  method("NSString", "initWithBytesNoCopy:length:encoding:freeWhenDone:",
         +[](String* self, Selector, const char* bytes, unsigned long n, unsigned long encoding, bool frees) {
           with_text(self, bytes, n, encoding);
           if (frees) std::free(const_cast<char*>(bytes));
           return self;
         });
  method("NSString", "UTF8String", +[](String* self, Selector) { return self->text.c_str(); });
  method("NSString", "cStringUsingEncoding:",
         +[](String* self, Selector, unsigned long) { return self->text.c_str(); });
  method("NSString", "lengthOfBytesUsingEncoding:",
         +[](String* self, Selector, unsigned long) { return self->text.size(); });
  method("NSString", "length", +[](String* self, Selector) { return self->text.size(); });
  method("NSString", "isEqualToString:",
         +[](String* self, Selector, String* other) { return other != nullptr && self->text == other->text; });
}

void define_collections() {
  class_method("NSArray", "alloc", +[](Object*, Selector) { return new Array; });
  class_method("NSArray", "array", +[](Object*, Selector) { return autorelease(new Array); });
  class_method("NSArray", "arrayWithObject:",
               +[](Object*, Selector, Object* o) { return autorelease(filled(new Array, &o, 1)); });
  class_method("NSArray", "arrayWithObjects:count:",
               +[](Object*, Selector, Object* const* objects, unsigned long n) {
                 return autorelease(filled(new Array, objects, n));
               });
  method("NSArray", "initWithObjects:count:", +[](Array* self, Selector, Object* const* objects, unsigned long n) {
    return filled(self, objects, n);
  });
  method("NSArray", "count", +[](Array* self, Selector) { return self->objects.size(); });
  method("NSArray", "objectAtIndex:", +[](Array* self, Selector, unsigned long i) {
    if (i >= self->objects.size()) die("NSRangeException: index " + std::to_string(i) + " of an NSArray");
    return self->objects[i];
  });
}

void define_urls_and_errors() {
  class_method("NSURL", "alloc", +[](Object*, Selector) { return new Url; });
  class_method("NSURL", "fileURLWithPath:", +[](Object*, Selector, String* path) {
    auto* url = autorelease(new Url);
    url->path = text_of(path);
    return url;
  });
  method("NSURL", "initFileURLWithPath:", +[](Url* self, Selector, String* path) {
    self->path = text_of(path);
    return self;
  });
  method("NSURL", "fileSystemRepresentation", +[](Url* self, Selector) { return self->path.c_str(); });
  method("NSError", "code", +[](Error* self, Selector) { return self->code; });
  method("NSError", "domain", +[](Error* self, Selector) { return autorelease(new String(self->domain)); });
  method("NSError", "localizedDescription",
         +[](Error* self, Selector) { return autorelease(new String(self->text)); });
  method("NSError", "description", +[](Error* self, Selector) {
    return autorelease(new String("Error Domain=" + self->domain + " Code=" + std::to_string(self->code) + " \"" +
                                  self->text + "\""));
  });
}

void define_process() {
  class_method("NSAutoreleasePool", "alloc", +[](Object*, Selector) { return new AutoreleasePool; });
  method("NSAutoreleasePool", "drain", +[](Object* self, Selector) { release(self); });
  method("NSAutoreleasePool", "addObject:", +[](Object*, Selector, Object* o) { autorelease(o); });

  class_method("NSProcessInfo", "processInfo", +[](Object*, Selector) -> Object* {
    static ProcessInfo& only = *new ProcessInfo;
    return &only;
  });
  const char* info = "NSProcessInfo";
  method(info, "operatingSystemVersion", +[](Object*, Selector) { return Version{setting("macos"), 0, 0}; });
  method(info, "isOperatingSystemAtLeastVersion:", +[](Object*, Selector, Version v) {
    const Version have{setting("macos"), 0, 0};
    if (have.major != v.major) return have.major > v.major;
    return have.minor != v.minor ? have.minor > v.minor : have.patch >= v.patch;
  });
  method(info, "operatingSystemVersionString", +[](Object*, Selector) {
    return autorelease(new String("Version " + std::to_string(setting("macos")) + ".0 (Build FAKE)"));
  });
  method(info, "physicalMemory", +[](Object*, Selector) {
    return static_cast<unsigned long long>(sysconf(_SC_PHYS_PAGES)) *
           static_cast<unsigned long long>(sysconf(_SC_PAGESIZE));
  });
}

}  // namespace

void give_error(Error** error, const char* domain, long code, const std::string& text) {
  if (error != nullptr) *error = autorelease(new Error(domain, code, text));
}

void define_foundation() {
  define_strings();
  define_collections();
  define_urls_and_errors();
  define_process();
}

}  // namespace fake
