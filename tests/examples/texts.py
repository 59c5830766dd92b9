"""What each example prints."""

from pathlib import Path

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
SAYS = {
    "hello.py": r"received hello, world plain \('first',\)\n",
    "sync_flush.py": r"200 of 200 payments are on the disk\n",
    "batch_and_async.py": r"1000 messages in one batch, .*\n1000 messages by .* order of the calls: True\n",
    "query_by_key.py": r".*\n  shipped .*\n  paid .*\n  ordered .*\nby its id: shipped\nnot there: .*\n",
    "dedup.py": r"billed: order 1001, first attempt, order 1002, first attempt, order 1003, first attempt\n",
    "transaction.py": r"rolled back: deposit D2 is negative\nmessages: D1 100 D3 300\nrows: D1 100 D3 300\n",
    "async_consumer.py": r"10 express parcels have a label\n100 parcels .* 101 .*, parcel 7 in attempt 2\n",
    "delayed.py": r"order 1002 is not paid never early: True\norder 1001 was recalled\n",
    "arrow.py": r"(\d+ rows with the columns .*\n){3}",
    "anywhere.py": r"ann is billed for orders 1, 2, 3, 4, 5\nbob .* 1, 2, 3, 4, 5\ncid .* 1, 2, 3, 4, 5\n",
    "serving.py": r"billed, though .*: order 0, order 1, order 2\n",
    "outbox.py": r"not paid: .*cents >= 0.*\nann has 30 cents\nbob has 170 cents\nsent: ann pays .*\n",
}
