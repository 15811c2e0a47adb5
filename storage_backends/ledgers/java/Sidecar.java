import java.io.EOFException;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.channels.Channel;
import java.nio.channels.SocketChannel;
import java.nio.charset.StandardCharsets;
import java.util.concurrent.LinkedBlockingQueue;

/**
 * The official BookKeeper and ZooKeeper clients behind a socket, for one process: its parent.
 *
 * <p>Standard input is a connected socket. Both sides begin with 8 bytes: the magic "TLSC", the protocol's
 * version (2), 0 (2). Then the parent sends requests and reads replies, many at a time and in any order. All
 * numbers are big-endian.
 *
 * <pre>
 * request: length of the rest (4), request id (4), operation (1), its arguments
 * reply:   length of the rest (4), request id (4), status (1), the result, or the error's text in UTF-8
 * </pre>
 *
 * <p>The parent bounds the bytes of appends that are not replied to, and of reads: neither waits for room
 * here.
 *
 * <p>The sidecar ends with its socket, so it never outlives its parent. What it cannot read as a request ends
 * it too, with a line on standard error.
 */
public final class Sidecar {
    static final int PROTOCOL = 1;
    private static final int MAGIC = 0x544C_5343;
    private static final int REQUEST_BYTES_MAX = (1 << 20) + (64 << 10);
    private static final int BUFFER_BYTES = 256 << 10;

    private final SocketChannel channel;
    private final ByteBuffer in = ByteBuffer.allocateDirect(BUFFER_BYTES).flip();
    private final ByteBuffer out = ByteBuffer.allocateDirect(BUFFER_BYTES);
    private final LinkedBlockingQueue<Reply> replies = new LinkedBlockingQueue<>();

    private Sidecar(SocketChannel channel) {
        this.channel = channel;
    }

    public static void main(String[] arguments) {
        int code = 1;
        try {
            Channel channel = System.inheritedChannel();
            if (!(channel instanceof SocketChannel)) {
                throw new IOException("standard input is no connected socket: tierlog starts this program");
            }
            ((SocketChannel) channel).configureBlocking(true);
            new Sidecar((SocketChannel) channel).serve();
            code = 0;
        } catch (EOFException ended) {
            code = 0;
        } catch (Throwable error) {
            System.err.println("sidecar: " + error);
        }
        // Not exit: nothing is to be saved, and the clients' shutdown may take long.
        Runtime.getRuntime().halt(code);
    }

    private void serve() throws IOException {
        greet();
        Thread writer = new Thread(this::write, "replies");
        writer.setDaemon(true);
        writer.start();
        Calls calls = new Calls(this);
        while (true) {
            ByteBuffer request = ByteBuffer.wrap(read(readLength()));
            int id = request.getInt();
            byte operation = request.get();
            calls.call(id, operation, request);
        }
    }

    private void greet() throws IOException {
        ByteBuffer hello = ByteBuffer.allocate(8);
        hello.putInt(MAGIC).putShort((short) PROTOCOL).putShort((short) 0);
        send(hello.flip());
        ByteBuffer theirs = ByteBuffer.wrap(read(8));
        int magic = theirs.getInt();
        int version = theirs.getShort();
        if (magic != MAGIC || version != PROTOCOL) {
            throw new IOException(String.format(
                    "the parent sent magic %08x and protocol %d, not %08x and %d: install the sidecar again",
                    magic, version, MAGIC, PROTOCOL));
        }
    }

    private int readLength() throws IOException {
        int length = ByteBuffer.wrap(read(4)).getInt();
        if (length < 5 || length > REQUEST_BYTES_MAX) {
            throw new IOException("a request of " + length + " bytes: the limit is " + REQUEST_BYTES_MAX);
        }
        return length;
    }

    private byte[] read(int length) throws IOException {
        byte[] data = new byte[length];
        int at = 0;
        while (at < length) {
            if (!in.hasRemaining()) {
                in.clear();
                int count = channel.read(in);
                in.flip();
                if (count < 0) {
                    throw new EOFException();
                }
            }
            int part = Math.min(in.remaining(), length - at);
            in.get(data, at, part);
            at += part;
        }
        return data;
    }

    // --- replies ------------------------------------------------------------------------------------------

    void reply(int id, Answer answer) {
        replies.add(new Reply(id, Status.OK, answer));
    }

    void fail(int id, Failure failure) {
        replies.add(new Reply(id, failure.status, new Answer().raw(failure.getMessage())));
    }

    private static final class Reply {
        final ByteBuffer head = ByteBuffer.allocate(9);
        final Answer answer;

        Reply(int id, int status, Answer answer) {
            int size = 0;
            for (ByteBuffer part : answer.parts()) {
                size += part.remaining();
            }
            head.putInt(5 + size).putInt(id).put((byte) status).flip();
            this.answer = answer;
        }
    }

    private void write() {
        try {
            while (true) {
                Reply reply = replies.poll();
                if (reply == null) {
                    flush();
                    reply = replies.take();
                }
                put(reply.head);
                for (ByteBuffer part : reply.answer.parts()) {
                    put(part);
                }
                reply.answer.release();
            }
        } catch (IOException | InterruptedException error) {
            // The parent is gone.
            Runtime.getRuntime().halt(0);
        } catch (Throwable error) {
            System.err.println("sidecar: " + error);
            Runtime.getRuntime().halt(1);
        }
    }

    /** By a buffer of its own: the channel would make one as large as all that it is given. */
    private void put(ByteBuffer data) throws IOException {
        int end = data.limit();
        while (data.position() < end) {
            if (!out.hasRemaining()) {
                flush();
            }
            data.limit(Math.min(end, data.position() + out.remaining()));
            out.put(data);
            data.limit(end);
        }
    }

    private void flush() throws IOException {
        send(out.flip());
        out.clear();
    }

    private void send(ByteBuffer data) throws IOException {
        while (data.hasRemaining()) {
            channel.write(data);
        }
    }
}
