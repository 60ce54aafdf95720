// SPDX-License-Identifier: MIT
#pragma once

using kern_return_t = int;
using task_id_token_t = unsigned;
