"""Turn raw rows into Parquet files with the truth beside each row."""
