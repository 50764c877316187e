"""Records of TFRecord shards, whatever is in them: read, counted, checked."""
