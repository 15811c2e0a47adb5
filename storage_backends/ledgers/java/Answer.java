import java.io.ByteArrayOutputStream;
import java.io.DataOutputStream;
import java.io.IOException;
import java.nio.charset.StandardCharsets;

/** The bytes of a result. */
final class Answer {
    private final ByteArrayOutputStream bytes = new ByteArrayOutputStream();
    private final DataOutputStream out = new DataOutputStream(bytes);

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

    Answer text(String value) {
        return data(value.getBytes(StandardCharsets.UTF_8));
    }

    byte[] bytes() {
        return bytes.toByteArray();
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
