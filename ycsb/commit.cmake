# Writes OUT, a header with the commit that is being built, if it has changed. Runs at every build.
execute_process(COMMAND git describe --always --dirty --abbrev=12 WORKING_DIRECTORY ${SOURCE_DIR}
                OUTPUT_VARIABLE commit OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
if(NOT commit)
  set(commit unknown)
endif()
file(CONFIGURE OUTPUT ${OUT} CONTENT "namespace ycsb {\ninline constexpr char kCommit[] = \"${commit}\";\n}\n")
