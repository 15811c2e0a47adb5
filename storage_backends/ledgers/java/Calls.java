import java.nio.BufferUnderflowException;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;

/** Decodes each request and hands it to the client that carries it out. */
final class Calls {
    private final Sidecar sidecar;
    /** For the few calls that block. */
    private final ExecutorService blocking = Executors.newCachedThreadPool(work -> {
        Thread thread = new Thread(work, "blocking");
        thread.setDaemon(true);
        return thread;
    });
    private volatile RecordCalls records;
    private volatile LedgerCalls ledgers;

    Calls(Sidecar sidecar) {
        this.sidecar = sidecar;
    }

    /** Never blocks for longer than it takes to hand the request over. */
    void call(int id, byte operation, ByteBuffer in) {
        CompletableFuture<Answer> outcome;
        try {
            outcome = begin(operation, in);
        } catch (Failure failure) {
            sidecar.fail(id, failure);
            return;
        } catch (BufferUnderflowException | NegativeArraySizeException error) {
            throw new IllegalArgumentException("the arguments of operation " + operation + " are cut short");
        }
        outcome.whenComplete((answer, error) -> {
            if (error == null) {
                sidecar.reply(id, answer);
            } else {
                sidecar.fail(id, failureOf(error));
            }
        });
    }

    private static Failure failureOf(Throwable error) {
        Throwable cause = Failure.causeOf(error);
        return cause instanceof Failure ? (Failure) cause : new Failure(Status.UNKNOWN, cause.toString());
    }

    private CompletableFuture<Answer> begin(byte operation, ByteBuffer in) throws Failure {
        if (operation == 1) {
            return connect(in);
        }
        if (ledgers == null) {
            throw new Failure(Status.UNAVAILABLE, "not connected yet");
        }
        switch (operation) {
            case 2:
                return CompletableFuture.supplyAsync(ledgers::countBookies, blocking);
            case 3:
                return ledgers.create(in.getInt(), in.getInt(), in.getInt(), map(in));
            case 4:
                return ledgers.append(in.getInt(), in);
            case 5:
                return ledgers.open(in.getLong(), in.get() != 0);
            case 6:
                return ledgers.read(in.getInt(), in.getLong(), in.getLong(), in.get() != 0);
            case 7:
                return ledgers.close(in.getInt());
            case 8:
                return ledgers.delete(in.getLong());
            case 9: {
                long after = in.getLong();
                int count = in.getInt();
                return CompletableFuture.supplyAsync(() -> ledgers.list(after, count), blocking);
            }
            case 10:
                return ledgers.describe(in.getLong());
            case 11:
                return ledgers.drop(in.getInt());
            case 20:
                return records.load(text(in));
            case 21:
                return records.create(text(in), data(in));
            case 22:
                return records.replace(text(in), data(in), (int) in.getLong());
            case 23:
                return records.delete(text(in), (int) in.getLong());
            case 24:
                return records.children(text(in));
            case 25:
                return records.check(text(in), (int) in.getLong());
            case 28:
                return records.session();
            default:
                throw new IllegalArgumentException("operation " + operation + " is unknown");
        }
    }

    private CompletableFuture<Answer> connect(ByteBuffer in) {
        String servers = text(in);
        String root = text(in);
        int timeout = in.getInt();
        return CompletableFuture.supplyAsync(() -> {
            try {
                RecordCalls connected = new RecordCalls(servers, timeout);
                ledgers = LedgerCalls.connect(servers, root, timeout);
                records = connected;
                blocking.execute(ledgers::warmUp);
                return connected.session().join();
            } catch (Failure failure) {
                throw new CompletionException(failure);
            }
        }, blocking);
    }

    // --- arguments ----------------------------------------------------------------------------------------

    static byte[] data(ByteBuffer in) {
        int length = in.getInt();
        if (length > in.remaining()) {
            throw new BufferUnderflowException();
        }
        byte[] data = new byte[length];
        in.get(data);
        return data;
    }

    static String text(ByteBuffer in) {
        return new String(data(in), StandardCharsets.UTF_8);
    }

    private static Map<String, byte[]> map(ByteBuffer in) {
        Map<String, byte[]> map = new HashMap<>();
        for (int left = in.getInt(); left > 0; left--) {
            String key = text(in);
            map.put(key, data(in));
        }
        return map;
    }
}
