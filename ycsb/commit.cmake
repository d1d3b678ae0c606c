# Writes OUT, the definition of kCommit (ycsb/report.cc), if it has changed. Runs at every build.
execute_process(COMMAND git describe --always --dirty --abbrev=12 WORKING_DIRECTORY ${SOURCE_DIR}
                OUTPUT_VARIABLE commit OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
if(NOT commit)
  set(commit unknown)
endif()
file(CONFIGURE OUTPUT ${OUT} CONTENT "namespace ycsb {\nextern const char* const kCommit;\nconst char* const kCommit = \"${commit}\";\n}\n")
