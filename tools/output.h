/* SPDX-License-Identifier: Apache-2.0 */
/*
 * DOC: output
 *
 * A tool whose results were not written has not done its work, whatever it
 * found out: it says so and exits with 1. What a program prints goes through a
 * buffer, so the error comes late, at its end for most, --help included.
 */
#ifndef KVS_TOOLS_OUTPUT_H
#define KVS_TOOLS_OUTPUT_H

/**
 * kvs_output_watch() - at exit(), see whether standard output was written
 * @tool: for the message; the caller's text
 *
 * An error ends the process with status 1 and "TOOL: standard output: why".
 * Context: once, before anything is printed. _exit() asks nothing.
 */
void kvs_output_watch(const char *tool);

/**
 * kvs_output_flush() - let what was printed so far be read
 * Return: 0 or -errno, which exit() will tell.
 */
int kvs_output_flush(void);

#endif /* KVS_TOOLS_OUTPUT_H */
