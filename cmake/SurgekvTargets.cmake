# How targets are made: one per folder. A folder of a library is an OBJECT library (surgekv_folder); `krcore` and
# `kvs` collect theirs into one static library each, which is what users link. A program is surgekv_program.
# tests/ and bench/ have surgekv_test and surgekv_bench.

find_program(SURGEKV_CCACHE ccache)
if(SURGEKV_CCACHE)
  # Paths relative to the checkout, so that every clone of the repository shares the cache. By the environment:
  # Debian 12's ccache, 4.7, takes no settings on its command line.
  set(launcher ${CMAKE_COMMAND} -E env CCACHE_BASEDIR=${PROJECT_SOURCE_DIR} CCACHE_NOHASHDIR=1 ${SURGEKV_CCACHE})
  set(CMAKE_C_COMPILER_LAUNCHER ${launcher})
  set(CMAKE_CXX_COMPILER_LAUNCHER ${launcher})
endif()

# A user's compiler may warn of what ours does not: that must not end the user's build.
option(SURGEKV_WERROR "Warnings are errors" OFF)

add_library(surgekv_flags INTERFACE)
target_compile_options(surgekv_flags INTERFACE -Wall -Wextra -Wpedantic $<$<BOOL:${SURGEKV_WERROR}>:-Werror>
  # Position-independent code, so that the libraries can go into a shared one; but nobody replaces single functions of
  # theirs, for the sake of which GCC would not inline them. The data path takes a tenth less time.
  $<$<CXX_COMPILER_ID:GNU>:-fno-semantic-interposition>
  -Wno-missing-field-initializers  # designated initializers leave members out on purpose
  $<$<CXX_COMPILER_ID:GNU>:-Wno-restrict>  # GCC 12 warns of `"literal" + std::string` (GCC bug 105651)
  $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-mismatched-new-delete>)  # ... and of a class with a destroying delete (krcore/fork.h)

if(SURGEKV_SANITIZE)
  string(REPLACE ";" "," sanitizers "${SURGEKV_SANITIZE}")
  # Every finding ends the program, so that a test with a finding is a failed test. UBSan's checks of each access through
  # a pointer would double the time to compile. AddressSanitizer ends a program that uses a null pointer anyway.
  # (Clang 14 cannot compile coroutines with the check of functions.)
  add_compile_options(-fsanitize=${sanitizers} -fno-sanitize-recover=all -fno-omit-frame-pointer
    -fno-sanitize=null,alignment,object-size,vptr $<$<CXX_COMPILER_ID:Clang>:-fno-sanitize=function>)
  add_link_options(-fsanitize=${sanitizers})
  # Instrumented code makes GCC's flow analysis warn where the plain build does not.
  target_compile_options(surgekv_flags INTERFACE -Wno-error)
  if(SURGEKV_SANITIZE MATCHES "thread")
    # TSan does not model atomic_thread_fence, and GCC says so at each. What a fence orders must be atomic anyway.
    target_compile_options(surgekv_flags INTERFACE -Wno-tsan)
  endif()
endif()

set(SURGEKV_INCLUDES ${PROJECT_SOURCE_DIR} ${PROJECT_SOURCE_DIR}/krcore/include ${PROJECT_SOURCE_DIR}/kvs/include)

# surgekv_folder(NAME SOURCES files... [LIBS libs...]): one folder of a library. Libraries that users of krcore or
# kvs must link too are named there, not here.
function(surgekv_folder name)
  cmake_parse_arguments(ARG "" "" "SOURCES;LIBS" ${ARGN})
  add_library(${name} OBJECT ${ARG_SOURCES})
  target_include_directories(${name} PRIVATE ${SURGEKV_INCLUDES})
  target_link_libraries(${name} PRIVATE surgekv_flags ${ARG_LIBS})
endfunction()

# surgekv_program(NAME files... [LIBS libs...]): build/bin/NAME, installed with the others. Workers may be fresh
# programs (--worker_kind=exec), so a program must start fast: it has libstdc++ in itself, unless a sanitizer wants its
# own.
function(surgekv_program name)
  cmake_parse_arguments(ARG "" "" "SOURCES;LIBS" ${ARGN})
  add_executable(${name} ${ARG_UNPARSED_ARGUMENTS} ${ARG_SOURCES})
  target_include_directories(${name} PRIVATE ${SURGEKV_INCLUDES})
  target_link_libraries(${name} PRIVATE surgekv_flags ${ARG_LIBS})
  if(NOT SURGEKV_SANITIZE)
    set_target_properties(${name} PROPERTIES SURGEKV_STATIC_RUNTIME ON)
    target_link_options(${name} PRIVATE -static-libstdc++ -static-libgcc)
  endif()
  install(TARGETS ${name} RUNTIME COMPONENT programs)
endfunction()
