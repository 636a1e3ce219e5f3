/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One run of a program that prints JSON lines, and what it printed; shared by
 * the tests of kvstage-bench.
 */
#ifndef KVS_TESTS_BENCH_RIG_H
#define KVS_TESTS_BENCH_RIG_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <jansson.h>

#define TEXT_MAX 262144
#define ARGS_MAX 32
#define LINES_MAX 16

extern const char *program; /* set by main() */
extern char out[TEXT_MAX]; /* of the last run */
extern char err[TEXT_MAX];

/* A whole file, from its start, into out or err; closes it. */
void slurp(int fd, char *buf);
/* Words of @args to argv; exit status. */
int run(const char *args);
/* Objects of stdout, one a line; how many. */
size_t parse(json_t *v[LINES_MAX]);
/* A member that must be there. */
double number(const json_t *v, const char *key);
const char *text(const json_t *v, const char *key);

#endif /* KVS_TESTS_BENCH_RIG_H */
