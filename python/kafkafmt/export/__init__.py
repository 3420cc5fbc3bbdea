"""Export topics into tables: Parquet files, Delta and Iceberg tables that continue where they ended."""
