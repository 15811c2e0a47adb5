import io.netty.buffer.ByteBuf;
import io.netty.buffer.Unpooled;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.function.BiConsumer;
import java.util.function.Function;
import org.apache.bookkeeper.client.BookKeeperAdmin;
import org.apache.bookkeeper.client.api.BKException;
import org.apache.bookkeeper.client.api.BookKeeper;
import org.apache.bookkeeper.client.api.DigestType;
import org.apache.bookkeeper.client.api.LedgerEntries;
import org.apache.bookkeeper.client.api.LedgerEntry;
import org.apache.bookkeeper.client.api.LedgerMetadata;
import org.apache.bookkeeper.client.api.LedgersIterator;
import org.apache.bookkeeper.client.api.ListLedgersResult;
import org.apache.bookkeeper.client.api.ReadHandle;
import org.apache.bookkeeper.client.api.WriteHandle;
import org.apache.bookkeeper.conf.ClientConfiguration;

/** Ledgers, by BookKeeper's client. Its own session at ZooKeeper is renewed by itself when it expires. */
final class LedgerCalls {
    /** Permanent: a ledger is opened only with the password that it was made with. It keeps nobody out. */
    private static final byte[] PASSWORD = "tierlog".getBytes(StandardCharsets.UTF_8);
    private static final int READ_ENTRIES_MAX = 16;

    private final BookKeeper client;
    private final BookKeeperAdmin admin;
    private final AtomicInteger handles = new AtomicInteger();
    private final Map<Integer, ReadHandle> open = new ConcurrentHashMap<>();
    /** Of ledgers that are open for reading. */
    private final Set<Integer> readers = ConcurrentHashMap.newKeySet();

    private LedgerCalls(org.apache.bookkeeper.client.BookKeeper client) {
        this.client = client;
        this.admin = new BookKeeperAdmin(client);
    }

    static LedgerCalls connect(String servers, String root, int timeout) throws Failure {
        ClientConfiguration configuration = new ClientConfiguration();
        configuration.setMetadataServiceUri("zk+null://" + servers.replace(',', ';') + root);
        configuration.setZkTimeout(timeout);
        configuration.setNumIOThreads(1);
        configuration.setNumWorkerThreads(1);
        // The limit is in bytes, and the parent's.
        configuration.setThrottleValue(0);
        // A ledger goes on without a bookie that is down, as long as the others are enough.
        configuration.setDelayEnsembleChange(true);
        try {
            return new LedgerCalls(new org.apache.bookkeeper.client.BookKeeper(configuration));
        } catch (Exception error) {
            throw new Failure(Status.UNAVAILABLE, "no BookKeeper at " + servers + root + ": " + error);
        }
    }

    /**
     * Reads any ledger, without recovery, which changes none. It loads the classes and makes the connections
     * that the first opening of a log would wait for, which may be a failover. Without any ledger, or if it
     * cannot be read, that opening takes as long as it would have taken.
     */
    void warmUp() {
        try (ListLedgersResult listed = client.newListLedgersOp().execute().join()) {
            LedgersIterator each = listed.iterator();
            if (!each.hasNext()) {
                return;
            }
            try (ReadHandle ledger = client.newOpenLedgerOp()
                    .withLedgerId(each.next())
                    .withRecovery(false)
                    .withDigestType(DigestType.CRC32C)
                    .withPassword(PASSWORD)
                    .execute()
                    .join()) {
                if (ledger.readLastAddConfirmed() >= 0) {
                    ledger.read(0, 0).close();
                }
            }
        } catch (Exception unreadable) {
            return;
        }
    }

    Answer countBookies() {
        try {
            return new Answer().i32(admin.getAvailableBookies().size());
        } catch (BKException error) {
            throw new CompletionException(failure(error, "the cluster", Status.UNAVAILABLE));
        }
    }

    CompletableFuture<Answer> create(
            int ensemble, int writeQuorum, int ackQuorum, Map<String, byte[]> metadata) {
        CompletableFuture<WriteHandle> made = client.newCreateLedgerOp()
                .withEnsembleSize(ensemble)
                .withWriteQuorumSize(writeQuorum)
                .withAckQuorumSize(ackQuorum)
                .withDigestType(DigestType.CRC32C)
                .withPassword(PASSWORD)
                .withCustomMetadata(metadata)
                .execute();
        return mapped(made, "a new ledger", Status.UNKNOWN, ledger ->
                new Answer().i32(kept(ledger)).i64(ledger.getId()));
    }

    private int kept(ReadHandle ledger) {
        int handle = handles.incrementAndGet();
        open.put(handle, ledger);
        return handle;
    }

    private ReadHandle handle(int handle) throws Failure {
        ReadHandle ledger = open.get(handle);
        if (ledger == null) {
            throw new Failure(Status.NO_HANDLE, "the ledger's handle " + handle + " is closed");
        }
        return ledger;
    }

    CompletableFuture<Answer> append(int handle, ByteBuffer entry) throws Failure {
        ReadHandle ledger = handle(handle);
        if (!(ledger instanceof WriteHandle)) {
            throw new Failure(Status.REFUSED, "ledger " + ledger.getId() + " is open for reading only");
        }
        ByteBuf data = Unpooled.wrappedBuffer(entry);
        CompletableFuture<Long> added = ((WriteHandle) ledger).appendAsync(data);
        return mapped(added, "ledger " + ledger.getId(), Status.UNKNOWN, number -> new Answer().i64(number));
    }

    CompletableFuture<Answer> open(long ledger, boolean recover) {
        CompletableFuture<ReadHandle> opened = client.newOpenLedgerOp()
                .withLedgerId(ledger)
                .withRecovery(recover)
                .withDigestType(DigestType.CRC32C)
                .withPassword(PASSWORD)
                .execute();
        CompletableFuture<ReadHandle> asked = opened.thenCompose(handle ->
                handle.isClosed()
                        ? CompletableFuture.completedFuture(handle)
                        : handle.readLastAddConfirmedAsync().thenApply(last -> handle));
        return mapped(asked, "ledger " + ledger, Status.UNAVAILABLE, reader -> {
            int handle = kept(reader);
            readers.add(handle);
            Answer answer = new Answer().i32(handle).i64(reader.getLastAddConfirmed());
            return described(answer, reader.getLength(), reader.isClosed(), reader.getLedgerMetadata());
        });
    }

    private static Answer described(Answer answer, long length, boolean closed, LedgerMetadata metadata) {
        answer.i64(length).i32(closed ? 1 : 0);
        Map<String, byte[]> custom = metadata.getCustomMetadata();
        answer.i32(custom.size());
        custom.forEach((name, value) -> answer.text(name).data(value));
        return answer;
    }

    CompletableFuture<Answer> read(int handle, long first, long last, boolean unconfirmed) throws Failure {
        if (first < 0 || last < first || last - first >= READ_ENTRIES_MAX) {
            throw new Failure(
                    Status.REFUSED, "entries " + first + " to " + last + ": at most " + READ_ENTRIES_MAX);
        }
        ReadHandle ledger = handle(handle);
        CompletableFuture<LedgerEntries> read =
                unconfirmed ? ledger.readUnconfirmedAsync(first, last) : ledger.readAsync(first, last);
        return mapped(read, "ledger " + ledger.getId() + " at " + first, Status.UNAVAILABLE, entries -> {
            List<ByteBuffer> found = new ArrayList<>();
            for (LedgerEntry entry : entries) {
                found.add(entry.getEntryNioBuffer());
            }
            Answer answer = new Answer().i32(found.size()).releasing(entries::close);
            found.forEach(answer::shared);
            return answer;
        });
    }

    CompletableFuture<Answer> close(int handle) throws Failure {
        ReadHandle ledger = handle(handle);
        String what = "ledger " + ledger.getId();
        return mapped(ledger.closeAsync(), what, Status.UNKNOWN, nothing -> new Answer());
    }

    /** The handle is forgotten, the ledger left as it is. */
    CompletableFuture<Answer> drop(int handle) {
        ReadHandle ledger = open.remove(handle);
        // To close a writer would end its ledger. A reader has listeners, which this removes.
        if (readers.remove(handle) && ledger != null) {
            ledger.closeAsync();
        }
        return CompletableFuture.completedFuture(new Answer());
    }

    CompletableFuture<Answer> delete(long ledger) {
        CompletableFuture<Void> deleted = client.newDeleteLedgerOp().withLedgerId(ledger).execute();
        return mapped(deleted, "ledger " + ledger, Status.UNKNOWN, nothing -> new Answer());
    }

    /** The lowest {@code count} ids above {@code after}, of all ledgers of the cluster. */
    Answer list(long after, int count) {
        TreeSet<Long> found = new TreeSet<>();
        try (ListLedgersResult listed = client.newListLedgersOp().execute().join()) {
            LedgersIterator each = listed.iterator();
            while (each.hasNext()) {
                long ledger = each.next();
                if (ledger > after && found.add(ledger) && found.size() > count) {
                    found.pollLast();
                }
            }
        } catch (Exception error) {
            throw new CompletionException(failure(error, "the cluster", Status.UNAVAILABLE));
        }
        Answer answer = new Answer().i32(found.size());
        found.forEach(answer::i64);
        return answer;
    }

    CompletableFuture<Answer> describe(long ledger) {
        CompletableFuture<LedgerMetadata> asked = client.getLedgerMetadata(ledger);
        return mapped(asked, "ledger " + ledger, Status.UNAVAILABLE, found -> described(
                new Answer().i64(found.isClosed() ? found.getLastEntryId() : -1),
                found.isClosed() ? found.getLength() : 0, found.isClosed(), found));
    }

    // --- outcomes -----------------------------------------------------------------------------------------

    /** {@code doubt}: the status of errors that do not say what was done. */
    private static <T> CompletableFuture<Answer> mapped(
            CompletableFuture<T> outcome, String what, int doubt, Function<T, Answer> answer) {
        CompletableFuture<Answer> mapped = new CompletableFuture<>();
        BiConsumer<T, Throwable> end = (value, error) -> {
            if (error != null) {
                mapped.completeExceptionally(failure(error, what, doubt));
                return;
            }
            try {
                mapped.complete(answer.apply(value));
            } catch (RuntimeException unexpected) {
                mapped.completeExceptionally(new Failure(doubt, unexpected.toString()));
            }
        };
        outcome.whenComplete(end);
        return mapped;
    }

    private static Failure failure(Throwable error, String what, int doubt) {
        Throwable cause = Failure.causeOf(error);
        if (!(cause instanceof BKException)) {
            return new Failure(doubt, what + ": " + cause);
        }
        int code = ((BKException) cause).getCode();
        String why = BKException.getMessage(code) + " (BookKeeper " + code + ")";
        return new Failure(status(code, doubt), what + ": " + why);
    }

    private static int status(int code, int doubt) {
        switch (code) {
            case BKException.Code.LedgerFencedException:
                return Status.FENCED;
            case BKException.Code.NoSuchLedgerExistsException:
            case BKException.Code.NoSuchLedgerExistsOnMetadataServerException:
                return Status.NO_LEDGER;
            case BKException.Code.NotEnoughBookiesException:
                return Status.NOT_ENOUGH_BOOKIES;
            case BKException.Code.NoSuchEntryException:
                return Status.NO_ENTRY;
            case BKException.Code.LedgerClosedException:
                return Status.LEDGER_CLOSED;
            case BKException.Code.DigestMatchException:
                return Status.DAMAGED;
            case BKException.Code.UnauthorizedAccessException:
            case BKException.Code.IncorrectParameterException:
            case BKException.Code.SecurityException:
                return Status.REFUSED;
            default:
                return doubt;
        }
    }
}
