"""The layout that came before chunk records: a segment as rolling files, listed in a header file. Its format,
its import, its export."""
