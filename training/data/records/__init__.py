"""Find, count, read and check the records of TFRecord shards."""
