# What every target of the project shares.

add_library(accel-flags INTERFACE)
target_include_directories(accel-flags INTERFACE ${CMAKE_SOURCE_DIR}/src ${CMAKE_BINARY_DIR}/generated)
set_property(TARGET accel-flags PROPERTY INTERFACE_COMPILE_OPTIONS
  -Wall -Wextra -Werror -Wshadow $<$<COMPILE_LANGUAGE:CXX>:-Wnon-virtual-dtor>
  $<$<COMPILE_LANG_AND_ID:CXX,Clang>:-Wno-deprecated-enum-enum-conversion>)  # ibv_reg_mr() of <infiniband/verbs.h> is a macro

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
endfunction()

# accel_unit_test(NAME SOURCES... LINK libs...): a GoogleTest program, one ctest case each, label "unit".
function(accel_unit_test name)
  cmake_parse_arguments(A "" "" "SOURCES;LINK" ${ARGN})
  add_executable(${name} ${A_SOURCES})
  target_link_libraries(${name} PRIVATE ${A_LINK} accel-flags GTest::gtest_main)
  add_test(NAME unit.${name} COMMAND ${name})
  set_tests_properties(unit.${name} PROPERTIES LABELS unit TIMEOUT 300)
  set_property(GLOBAL APPEND PROPERTY ACCEL_HOSTLESS ${name})
endfunction()
