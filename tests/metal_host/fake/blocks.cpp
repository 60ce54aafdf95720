// SPDX-License-Identifier: MIT
#include "blocks.h"

#include <cstdlib>
#include <cstring>

#include "runtime.h"



namespace fake {
namespace {

// Flags of a block, and of a variable that blocks share (__block).
enum : int {
  kCountMask = 0xfffe,
  kOne = 2,
  kNeedsFree = 1 << 24,
  kHasHelpers = 1 << 25,
  kIsGlobal = 1 << 28,
};
// What a helper is asked to copy or to let go.
enum : int { kIsObject = 3, kIsBlock = 7, kIsShared = 8 };

struct Shared {
  void* isa;
  Shared* forwarding;  // the copy on the heap, once there is one
  volatile int flags;
  int bytes;
  void (*keep)(Shared* to, Shared* from);  // only where the flags say so
  void (*destroy)(Shared*);
};

void add(volatile int& flags, int by) { __atomic_add_fetch(&flags, by, __ATOMIC_SEQ_CST); }
bool drop(volatile int& flags) { return (__atomic_sub_fetch(&flags, kOne, __ATOMIC_SEQ_CST) & kCountMask) == 0; }

Shared* keep_shared(Shared* from) {
  Shared* shared = from->forwarding;
  if ((shared->flags & kNeedsFree) != 0) {
    add(shared->flags, kOne);
    return shared;
  }
  auto* copy = static_cast<Shared*>(std::malloc(static_cast<size_t>(shared->bytes)));
  std::memcpy(copy, shared, static_cast<size_t>(shared->bytes));
  // One for the block that asked, one for the stack it came from.
  copy->flags = (shared->flags & ~kCountMask) | kNeedsFree | 2 * kOne;
  copy->forwarding = shared->forwarding = copy;
  if ((shared->flags & kHasHelpers) != 0) shared->keep(copy, shared);
  count("shared variables");
  return copy;
}

void release_shared(Shared* shared) {
  shared = shared->forwarding;
  if ((shared->flags & kNeedsFree) == 0 || !drop(shared->flags)) return;
  if ((shared->flags & kHasHelpers) != 0) shared->destroy(shared);
  std::free(shared);
  count("shared variables", -1);
}

}  // namespace

Block* copy_block(const void* pointer) {
  auto* block = static_cast<Block*>(const_cast<void*>(pointer));
  if (block == nullptr || (block->flags & kIsGlobal) != 0) return block;
  if ((block->flags & kNeedsFree) != 0) {
    add(block->flags, kOne);
    return block;
  }
  auto* copy = static_cast<Block*>(std::malloc(block->descriptor->bytes));
  std::memcpy(copy, block, block->descriptor->bytes);
  copy->flags = (block->flags & ~kCountMask) | kNeedsFree | kOne;
  if ((block->flags & kHasHelpers) != 0) block->descriptor->copy(copy, block);
  count("blocks");
  return copy;
}

void release_block(const void* pointer) {
  auto* block = static_cast<Block*>(const_cast<void*>(pointer));
  if (block == nullptr || (block->flags & kNeedsFree) == 0 || !drop(block->flags)) return;
  if ((block->flags & kHasHelpers) != 0) block->descriptor->dispose(block);
  std::free(block);
  count("blocks", -1);
}

}  // namespace fake

extern "C" {
  void* _NSConcreteStackBlock[32] = {};
  void* _NSConcreteGlobalBlock[32] = {};

  void* _Block_copy(const void* block) { return fake::copy_block(block); }
  void _Block_release(const void* block) { fake::release_block(block); }

  void _Block_object_assign(void* to, const void* from, int what) {
    const void* kept = from;
    if ((what & 15) == fake::kIsShared) {
      kept = fake::keep_shared(static_cast<fake::Shared*>(const_cast<void*>(from)));
    } else if (what == fake::kIsBlock) {
      kept = fake::copy_block(from);
    } else if (what == fake::kIsObject) {
      fake::retain(static_cast<fake::Object*>(const_cast<void*>(from)));
    }
    *static_cast<const void**>(to) = kept;
  }

  void _Block_object_dispose(const void* from, int what) {
    if ((what & 15) == fake::kIsShared) {
      fake::release_shared(static_cast<fake::Shared*>(const_cast<void*>(from)));
    } else if (what == fake::kIsBlock) {
      fake::release_block(from);
    } else if (what == fake::kIsObject) {
      fake::release(static_cast<fake::Object*>(const_cast<void*>(from)));
    }
  }
}
