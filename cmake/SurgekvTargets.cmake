# One CMake target per folder. A folder of a library is an OBJECT library; `krcore` and `kvs` collect theirs into
# one static library each, which is what users link.

find_program(SURGEKV_CCACHE ccache)
if(SURGEKV_CCACHE)
  set(CMAKE_C_COMPILER_LAUNCHER ${SURGEKV_CCACHE})
  set(CMAKE_CXX_COMPILER_LAUNCHER ${SURGEKV_CCACHE})
endif()

add_library(surgekv_flags INTERFACE)
target_compile_options(surgekv_flags INTERFACE -Wall -Wextra -Wpedantic -Werror)
if(SURGEKV_SANITIZE)
  string(REPLACE ";" "," sanitizers "${SURGEKV_SANITIZE}")
  add_compile_options(-fsanitize=${sanitizers} -fno-omit-frame-pointer)
  add_link_options(-fsanitize=${sanitizers})
endif()

# surgekv_folder(NAME SOURCES... [INCLUDES dirs...] [LIBS libs...]): one folder of a library.
function(surgekv_folder name)
  cmake_parse_arguments(ARG "" "" "SOURCES;LIBS" ${ARGN})
  add_library(${name} OBJECT ${ARG_SOURCES})
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR} ${PROJECT_SOURCE_DIR}/krcore/include
                                             ${PROJECT_SOURCE_DIR}/kvs/include)
  target_link_libraries(${name} PRIVATE surgekv_flags ${ARG_LIBS})
endfunction()
