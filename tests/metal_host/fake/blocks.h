// SPDX-License-Identifier: MIT
//
// Clang's blocks, as the Blocks ABI lays them out: what a copy owns, and how to call one.
#pragma once

namespace fake {

struct BlockDescriptor {
  unsigned long reserved, bytes;
  void (*copy)(void* to, const void* from);  // only where the block's flags say so
  void (*dispose)(const void* block);
};

struct Block {
  void* isa;
  volatile int flags;
  int reserved;
  void (*invoke)();
  BlockDescriptor* descriptor;
};

Block* copy_block(const void* block);
void release_block(const void* block);

template <class... A>
void call_block(const Block* block, A... arguments) {
  reinterpret_cast<void (*)(const Block*, A...)>(block->invoke)(block, arguments...);
}

}  // namespace fake
