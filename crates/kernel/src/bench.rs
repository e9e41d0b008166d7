//! Test runs of the guard's programs on made-up packets (BPF_PROG_TEST_RUN).
