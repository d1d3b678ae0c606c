# Writes OUT, the definition of ycsb/src/commit.h, if it has changed. Runs at every build.
execute_process(COMMAND git describe --always --dirty --abbrev=12 WORKING_DIRECTORY ${SOURCE_DIR}
                OUTPUT_VARIABLE commit OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
if(NOT commit)
  set(commit unknown)
endif()
file(CONFIGURE OUTPUT ${OUT} CONTENT "#include \"ycsb/src/commit.h\"\n\nnamespace ycsb {\nconst char* const kCommit = \"${commit}\";\n}\n")
