import java.io.ByteArrayOutputStream;
import java.io.DataOutputStream;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;

/** The bytes of a result. */
final class Answer {
    private final ByteArrayOutputStream bytes = new ByteArrayOutputStream();
    private final DataOutputStream out = new DataOutputStream(bytes);
    private final List<ByteBuffer> parts = new ArrayList<>();
    private Runnable release = () -> {};

    Answer i32(int value) {
        return written(() -> out.writeInt(value));
    }

    Answer i64(long value) {
        return written(() -> out.writeLong(value));
    }

    Answer data(byte[] value) {
        return written(() -> {
            out.writeInt(value.length);
            out.write(value);
        });
    }

    /** Without its length. */
    Answer raw(String value) {
        return written(() -> out.write(value.getBytes(StandardCharsets.UTF_8)));
    }

    Answer text(String value) {
        return data(value.getBytes(StandardCharsets.UTF_8));
    }

    /** As {@code data}, but not copied: the value stays as it is until {@code release}. */
    Answer shared(ByteBuffer value) {
        i32(value.remaining());
        parts();
        parts.add(value);
        return this;
    }

    /** Lets go of what is shared, once it is written. */
    Answer releasing(Runnable shared) {
        release = shared;
        return this;
    }

    void release() {
        release.run();
    }

    List<ByteBuffer> parts() {
        if (bytes.size() > 0) {
            parts.add(ByteBuffer.wrap(bytes.toByteArray()));
            bytes.reset();
        }
        return parts;
    }

    private interface Write {
        void run() throws IOException;
    }

    private Answer written(Write write) {
        try {
            write.run();
        } catch (IOException error) {
            throw new IllegalStateException(error);
        }
        return this;
    }
}
