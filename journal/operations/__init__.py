"""What a container logs: one file per record type, which registers itself with ``operation``. Importing the
package registers them all."""

from . import (  # noqa: F401 - imported to be registered
    abort_transaction,
    append,
    barrier,
    begin_transaction,
    checkpoint,
    commit_metadata,
    commit_transaction,
    create_segment,
    cycle_complete,
    delete_segment,
    expire_writers,
    forget_segment,
    forget_transactions,
    import_segment,
    merge_segments,
    relog_data,
    seal_segment,
    truncate_segment,
    update_attributes,
)
