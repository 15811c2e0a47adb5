"""The layout that came before chunk records: a segment as rolling files, listed in a header file. Import,
export, and the hook of a container."""
