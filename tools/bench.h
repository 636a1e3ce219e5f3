/* SPDX-License-Identifier: Apache-2.0 */
/*
 * DOC: bench
 *
 * The subcommands of kvstage-bench. Each takes its own argument vector,
 * argv[0] being the name to show in usage texts, prints its results on stdout
 * (with --json one object a line and nothing else) and everything else on
 * stderr. They return the exit status: 0 ok, 1 failed, 2 usage, 77 cannot be
 * measured here.
 */
#ifndef KVS_TOOLS_BENCH_H
#define KVS_TOOLS_BENCH_H

int kvs_bench_abort(int argc, char **argv);
int kvs_bench_cache(int argc, char **argv);
int kvs_bench_commit(int argc, char **argv);
int kvs_bench_disk(int argc, char **argv);
int kvs_bench_h2d(int argc, char **argv);
int kvs_bench_pool(int argc, char **argv);
int kvs_bench_recv(int argc, char **argv);
int kvs_bench_report(int argc, char **argv);
int kvs_bench_rooms(int argc, char **argv);
int kvs_bench_ttft(int argc, char **argv);

#endif /* KVS_TOOLS_BENCH_H */
