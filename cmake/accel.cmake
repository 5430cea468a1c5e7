# What every target of the project shares.

# Most of a compile is the standard library's headers. Tests have them precompiled, with GoogleTest's, and are not optimized: a program of theirs
# takes 20 s else under AddressSanitizer. The release build of src has them too where it has tests, which takes a third off a file, and the
# sanitizers' builds compile several files as one besides. The product alone (ACCEL_TESTS=OFF) and clang's build show what a file forgets to include.
option(ACCEL_QUICK_BUILD "Compile src with precompiled headers and several files at once" OFF)

add_library(accel-flags INTERFACE)
target_include_directories(accel-flags INTERFACE ${CMAKE_SOURCE_DIR}/src ${CMAKE_BINARY_DIR}/generated)
set_property(TARGET accel-flags PROPERTY INTERFACE_COMPILE_OPTIONS
  -Wall -Wextra -Werror $<$<NOT:$<BOOL:${ACCEL_QUICK_BUILD}>>:-Wshadow> $<$<COMPILE_LANGUAGE:CXX>:-Wnon-virtual-dtor>
  $<$<COMPILE_LANG_AND_ID:CXX,Clang>:-Wno-deprecated-enum-enum-conversion>)  # ibv_reg_mr() of <infiniband/verbs.h> is a macro

set(accel_headers <algorithm> <array> <atomic> <chrono> <functional> <map> <memory> <optional> <set> <span> <string> <string_view> <unordered_map>
    <utility> <vector>)
list(TRANSFORM accel_headers REPLACE "(.+)" "$<$<COMPILE_LANGUAGE:CXX>:\\1>")

# accel_quick_build(TARGET): for a library. accel_precompile_test(TARGET): for a program of tests, which share one.
function(accel_quick_build target)
  if(ACCEL_QUICK_BUILD)
    if(NOT TARGET accel-headers)
      file(WRITE ${CMAKE_BINARY_DIR}/generated/headers.cc "")
      add_library(accel-headers STATIC ${CMAKE_BINARY_DIR}/generated/headers.cc)
      target_link_libraries(accel-headers PRIVATE accel-flags)
      target_precompile_headers(accel-headers PRIVATE ${accel_headers})
    endif()
    target_precompile_headers(${target} REUSE_FROM accel-headers)
    set_target_properties(${target} PROPERTIES UNITY_BUILD ON)
  elseif(ACCEL_TESTS AND CMAKE_CXX_COMPILER_ID STREQUAL GNU AND CMAKE_BUILD_TYPE MATCHES "Rel")
    accel_precompile(${target})
  endif()
endfunction()

# accel_precompile(TARGET): g++ takes a precompiled header only where its macros are defined alike, and __OPTIMIZE_SIZE__ is one. So there are two
# of it, with ACCEL_SMALL and without, in a folder in which g++ looks for the one that fits. CMake's own way has one for a target.
function(accel_precompile target)
  set(header ${CMAKE_BINARY_DIR}/generated/headers.h)
  if(NOT TARGET accel-precompiled)
    list(TRANSFORM accel_headers REPLACE ".*(<[a-z_]+>).*" "#include \\1" OUTPUT_VARIABLE lines)
    list(JOIN lines "\n" text)
    file(CONFIGURE OUTPUT ${header} CONTENT "${text}\n")
    file(MAKE_DIRECTORY ${header}.gch)
    string(TOUPPER "${CMAKE_BUILD_TYPE}" type)
    separate_arguments(flags UNIX_COMMAND "${CMAKE_CXX_FLAGS} ${CMAKE_CXX_FLAGS_${type}}")
    foreach(level O2 Os)
      add_custom_command(OUTPUT ${header}.gch/${level} DEPENDS ${header} VERBATIM
        COMMAND ${CMAKE_CXX_COMPILER} ${flags} -${level} -fPIC -fvisibility=hidden -fvisibility-inlines-hidden -std=c++20 -x c++-header ${header}
                -o ${header}.gch/${level})
    endforeach()
    add_custom_target(accel-precompiled DEPENDS ${header}.gch/O2 ${header}.gch/Os)
  endif()
  target_compile_options(${target} PRIVATE "$<$<COMPILE_LANGUAGE:CXX>:SHELL:-include ${header}>")
  add_dependencies(${target} accel-precompiled)
endfunction()
function(accel_precompile_test target)
  if(NOT TARGET accel-test-headers)
    file(WRITE ${CMAKE_BINARY_DIR}/generated/test_headers.cc "")
    add_executable(accel-test-headers ${CMAKE_BINARY_DIR}/generated/test_headers.cc)
    target_link_libraries(accel-test-headers PRIVATE accel-flags GTest::gtest_main)
    target_compile_options(accel-test-headers PRIVATE -O0)
    target_precompile_headers(accel-test-headers PRIVATE ${accel_headers} "$<$<COMPILE_LANGUAGE:CXX>:<gtest/gtest.h>>")
  endif()
  target_compile_options(${target} PRIVATE -O0)
  target_precompile_headers(${target} REUSE_FROM accel-test-headers)
endfunction()

# For what runs once, or once a flow: the code's pages are part of what a program pays that only listens.
# g++ 12 warns of values of std::optional that it does not follow with -Os.
if(NOT ACCEL_QUICK_BUILD)  # which compiles a file with options of its own alone, and whose sanitizers clang links into programs only
  set(ACCEL_SMALL $<$<CONFIG:RelWithDebInfo,Release>:-Os> $<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized>)
  set(ACCEL_NO_UNDEFINED LINKER:--no-undefined)
endif()

# accel_layer(NAME [LINK libs...]): a static library of every .cc in the current folder (and those below it).
function(accel_layer name)
  cmake_parse_arguments(A "" "" "LINK" ${ARGN})
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/*.cc)
  if(NOT sources)  # headers only so far
    add_library(${name} INTERFACE)
    target_link_libraries(${name} INTERFACE accel-flags ${A_LINK})
    return()
  endif()
  add_library(${name} STATIC ${sources})
  target_link_libraries(${name} PUBLIC accel-flags ${A_LINK})
  accel_quick_build(${name})
endfunction()

# accel_unit_test(NAME SOURCES... LINK libs...): a GoogleTest program, one ctest case each, label "unit".
function(accel_unit_test name)
  cmake_parse_arguments(A "" "" "SOURCES;LINK" ${ARGN})
  add_executable(${name} ${A_SOURCES})
  target_link_libraries(${name} PRIVATE ${A_LINK} accel-flags GTest::gtest_main)
  accel_precompile_test(${name})
  add_test(NAME unit.${name} COMMAND ${name})
  set_tests_properties(unit.${name} PROPERTIES LABELS unit TIMEOUT 300)
  set_property(GLOBAL APPEND PROPERTY ACCEL_HOSTLESS ${name})
endfunction()

# accel_weigh_tests(): last in a folder. With ctest -j 6 a CPU, three of its tests run at a time on two CPUs, four of those that wait for
# most of their time, or two with a model of a NIC: that is a thread with real-time priority at each end, and those of three such tests
# leave no CPU to programs.
function(accel_weigh_tests)
  get_property(tests DIRECTORY PROPERTY TESTS)
  foreach(test IN LISTS tests)
    set(share 4)
    if(test MATCHES "^posix\\.(.*\\.)?(kernel|near|far|both|each|siw)$")
      set(share 3)
    elseif(test MATCHES "model")
      set(share 6)
    endif()
    set_tests_properties(${test} PROPERTIES PROCESSORS ${share})
  endforeach()
endfunction()
