# SPDX-License-Identifier: MIT
#
# For tools/macos/cross_build.py, which names its folder of wrapped tools in $ESKER_MACOS_TOOLS.
set(CMAKE_SYSTEM_NAME Darwin)
set(CMAKE_SYSTEM_PROCESSOR arm64)
set(CMAKE_CXX_COMPILER $ENV{ESKER_MACOS_TOOLS}/c++)
set(CMAKE_AR $ENV{ESKER_MACOS_TOOLS}/ar CACHE FILEPATH "" FORCE)
set(CMAKE_RANLIB $ENV{ESKER_MACOS_TOOLS}/ranlib CACHE FILEPATH "" FORCE)
# Nothing is relocated: there are no rpaths.
set(CMAKE_INSTALL_NAME_TOOL true CACHE FILEPATH "" FORCE)
set(CMAKE_OSX_SYSROOT "" CACHE STRING "" FORCE)
set(CMAKE_OSX_DEPLOYMENT_TARGET "" CACHE STRING "" FORCE)  # the wrapped compiler says it
# A linked program would tell no more, and no such program runs here.
set(CMAKE_TRY_COMPILE_TARGET_TYPE STATIC_LIBRARY)
