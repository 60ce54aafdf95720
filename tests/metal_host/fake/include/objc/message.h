// SPDX-License-Identifier: MIT
#pragma once

#include "runtime.h"

extern "C" {
void objc_msgSend();
void objc_msgSend_stret();
void objc_msgSend_fpret();
}
