// SPDX-License-Identifier: MIT
//
// A token's picks in the order in which their outputs are added up: ascending experts.
#pragma once

#include <metal_stdlib>
using namespace metal;

// One pick; its slot is -1 where its expert is not in the round.
struct TurnPick {
  uint pick;  // t K + rank
  uint expert;
  int slot;
  float weight;
};

// Lane i gets the pick whose turn is i; K up to 32. Every lane of a simdgroup must call this.
// slots [1 + E], picks, order, weights [T, K] as in abi/kernel_args.h.
inline TurnPick pick_by_turn(device const int* slots, device const int* picks, device const int* order,
                             device const float* weights, uint token, uint top_k, uint lane) {
  // By rank first, then moved: the loads of picks and of order do not wait for each other.
  const uint first = token * top_k;
  uint rank = lane;
  uint expert = 0;
  int slot = -1;
  float weight = 0.0f;
  if (lane < top_k) {
    rank = uint(order[first + lane]);
    expert = uint(picks[first + lane]);
    slot = slots[1 + expert];
    weight = weights[first + lane];
  }
  TurnPick own;
  own.pick = first + rank;
  own.expert = simd_shuffle(expert, ushort(rank));
  own.slot = simd_shuffle(slot, ushort(rank));
  own.weight = simd_shuffle(weight, ushort(rank));
  return own;
}
