#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""What kvstage-bench recv --transport verbs --json said, for recv_inside.sh.

Prints the message counts of a room and fails when they are not those of one
run for each buffer and extent.
"""

import json
import sys

MOST_BYTES = 1 << 20  # of one work request
MOST_PIECES = 30  # of one work request: a piece is a page at the sender

FIELDS = (
    "bench size connections transport checksum ours_gbps baseline_gbps "
    "ratio repeats"
).split()


def check(row):
    missing = [name for name in FIELDS if name not in row]
    assert not missing, missing
    assert row["bench"] == "recv" and row["transport"] == "verbs"
    assert row["ours_gbps"] > 0 and row["baseline_gbps"] > 0
    assert row["rooms"] > 0 and row["copied_bytes"] == 0
    pages = row["size"] // row["item_len"]
    assert row["room_pages"] == row["room_runs"] * pages
    in_one = min(MOST_BYTES // row["item_len"], MOST_PIECES)
    writes = -(-pages // in_one)
    assert row["room_writes"] == row["room_runs"] * writes
    # A message behind each run, and now and then one that carries credits.
    assert row["room_runs"] <= row["room_messages"] < 2 * row["room_runs"]
    assert row["room_writes"] + row["room_messages"] < row["room_pages"]
    print(
        "messages per room of {room_pages} pages in {room_runs} runs "
        "({room_bytes} bytes): {room_writes} writes, {room_messages} sends".format(
            **row
        )
    )


def main():
    with open(sys.argv[1], encoding="ascii") as out:
        rows = [json.loads(line) for line in out]
    assert rows, "nothing was printed"
    for row in rows:
        check(row)


main()
